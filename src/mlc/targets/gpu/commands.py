"""The commands of a program: what a region's calls come to on a device, recurrences round by round.

A device has no loop around launches. So the rounds of a recurrence are written out, each with its own places: what is
carried lies in two places by turns, and rows of what is scanned or gathered lie where the round's row is. What is both
carried and gathered lies in its row, from where the next round reads it. Where a row does not begin at an address that
operands may have, it is copied to a place of its own and from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mlc.ir import te
from mlc.ir.cost import operations, traffic
from mlc.ir.graph import Graph, Node, express
from mlc.ops.scan import SCAN
from mlc.targets.base import CallSpec, CompiledRegion, LoopSpec, RowSpec
from mlc.targets.base import Step as Call
from mlc.targets.gpu.emit import Emitted
from mlc.targets.gpu.program import Command, Operand, Step

Place = tuple[str, int]
_SPACES = ("input", "output")


@dataclass(frozen=True)
class _Frame:
    """Where calls find what they name: those of the region, or of a round of a recurrence in it.

    Args:
        inputs, outputs: places of operands that calls number.
        workspace: bytes from the begin of the region's.
        rounds: how often the calls are made in all.
    """

    inputs: Sequence[Operand]
    outputs: Sequence[Operand]
    workspace: int
    rounds: int

    def at(self, place: Place, nbytes: int) -> Operand:
        """An operand in the program's own terms."""
        space, at = place
        if space in _SPACES:
            return replace((self.inputs if space == "input" else self.outputs)[at], nbytes=nbytes)
        return Operand(space, at + self.workspace if space == "workspace" else at, nbytes)


@dataclass(eq=False)
class Commands:
    """The commands of a region.

    Args:
        region: what is compiled.
        emitted: its kernels.
        alignment: bytes that the begin of a kernel's operand is a multiple of.
        anywhere: whether operands that are accessed by single elements may begin at any of these.

    Attributes:
        steps: nodes, in order of their first call.
        commands: in order.
        scratch: bytes that kernels, and rows that are copied, need.
    """

    region: CompiledRegion
    emitted: Mapping[str, Emitted]
    alignment: int
    anywhere: bool = False
    steps: list[Step] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    scratch: int = 0

    def __post_init__(self) -> None:
        graph = self.region.graph
        self._params = [v.type.nbytes for v in self.region.constants]
        self._numbers: dict[tuple[int, int], int] = {}  # of steps, by call and what is done for it
        self.scratch = max((sum(_sizes(e, self.alignment)) for e in self.emitted.values()), default=0)
        inputs, outputs = (
            [Operand(space, k, v.type.nbytes) for k, v in enumerate(values)]
            for space, values in zip(_SPACES, (graph.inputs, graph.outputs), strict=True)
        )
        self._make(self.region.calls, self.region.nodes[graph], _Frame(inputs, outputs, 0, 1))

    def _make(self, calls: Sequence[Call], nodes: Sequence[Node], frame: _Frame) -> None:
        for k, call in enumerate(calls):
            node = nodes[k] if k < len(nodes) else None
            if isinstance(call, LoopSpec):
                assert node is not None
                self._rounds(call, node, frame)
                continue
            assert isinstance(call, CallSpec)
            if call.kernel:
                assert node is not None
                self._launch(call, node, frame)
            elif call.nbytes:
                source, target = (frame.at(place, call.nbytes) for place in call.args)
                self._copy(call, source, target, frame.rounds)

    def _launch(self, call: CallSpec, node: Node, frame: _Frame) -> None:
        kernel = self.emitted[call.kernel]
        flops, nbytes = work(node)
        number = self._number(call, Step(call.kernel, tuple(node.sources), flops * frame.rounds, nbytes * frame.rounds))
        places = [frame.at(place, nbytes) for place, nbytes in zip(call.args, kernel.params, strict=True)]
        places = [replace(o, nbytes=self._params[o.at]) if o.space == "param" else o for o in places]
        places += _buffers(kernel, self.alignment)
        for launch in kernel.launches:
            operands = tuple(places[k] for k in launch.operands)
            shared = launch.shared, launch.declared
            self.commands.append(Command(number, launch.name, operands, launch.grid, launch.block, *shared))

    def _copy(self, call: Call, source: Operand, target: Operand, rounds: int, which: int = 0) -> None:
        if source.nbytes:
            number = self._number(call, Step("copy", (), 0, 2 * source.nbytes * rounds), which)
            self.commands.append(Command(number, "", (source, target)))

    def _number(self, call: Call, step: Step, which: int = 0) -> int:
        """Of a step; every round of a recurrence has the same ones."""
        key = id(call), which
        if key not in self._numbers:
            self._numbers[key] = len(self.steps)
            self.steps.append(step)
        return self._numbers[key]

    def _rounds(self, loop: LoopSpec, node: Node, frame: _Frame) -> None:
        """A recurrence; see :class:`~mlc.targets.base.LoopSpec`."""
        body: Graph = node.attrs["body"]
        carried = [
            (frame.at(first, v.type.nbytes), frame.at(last, v.type.nbytes), even, odd)
            for (first, last, even, odd), v in zip(loop.carried, body.inputs, strict=False)
        ]
        fixed = len(carried) + len(loop.scanned)
        captured = [frame.at(place, v.type.nbytes) for place, v in zip(loop.captured, body.inputs[fixed:], strict=True)]
        # what a round copies to a row when it is over can lie anywhere
        copied = {c.args[1] for c in loop.steps if isinstance(c, CallSpec) and not c.kernel}
        given = [("output", k) not in copied for k in range(len(carried), len(body.outputs))]
        slots = {row: self._slot(loop, row, ("input", k)) for k, row in enumerate(loop.scanned, len(carried))}
        slots |= {
            row: self._slot(loop, row, ("output", k)) if g else None
            for k, (row, g) in enumerate(zip(loop.gathered, given, strict=True), len(carried))
        }
        kept = self._kept_in_rows(loop)
        steps = [c for c in loop.steps if not any(c is copy for copy, _ in kept.values())]
        begin = frame.workspace + loop.workspace
        nodes = self.region.nodes[body]
        after = [first for first, *_ in carried]
        for t in range(loop.rounds):
            rows = {row: _row(row, frame, loop.rounds - 1 - t if row.backward else t) for row in slots}
            before = after
            after = []
            for k, (_, last, even, odd) in enumerate(carried):
                slot = [Operand("workspace", frame.workspace + at, last.nbytes) for at in (even, odd)]
                turn = last if t == loop.rounds - 1 else slot[t % 2]
                after.append(rows[kept[k][1]] if k in kept else turn)
            inner = _Frame(
                [*before, *(slots[r] or rows[r] for r in loop.scanned), *captured],
                [*after, *(slots[r] or rows[r] for r in loop.gathered)],
                begin,
                frame.rounds * loop.rounds,
            )
            for k, row in enumerate(loop.scanned):
                if slot_of := slots[row]:
                    self._copy(loop, rows[row], slot_of, inner.rounds, k)
            self._make(steps, nodes, inner)
            for k, row in enumerate(loop.gathered, len(loop.scanned)):
                if slot_of := slots[row]:
                    self._copy(loop, slot_of, rows[row], inner.rounds, k)

        for k, (copy, _) in kept.items():
            self._copy(copy, after[k], carried[k][1], frame.rounds)

    def _kept_in_rows(self, loop: LoopSpec) -> dict[int, tuple[CallSpec, RowSpec]]:
        """What is carried and gathered alike, by its number, with the copy to its row that it takes otherwise."""
        found: dict[int, tuple[CallSpec, RowSpec]] = {}
        count = len(loop.carried)
        for c in loop.steps:
            if not isinstance(c, CallSpec) or c.kernel or any(space != "output" for space, _ in c.args):
                continue
            (_, k), (_, to) = c.args
            if k < count <= to and k not in found:
                row = loop.gathered[to - count]
                if row.nbytes == c.nbytes and all(self._may_begin(loop, row, (s, k)) for s in _SPACES):
                    found[k] = c, row
        return found

    def _may_begin(self, loop: LoopSpec, row: RowSpec, place: Place) -> bool:
        """Whether what the steps of a round have at a place can lie where the row does."""
        if row.nbytes % self.alignment == 0:
            return True
        return self.anywhere and not any(self._is_wide(c, place) for c in loop.steps)

    def _is_wide(self, call: Call, place: Place) -> bool:
        """Whether a step accesses what is at a place by vectors, or may."""
        if not isinstance(call, CallSpec):
            return True
        wide = self.emitted[call.kernel].wide if call.kernel else frozenset[int]()
        return any(call.args[k] == place for k in wide)

    def _slot(self, loop: LoopSpec, row: RowSpec, place: Place) -> Operand | None:
        """A place for a row; none where each row can be an operand where it is."""
        if self._may_begin(loop, row, place):
            return None
        at = self.scratch
        self.scratch += _rounded(row.nbytes, self.alignment)
        return Operand("scratch", at, row.nbytes)


def launches_of(node: Node) -> int:
    """How many calls a recurrence comes to, at least."""
    if node.op is not SCAN:
        return 1
    rounds: int = node.attrs["rounds"]
    return rounds * sum(map(launches_of, node.attrs["body"].nodes))


def work(node: Node) -> tuple[int, int]:
    """Operations of a node, and bytes that it must read and write."""
    count = 0
    if node.op.express is not None:
        inputs = [te.placeholder(v.type.shape, v.type.dtype, v.name) for v in node.inputs]
        count = operations(list(express(node, inputs)))
    return count, traffic(node)


def _row(row: RowSpec, frame: _Frame, k: int) -> Operand:
    return frame.at(row.place, row.nbytes).moved(k * row.nbytes)


def _rounded(nbytes: int, alignment: int) -> int:
    return -(-nbytes // alignment) * alignment


def _sizes(kernel: Emitted, alignment: int) -> list[int]:
    return [_rounded(nbytes, alignment) for nbytes in kernel.buffers]


def _buffers(kernel: Emitted, alignment: int) -> Iterator[Operand]:
    """Where the buffers of a kernel lie that live from launch to launch."""
    at = 0
    for nbytes, size in zip(kernel.buffers, _sizes(kernel, alignment), strict=True):
        yield Operand("scratch", at, nbytes)
        at += size

"""Control flow: resolved while the model is imported, since a graph of ours has none.

A branch on a known condition is taken; on an unknown one both branches run and the result is selected, which is sound
because nodes have no effects. The number of rounds of a loop must be known. Few rounds are unrolled, and so are those
that differ, in shapes or in values that must be known; many rounds become one ``scan``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import onnx

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.body import Body, Rows
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import concat, normal_axis, reshape, take, transpose
from mlc.frontend.common.problems import UNKNOWN, Unknown
from mlc.frontend.onnx.order import Step
from mlc.frontend.onnx.scope import Frame, Known
from mlc.ir.graph import Value

Attrs = dict[str, Any]

_MOST_UNROLLED = 16  # rounds of a loop: what is known of each of them makes shorter and faster code of its own
_MOST_ROUNDS = 1 << 20  # of a Loop as a scan, which needs the number of each


class Walk(Protocol):
    """What control flow asks of the walk over the model (:class:`mlc.frontend.onnx.walk.ModelWalk`)."""

    ctx: Context

    def bind(self, frame: Frame, name: str, value: Known) -> None:
        """Let ``name`` stand for ``value``; a value that was made on the way takes the name over."""
        ...

    def enter_graph(
        self,
        frame: Frame,
        step: Step,
        graph: onnx.GraphProto,
        label: str,
        given: Sequence[Known],
        finish: Callable[[list[Known]], None],
    ) -> None:
        """Walk a subgraph next.

        Args:
            frame: where its node is.
            step: its node.
            graph: the subgraph; it sees the names of ``frame``.
            label: tells it from other subgraphs of the node.
            given: values of its inputs.
            finish: called with its outputs when it is done.
        Raises:
            ImportModelError: the number of inputs is wrong, or the nesting is beyond a limit.
        """
        ...

    def attempt(
        self, frame: Frame, step: Step, graph: onnx.GraphProto, label: str, given: Sequence[Known]
    ) -> list[Known] | None:
        """Walk a subgraph at once, and give its outputs; nothing where that fails, for whatever reason.

        Nodes that were appended stay; :meth:`Context.reset` takes them away.
        """
        ...

    def later(self, frame: Frame, step: Step, action: Callable[[], None]) -> None:
        """Do ``action`` when every body entered after this call is done."""
        ...

    def count(self) -> None:
        """One more unit of work against the limit ``nodes``."""
        ...


def _begin(walk: Walk, frame: Frame, step: Step) -> None:
    """Make what is appended from now on belong to the control-flow node."""
    walk.ctx.begin(frame.name_of(step), frame.source)


def _bind_all(walk: Walk, frame: Frame, step: Step, values: Sequence[Known]) -> None:
    if len(values) < len(step.outputs):
        raise ImportModelError(f"{len(step.outputs)} outputs, the subgraph gives {len(values)}")
    for name, value in zip(step.outputs, values, strict=False):
        walk.bind(frame, name, value)


def _scalar(walk: Walk, value: Known, what: str) -> Any:
    """A known operand of one element."""
    array = walk.ctx.require_const(value if isinstance(value, Value) else None, what)
    if array.size != 1:
        raise ImportModelError(f"{what} has {array.size} elements, not one")
    return array.reshape(-1)[0]


def convert_if(walk: Walk, frame: Frame, step: Step, inputs: Sequence[Known], attrs: Attrs) -> None:
    """Take a branch, or run both and select."""
    branches = {"else": attrs["else_branch"], "then": attrs["then_branch"]}
    condition = inputs[0]
    known = walk.ctx.const(condition) if isinstance(condition, Value) else None
    if known is not None:
        label = "then" if bool(_scalar(walk, condition, "the condition")) else "else"
        walk.enter_graph(frame, step, branches[label], label, (), lambda values: _bind_all(walk, frame, step, values))
        return
    results: dict[str, list[Known]] = {}

    def select() -> None:
        _begin(walk, frame, step)
        pairs = list(zip(results["then"], results["else"], strict=True))
        _bind_all(walk, frame, step, [_select(walk, condition, a, b) for a, b in pairs])

    walk.later(frame, step, select)
    for label, graph in branches.items():
        walk.enter_graph(frame, step, graph, label, (), partial(results.__setitem__, label))


def _select(walk: Walk, condition: Known, then: Known, otherwise: Known) -> Known:
    if not (isinstance(condition, Value) and isinstance(then, Value) and isinstance(otherwise, Value)):
        return UNKNOWN
    if (then.type.shape, then.type.dtype) != (otherwise.type.shape, otherwise.type.dtype):
        raise UnsupportedError(
            f"the branches give {then.type} and {otherwise.type}, and the condition is not known at compile time"
        )
    if condition.type.size != 1:
        raise ImportModelError(f"the condition has {condition.type.size} elements, not one")
    return walk.ctx.add("where", [reshape(walk.ctx, condition, ()), then, otherwise])


class _Rounds:
    """A loop that is being unrolled: values carried from round to round, and those gathered."""

    def __init__(self, walk: Walk, frame: Frame, step: Step, body: onnx.GraphProto, carried: Sequence[Known]) -> None:
        self.walk = walk
        self.frame = frame
        self.step = step
        self.body = body
        self.carried = list(carried)
        self.gathered: list[list[Known]] = []
        self.done = 0

    def enter(self, given: Sequence[Known], finish: Callable[[list[Known]], None]) -> None:
        """Walk the body once more."""
        self.walk.count()
        label = str(self.done)
        self.done += 1
        self.walk.enter_graph(self.frame, self.step, self.body, label, given, finish)

    def take(self, values: Sequence[Known]) -> None:
        """Results of a round: carried values first."""
        count = len(self.carried)
        self.carried = list(values[:count])
        self.gathered.append(list(values[count:]))

    def stop(self, axes: Sequence[int] = (), backwards: Sequence[bool] = ()) -> None:
        """Bind the outputs: carried values, then the gathered ones stacked along ``axes``."""
        _begin(self.walk, self.frame, self.step)
        wanted = self.step.outputs[len(self.carried) :]
        stacked: list[Known] = []
        for k, name in enumerate(wanted):
            items = [row[k] for row in self.gathered] if name else []
            if name and not items:
                raise UnsupportedError("the loop has no rounds, so the shape of what it gathers is not known")
            if k < len(backwards) and backwards[k]:
                items.reverse()
            stacked.append(_stack(self.walk, items, axes[k] if k < len(axes) else 0) if name else None)
        _bind_all(self.walk, self.frame, self.step, [*self.carried, *stacked])


def _stack(walk: Walk, items: Sequence[Known], axis: int) -> Known:
    values = [v for v in items if isinstance(v, Value)]
    if len(values) < len(items):
        return UNKNOWN
    shape = values[0].type.shape
    axis = normal_axis(axis, len(shape) + 1)
    if any(v.type.shape != shape for v in values):
        raise UnsupportedError("what the loop gathers changes its shape from round to round")
    rows = [reshape(walk.ctx, v, (*shape[:axis], 1, *shape[axis:])) for v in values]
    return concat(walk.ctx, rows, axis)


def _recur(
    walk: Walk,
    frame: Frame,
    step: Step,
    graph: onnx.GraphProto,
    rounds: int,
    carried: Sequence[Known],
    scanned: Sequence[Rows],
    backwards: Sequence[bool] = (),
    *,
    conditional: bool = False,
) -> list[Value | None] | None:
    """All rounds as one ``scan``, if they are all alike; otherwise nothing has happened.

    Args:
        walk, frame, step: where the loop is.
        graph: its body.
        rounds: how many there are.
        carried: values before the first round.
        scanned: tensors with a row for every round.
        backwards: which of the gathered tensors have the first round's row last.
        conditional: whether it is a Loop: it scans the number of the round, its body takes a condition after that,
            which is true, and gives one before all else.
    Returns:
        what is carried after the last round, then the stacked rows; nothing for those that nobody wants.
    """
    given = [v for v in carried if isinstance(v, Value)]
    if rounds <= _MOST_UNROLLED or len(given) < len(carried):
        return None
    ctx, count = walk.ctx, len(carried)
    mark = ctx.mark()
    body = Body(ctx, given, scanned)
    first = [*body.rows, ctx.constant(np.bool_(True), name="condition"), *body.state]
    values = walk.attempt(frame, step, graph, "round", first if conditional else [*body.state, *body.rows])
    results = [v for v in values or () if isinstance(v, Value)]
    alike = values is not None and len(results) == len(values) and not body.draws()
    if conditional and alike:
        known = ctx.const(results[0])
        alike = known is not None and bool(np.all(known))
        results = results[1:]
    state, rows = results[:count], results[count:]
    if alike and [v.type for v in state] == [v.type for v in given]:
        _begin(walk, frame, step)
        names = step.outputs[count:]
        wanted = [k for k, _ in enumerate(rows) if k < len(names) and names[k]]
        directions = [k < len(backwards) and backwards[k] for k in wanted]
        made = body.close(rounds, state, [Rows(rows[k], b) for k, b in zip(wanted, directions, strict=True)])
        stacked = dict(zip(wanted, made[count:], strict=True))
        # what constants alone decide is better known, round by round
        if not body.constant or all(ctx.const(v) is not None for v in made):
            return [*made[:count], *(stacked.get(k) for k in range(len(rows)))]
    ctx.reset(mark)
    return None


def convert_loop(walk: Walk, frame: Frame, step: Step, inputs: Sequence[Known], attrs: Attrs) -> None:
    """A loop whose number of rounds is known, or decided by constants.

    Raises:
        UnsupportedError: it has no end that is known.
        ImportModelError: its body and operands do not fit together.
    """
    trips, condition, *carried = [*inputs, None, None][: max(2, len(inputs))]
    if isinstance(trips, Unknown) or isinstance(condition, Unknown):
        raise UnsupportedError("its number of rounds depends on operators that are not supported")
    limit = None if trips is None else int(_scalar(walk, trips, "the number of rounds"))
    running = condition is None or bool(_scalar(walk, condition, "the condition"))
    if trips is None and condition is None:
        raise UnsupportedError("the loop never ends")
    rounds = _Rounds(walk, frame, step, attrs["body"], carried)
    if len(rounds.body.output) < 1 + len(carried):
        raise ImportModelError(f"the body has {len(rounds.body.output)} outputs, at least {1 + len(carried)} expected")
    if running and limit is not None and _MOST_UNROLLED < limit <= _MOST_ROUNDS:
        _begin(walk, frame, step)
        numbers = Rows(walk.ctx.constant(np.arange(limit), name="rounds"))
        results = _recur(walk, frame, step, rounds.body, limit, carried, [numbers], conditional=True)
        if results is not None:
            _bind_all(walk, frame, step, results)
            return

    def advance(running: bool) -> None:
        if not running or (limit is not None and rounds.done >= limit):
            rounds.stop()
            return
        _begin(walk, frame, step)
        number = walk.ctx.constant(np.int64(rounds.done), name="round")
        rounds.enter([number, walk.ctx.constant(np.bool_(True), name="condition"), *rounds.carried], after)

    def after(values: list[Known]) -> None:
        rounds.take(values[1:])
        if any(isinstance(v, Unknown) for v in values):
            # what is not supported in the body has been noted in this round
            rounds.stop()
            return
        advance(bool(_scalar(walk, values[0], "the condition to go on")))

    advance(running)


def convert_scan(walk: Walk, frame: Frame, step: Step, inputs: Sequence[Known], attrs: Attrs) -> None:
    """A scan: the number of rounds is an extent.

    Raises:
        UnsupportedError: it is older than operator set 9, or its operands are not known.
        ImportModelError: its body and operands do not fit together.
    """
    if frame.opsets[""] < 9:
        raise UnsupportedError("defined before operator set 9, the oldest understood")
    body = attrs["body"]
    scanned_count = attrs["num_scan_inputs"]
    carried_count = len(inputs) - scanned_count
    if not 0 < scanned_count <= len(inputs) or len(body.output) < carried_count:
        raise ImportModelError(
            f"{scanned_count} of {len(inputs)} inputs to scan, {len(body.output)} outputs of the body"
        )
    scanned = inputs[carried_count:]
    gathered_count = len(body.output) - carried_count
    in_axes = _per_item(attrs, "scan_input_axes", scanned_count)
    in_backwards = _per_item(attrs, "scan_input_directions", scanned_count)
    out_axes = _per_item(attrs, "scan_output_axes", gathered_count)
    out_backwards = _per_item(attrs, "scan_output_directions", gathered_count)
    if any(isinstance(v, Unknown) for v in scanned):
        raise UnsupportedError("its operands depend on operators that are not supported")
    axes = [normal_axis(a, v.type.rank) for a, v in zip(in_axes, scanned, strict=True)]  # type: ignore[union-attr]
    extents = {v.type.shape[a] for a, v in zip(axes, scanned, strict=True)}  # type: ignore[union-attr]
    if len(extents) != 1:
        raise ImportModelError(f"the scanned inputs differ in length: {sorted(extents)}")
    (length,) = extents
    if length > _MOST_UNROLLED:
        _begin(walk, frame, step)
        mark = walk.ctx.mark()
        pairs = zip(scanned, axes, in_backwards, strict=True)
        stacked = [Rows(_moved(walk.ctx, v, a, 0), bool(back)) for v, a, back in pairs if isinstance(v, Value)]
        directions = [bool(b) for b in out_backwards]
        results = _recur(walk, frame, step, body, length, inputs[:carried_count], stacked, directions)
        if results is not None:
            gathered = [
                v if v is None else _moved(walk.ctx, v, 0, normal_axis(a, v.type.rank))
                for v, a in zip(results[carried_count:], out_axes, strict=True)
            ]
            _bind_all(walk, frame, step, [*results[:carried_count], *gathered])
            return
        walk.ctx.reset(mark)
    rounds = _Rounds(walk, frame, step, body, inputs[:carried_count])

    def advance() -> None:
        if rounds.done == length:
            rounds.stop(out_axes, [bool(b) for b in out_backwards])
            return
        _begin(walk, frame, step)
        rows = [
            take(walk.ctx, v, a, length - 1 - rounds.done if back else rounds.done)  # type: ignore[arg-type]
            for v, a, back in zip(scanned, axes, in_backwards, strict=True)
        ]
        rounds.enter([*rounds.carried, *rows], after)

    def after(values: list[Known]) -> None:
        rounds.take(values)
        if any(isinstance(v, Unknown) for v in values):
            rounds.stop()
        else:
            advance()

    advance()


def _moved(ctx: Context, x: Value, source: int, target: int) -> Value:
    """``x`` with one axis at another place."""
    order = [d for d in range(x.type.rank) if d != source]
    order.insert(target, source)
    return x if source == target else transpose(ctx, x, order)


def _per_item(attrs: Attrs, name: str, count: int) -> list[int]:
    values = list(attrs.get(name, ())) or [0] * count
    if len(values) != count:
        raise ImportModelError(f"attribute {name!r} has {len(values)} values, {count} expected")
    return values


Control = Callable[[Walk, Frame, Step, Sequence[Known], Attrs], None]
CONTROL_FLOW: dict[str, Control] = {
    "If": convert_if,
    "Loop": convert_loop,
    "Scan": convert_scan,
}

# what each does not cover, for the list of operators
LIMITS: dict[str, str] = {
    "If": "branches of equal shapes where the condition is not known at compile time; no sequences",
    "Loop": "number of rounds known at compile time; no sequences",
    "Scan": "since operator set 9",
}

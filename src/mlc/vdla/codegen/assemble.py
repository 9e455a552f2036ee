"""The last steps of a region: micro-ops get places, tokens are set, and all becomes a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlc.vdla.codegen.constants import Constants
from mlc.vdla.codegen.order import in_order_of_begin
from mlc.vdla.codegen.stream import Step
from mlc.vdla.codegen.structural import GivenTokens
from mlc.vdla.codegen.tokens import insert_tokens
from mlc.vdla.codegen.uops import place_uops
from mlc.vdla.config import VdlaConfig
from mlc.vdla.isa.instruction import Finish, Unit
from mlc.vdla.program import ALIGNMENT, BufferKind, BufferSpec, Program, legal_names


@dataclass(frozen=True)
class Dram:
    """A buffer in DRAM.

    Args:
        name: of any kind; the program's is the nearest legal one that is free.
        kind: who fills it, see ``BufferSpec``.
        nbytes: size; that of a constant follows from what was packed into it.
    """

    name: str
    kind: BufferKind
    nbytes: int = 0


@dataclass(frozen=True)
class Task:
    """What a layer asks for, whatever the program then does besides.

    Args:
        name: for reports.
        macs: multiplications.
        nbytes: of its tensors, each once, without padding.
    """

    name: str
    macs: int
    nbytes: int


def assemble(
    config: VdlaConfig,
    steps: Sequence[Step],
    buffers: Sequence[Dram],
    constants: Constants,
    layers: Sequence[Task],
    given: GivenTokens | None = None,
) -> Program:
    """A program from a stream without micro-op addresses and tokens.

    Args:
        config: the accelerator.
        steps: the stream, without FINISH.
        buffers: what the steps' buffers are, by index.
        constants: contents of those of kind ``const``.
        layers: those that steps belong to.
        given: what has set the stream's tokens already, if they come from the structure of kernels.
    """
    finish = Step(Finish(), layer=steps[-1].layer if steps else 0)
    if given is not None:
        given.finish(finish)
    done, uops = place_uops([*steps, finish], config, len(buffers))
    if given is None:
        written = {k: b.nbytes for k, b in enumerate(buffers) if b.kind in ("temp", "out")}
        done = insert_tokens(in_order_of_begin(done, config, written), config, written)
    specs: list[BufferSpec] = []
    data, at = bytearray(), {}
    *names, uops_name = legal_names([*(b.name for b in buffers), "uops"])
    for k, (name, b) in enumerate(zip(names, buffers, strict=True)):
        at[k] = len(specs)
        if b.kind != "const":
            specs.append(BufferSpec(name, b.kind, b.nbytes))
            continue
        contents = constants.contents(k)
        if not contents:  # the memories held the same bytes whenever they were wanted
            continue
        data += bytes(-len(data) % ALIGNMENT)
        # a power of two, as blocks of channels are
        alignment = max(ALIGNMENT, config.wgt_element, config.acc_element)
        specs.append(BufferSpec(name, b.kind, len(contents), alignment, len(data)))
        data += contents
    at[len(buffers)] = len(specs)
    if uops.size:
        specs.append(BufferSpec(uops_name, "uop", uops.nbytes))
    return Program(
        config,
        [s.insn for s in done],
        uops,
        bytes(data),
        specs,
        {i: at[s.buffer] for i, s in enumerate(done) if s.buffer >= 0},
        {"layers": _ranges(layers, done)},
    )


def _ranges(layers: Sequence[Task], steps: Sequence[Step]) -> list[dict[str, object]]:
    """Where the instructions of each layer are, for reports: a layer begins where CMP comes to it.

    What was loaded for it before counts for the layer in which it was loaded.
    """
    begins: dict[int, int] = {}
    for i, step in enumerate(steps):
        if step.insn.unit is Unit.CMP and step.touched is not None:
            begins.setdefault(step.layer, i)
    ends = [len(steps)] * len(layers)
    for k in range(len(layers) - 1, 0, -1):  # a layer of which CMP does nothing is empty
        ends[k - 1] = begins.get(k, ends[k])
    firsts = [0, *ends[:-1]]
    return [
        {"name": task.name, "first": begin, "last": end, "macs": task.macs, "bytes": task.nbytes}
        for task, begin, end in zip(layers, firsts, ends, strict=True)
    ]

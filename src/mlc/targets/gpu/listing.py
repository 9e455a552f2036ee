"""The code of a program's kernels as text, and what they take of a device; no device is needed for either."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from mlc.targets.gpu.program import Command, GpuProgram, Resources, Step
from mlc.targets.gpu.record import Gpu


@dataclass(frozen=True)
class KernelReport:
    """A launch of a kernel as it stands in a program.

    Args:
        kernel: the function.
        steps: how often it is launched.
        sources: nodes of the model that it computes, of the first such step.
        grid, block: blocks, and threads of each, along x, y and z.
        flops, bytes: operations, and what must be read and written at least, of the whole step that it is of.
        bound: what bounds that step on the device: ``compute``, ``memory``, or ``launch`` where it is too small.
        shared: bytes of shared memory of a block.
        resources: what the compiler says, by architecture; empty where the driver compiles.
        occupancy: the share of a multiprocessor's threads that its blocks fill, by architecture; where the driver
            compiles, the one of no name is what threads and shared memory allow.
    """

    kernel: str
    steps: int
    sources: tuple[str, ...]
    grid: tuple[int, ...]
    block: tuple[int, ...]
    flops: int
    bytes: int
    bound: str
    shared: int
    resources: dict[str, Resources]
    occupancy: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def bound_of(step: Step, record: Gpu, peak: float | None = None, launches: int = 1) -> str:
    """What a step's time is made of where all goes well.

    Args:
        step: the step.
        record: of the device.
        peak: 10^9 operations a second that the units which it uses can do; single precision unless given.
        launches: that the step takes.
    """
    compute, memory = step.flops / ((peak or record.gflops) * 1e9), step.bytes / (record.gbytes * 1e9)
    if max(compute, memory) < launches * record.launch_us * 1e-6:
        return "launch"
    return "compute" if compute > memory else "memory"


def profiled(
    program: GpuProgram, seconds: Sequence[float], record: Gpu | None, occupancy: Callable[[Command], float | None]
) -> list[dict[str, Any]]:
    """What a report says of each step; see :class:`~mlc.runtime.device.Profiled`.

    Args:
        program: whose steps.
        seconds: of each.
        record: of the device, where it is known.
        occupancy: of a launch, where that is known.
    """
    of: dict[int, list[Command]] = {}
    for c in program.commands:
        of.setdefault(c.step, []).append(c)
    found = []
    for k, (s, took) in enumerate(zip(program.steps, seconds, strict=True)):
        row = {"name": s.kernel, "seconds": took, "flops": s.flops, "bytes": s.bytes, "sources": list(s.sources)}
        launches = [c for c in of.get(k, ()) if c.kernel]
        if launches and record is not None:
            peak = record.gflops * _faster(program.source, {c.kernel for c in launches}, record)
            row["bound"] = bound_of(s, record, peak, len(launches))
            row["least_seconds"] = max(s.flops / (peak * 1e9), s.bytes / (record.gbytes * 1e9))
        if launches and all(prod((*c.grid, *c.block)) == 1 for c in launches):
            row["note"] = "one thread"
        main = max(launches, key=lambda c: prod((*c.grid, *c.block)), default=None)
        if main is not None and (share := occupancy(main)) is not None:
            row["occupancy"] = share
        found.append(row)
    return found


def _faster(source: str, functions: Collection[str], record: Gpu) -> float:
    """How much faster than in single precision the units are that functions use."""
    used = re.search(r"\bmlc_mma_([a-z0-9]+)_\w+<", source_of_functions(source, sorted(functions)))
    if used is None or not record.tensor_gflops:
        return 1.0
    return record.tensor_peak(used[1]) / record.gflops


def launched(program: GpuProgram) -> dict[str, list[Command]]:
    """Commands that launch each function, in order of the first."""
    found: dict[str, list[Command]] = {}
    for c in program.commands:
        if c.kernel:
            found.setdefault(c.kernel, []).append(c)
    return found


def functions_of(program: GpuProgram, kernel: str) -> list[str]:
    """Functions of a kernel, which may be named itself or by one of its functions."""
    of = {name: program.steps[commands[0].step].kernel for name, commands in launched(program).items()}
    return [name for name, step in of.items() if kernel in (name, step)]


def source_of(program: GpuProgram, functions: Sequence[str]) -> str:
    """Functions in the device's language."""
    return source_of_functions(program.source, functions)


def source_of_functions(source: str, functions: Sequence[str]) -> str:
    """The same, of a whole text."""
    return _cut(source, functions, r"^[^\n]*\b{name}\([^\n]*\{{$.*?^\}}\n")


def assembly_of(assembly: str, functions: Sequence[str]) -> str:
    """Functions of an assembly: PTX."""
    return _cut(assembly, functions, r"^\.visible \.entry {name}\(.*?^\}}\n")


def code_of(listing: str, functions: Sequence[str]) -> str:
    """Functions of machine code, as the disassembler prints it."""
    return _cut(listing, functions, r"^//-+ \.text\.{name}\s.*?(?=^//-{{5}}|\Z)")


def _cut(text: str, functions: Sequence[str], pattern: str) -> str:
    found = (re.search(pattern.format(name=re.escape(name)), text, re.MULTILINE | re.DOTALL) for name in functions)
    return "\n".join(m[0].rstrip() + "\n" for m in found if m is not None)

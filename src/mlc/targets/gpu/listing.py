"""The code of a program's kernels as text, and what they take of a device; no device is needed for either."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
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
        resources: what the compiler says, by architecture; empty where the driver compiles.
        occupancy: the share of a multiprocessor's threads that its blocks fill, by architecture.
    """

    kernel: str
    steps: int
    sources: tuple[str, ...]
    grid: tuple[int, ...]
    block: tuple[int, ...]
    flops: int
    bytes: int
    bound: str
    resources: dict[str, Resources]
    occupancy: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def bound_of(step: Step, record: Gpu) -> str:
    """What a step's time is made of where all goes well."""
    compute, memory = step.flops / (record.gflops * 1e9), step.bytes / (record.gbytes * 1e9)
    if max(compute, memory) < record.launch_us * 1e-6:
        return "launch"
    return "compute" if compute > memory else "memory"


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
    return _cut(program.source, functions, r"^[^\n]*\b{name}\([^\n]*\{{$.*?^\}}\n")


def assembly_of(assembly: str, functions: Sequence[str]) -> str:
    """Functions of an assembly: PTX."""
    return _cut(assembly, functions, r"^\.visible \.entry {name}\(.*?^\}}\n")


def code_of(listing: str, functions: Sequence[str]) -> str:
    """Functions of machine code, as the disassembler prints it."""
    return _cut(listing, functions, r"^//-+ \.text\.{name}\s.*?(?=^//-{{5}}|\Z)")


def _cut(text: str, functions: Sequence[str], pattern: str) -> str:
    found = (re.search(pattern.format(name=re.escape(name)), text, re.MULTILINE | re.DOTALL) for name in functions)
    return "\n".join(m[0].rstrip() + "\n" for m in found if m is not None)

"""What the kernels of a package are expected to take on the processor that it was compiled for."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from mlc.errors import PackageError, UsageError
from mlc.fields import as_object, told_as

if TYPE_CHECKING:
    from mlc.runtime import Package


@dataclass(frozen=True)
class KernelEstimate:
    """A kernel of a package.

    Args:
        kernel: its name.
        steps: how often a run of the model calls it.
        cycles: of one call, on one core.
        share: of the cycles that the record's multiply-adds of f32 alone take; more than 1 for narrow numbers.
        bound: what most of the cycles are spent waiting for.
        busy: cycles by what they would be if there were nothing else.
        instructions, multiply_adds: of an iteration of the innermost loop with the most products; 0 without one.
        loop_cycles: of that iteration, by ``llvm-mca``; ``None`` where that is not installed or does not know the
            processor.
        loop_least: cycles that the busiest unit of the core is needed for meanwhile, likewise.
    """

    kernel: str
    steps: int
    cycles: float
    share: float
    bound: str
    busy: dict[str, float]
    instructions: int = 0
    multiply_adds: int = 0
    loop_cycles: float | None = None
    loop_least: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def estimates(package: Package) -> list[KernelEstimate]:
    """The kernels of a package, in the order of their first call.

    Raises:
        UsageError: it has no estimates: it was compiled for the machine that compiled it, or for a device.
        PackageError: it is damaged.
    """
    from mlc.api.packages import assembly
    from mlc.harness import listing
    from mlc.targets.cpu.estimate import Estimate
    from mlc.targets.cpu.loops import analysed, heaviest_loop
    from mlc.targets.cpu.target import ESTIMATES

    name, target = f"src/{ESTIMATES}", package.manifest.target
    if name not in package.names():
        raise UsageError(
            f"{package.path}: holds no estimates: it was compiled for the machine at hand, or for a device",
            hint="measure it with mlc run --profile, or compile it with -mcpu=NAME",
        )
    with told_as(PackageError):
        found = as_object(_parsed(package.read(name)), name, Estimate.from_json)
    peak = 2 * int(target.details["vector_bits"]) // 32 * int(target.details["multiply_adds"])
    texts = {"src/model.s": assembly(package)}
    rows = []
    for kernel, facts in _called(package).items():
        if kernel not in found:
            continue
        e, code = found[kernel], heaviest_loop(listing.assembly(texts, kernel))
        share = facts[1] / facts[0] / peak / e.cycles if e.cycles else 0.0
        row = KernelEstimate(kernel, facts[0], e.cycles, round(share, 3), e.bound, e.busy)
        if code is not None:
            code = analysed(code, target.triple, target.cpu)
            row = replace(
                row,
                instructions=len(code.text),
                multiply_adds=code.multiply_adds,
                loop_cycles=code.cycles,
                loop_least=code.least,
            )
        rows.append(row)
    return rows


def _parsed(text: bytes) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise PackageError(f"is not JSON: {error}") from None


def _called(package: Package) -> dict[str, tuple[int, int]]:
    """Calls and operations of each kernel."""
    found: dict[str, tuple[int, int]] = {}
    for step, times in package.manifest.calls:
        calls, flops = found.get(step.kernel, (0, 0))
        found[step.kernel] = calls + times, flops + step.flops
    return found

"""What a model takes on a small processor: measured where that is this machine's, else cycles by the cost model."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

import mlc
from benchmarks import machine
from benchmarks.stats import Spread
from benchmarks.zoo import sample_inputs
from mlc.api import estimates
from mlc.api.estimates import KernelEstimate
from mlc.runtime import open_package
from mlc.runtime.toolchain import is_here
from mlc.targets.base import get_target
from mlc.targets.cpu.target import CpuTarget

TARGET = "arm -mcpu=cortex-a53"
CLOCK = 1.2  # GHz, of the TVM paper's board
ROUNDS = 20


@dataclass(frozen=True)
class Cost:
    """What one run of a model takes on one core.

    Args:
        milliseconds: median.
        cycles: that the cost model expects; ``None`` where the time was measured.
        kernels: what it says of each.
    """

    milliseconds: float
    cycles: float | None = None
    kernels: tuple[KernelEstimate, ...] = ()

    @property
    def bound(self) -> str:
        """What most of the cycles are spent waiting for; "" where nothing is known of that."""
        total: dict[str, float] = {}
        for k in self.kernels:
            total[k.bound] = total.get(k.bound, 0.0) + k.cycles * k.steps
        return max(total, key=lambda name: total[name], default="")


def is_measured(target: str) -> bool:
    """Whether times are taken: the target is this machine's processor."""
    machine = get_target(target)
    return isinstance(machine, CpuTarget) and machine.native and is_here(machine.triple)


def cost_of(model: onnx.ModelProto, target: str, clock: float, disabled: Sequence[str] = ()) -> Cost:
    """What a model takes.

    Args:
        model: of the zoo.
        target: what for.
        clock: in GHz, of a processor that is not here.
        disabled: passes to leave out.
    """
    with tempfile.TemporaryDirectory(prefix="mlc-") as folder:
        path = Path(folder) / "module.tar"
        onnx.save(model, Path(folder) / "m.onnx")
        package = mlc.compile(mlc.load(Path(folder) / "m.onnx"), target, disabled_passes=disabled, records=[])
        if is_measured(target):
            inputs, times = sample_inputs(model), []
            with package.load(1) as module:
                for _ in range(ROUNDS + 1):
                    start = time.perf_counter()
                    module.run(inputs)
                    times.append((time.perf_counter() - start) * 1e3)
            return Cost(Spread.of(times[1:]).median)
        package.save(path)
        with open_package(path) as opened:
            found = tuple(estimates(opened))
    cycles = sum(k.cycles * k.steps for k in found)
    return Cost(cycles / clock / 1e6, cycles, found)


def what(target: str, clock: float) -> dict[str, str]:
    """What the numbers are, and of which machine where they are of one."""
    if is_measured(target):
        return {**machine.describe(), "numbers": "times on one core"}
    modelled = f"cycles that the cost model expects of one core ({target}), at {clock} GHz: no such board was at hand"
    return {"numbers": modelled, "packages": machine.describe()["packages"]}

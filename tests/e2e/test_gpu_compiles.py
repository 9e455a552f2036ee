"""All of the zoo, as large as it is, compiles for GPUs without one, and no default kernel of it spills registers.

The test with the marker ``slow`` is the whole sweep; the others are a sample of it.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import mlc
from benchmarks.zoo import MODELS, build
from mlc.targets.gpu.program import GpuProgram

CUDA, MALI = "cuda -arch=sm_75,sm_80,sm_90", "opencl -device=mali"
QUICK = ("C1", "D2")


def programs_of(model: onnx.ModelProto, target: str, folder: Path) -> list[GpuProgram]:
    """What the device runs of a model, which is all of it."""
    onnx.save(model, folder / "model.onnx")
    package = mlc.compile(mlc.load(folder / "model.onnx"), target, records=[])
    assert all(d.region for d in package.offloads)
    return [
        GpuProgram.from_bytes(Path(data).read_bytes() if isinstance(data, Path) else data)
        for name, data in package.members.items()
        if name.endswith((".cuda", ".opencl"))
    ]


def spills(programs: list[GpuProgram]) -> dict[str, str]:
    """Kernels that spill, by architecture and name."""
    return {
        f"{image.arch} {name}": f"{r.spill_stores} bytes stored, {r.spill_loads} loaded"
        for program in programs
        for image in program.images
        for name, r in image.resources.items()
        if r.spill_stores or r.spill_loads
    }


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in MODELS])
def test_the_zoo_compiles_for_three_generations(name: str, tmp_path: Path) -> None:
    programs = programs_of(build(name), CUDA, tmp_path)
    assert programs
    assert all([i.arch for i in p.images] == ["sm_75", "sm_80", "sm_90"] for p in programs)
    assert all(set(i.resources) >= {c.kernel for c in p.commands if c.kernel} for p in programs for i in p.images)
    assert not spills(programs)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in MODELS])
def test_the_zoo_compiles_for_mali(name: str, tmp_path: Path) -> None:
    programs = programs_of(build(name), MALI, tmp_path)
    assert programs
    assert not any("__local" in p.source or "barrier" in p.source for p in programs)

"""The zoo, as large as it is, light models, models of others and operators compile for GPUs without one.

The zoo does so in half precision, too. No default kernel of it or the light models spills registers. Tests with the
marker ``slow`` are the whole sweep, the others a sample.
"""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import pytest

import mlc
from benchmarks.zoo import MODELS, build
from mlc.build import build_package
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import get_target
from mlc.targets.gpu.program import GpuProgram, unpack
from tests.e2e.opencl.test_operators import FILES, evaluations, family, first_of_each, model_of
from tests.e2e.test_zoo import LIGHT

CUDA, MALI = "cuda -arch=sm_75,sm_80,sm_90", "opencl -device=mali"
QUICK = ("C1", "D2", "BMM1")
QUICK_OPERATORS = ("test_softmax", "test_index")
SHARED = [
    f"mlperf_tiny_{name}.tflite"
    for name in (
        "ad01_f32",
        "ad01_int8",
        "kws_f32",
        "kws_int8",
        "resnet8_f32",
        "resnet8_int8",
        "vww96_f32",
        "vww96_int8",
    )
]


def programs_of(model: onnx.ModelProto, target: str, folder: Path, *, fp16: bool) -> list[GpuProgram]:
    """What the device runs of a model, which is all of it."""
    onnx.save(model, folder / "model.onnx")
    return programs_from(mlc.load(folder / "model.onnx"), target, fp16=fp16)


def programs_from(model: mlc.Model, target: str, *, fp16: bool = False) -> list[GpuProgram]:
    package = mlc.compile(model, target, records=[], fp16=fp16)
    assert all(d.region for d in package.offloads)
    return [
        program
        for name, data in package.members.items()
        if name.endswith((".cuda", ".opencl"))
        for program in unpack(Path(data).read_bytes() if isinstance(data, Path) else data)
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


in_zoo = pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in MODELS])
in_both_precisions = pytest.mark.parametrize("fp16", [False, True], ids=["f32", "f16"])


@pytest.mark.timeout(1800)
@in_both_precisions
@in_zoo
def test_the_zoo_compiles_for_three_generations(name: str, fp16: bool, tmp_path: Path) -> None:
    programs = programs_of(build(name), CUDA, tmp_path, fp16=fp16)
    assert programs
    check_architectures(programs)
    assert all(set(i.resources) >= {c.kernel for c in p.commands if c.kernel} for p in programs for i in p.images)
    assert not spills(programs)


@pytest.mark.timeout(1800)
@in_both_precisions
@in_zoo
def test_the_zoo_compiles_for_mali(name: str, fp16: bool, tmp_path: Path) -> None:
    programs = programs_of(build(name), MALI, tmp_path, fp16=fp16)
    assert programs
    assert not any("__local" in p.source or "barrier" in p.source for p in programs)


def check_architectures(programs: list[GpuProgram]) -> None:
    assert programs
    archs = [[i.arch for i in p.images] for p in programs]
    assert archs == [["sm_90"], ["sm_80"], ["sm_75"]] * (len(programs) // 3)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", LIGHT, ids=lambda p: p.stem)
def test_light_models_compile(path: Path) -> None:
    model = mlc.load(path)
    programs = programs_from(model, CUDA)
    check_architectures(programs)
    assert not spills(programs)
    assert programs_from(model, MALI)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif("MLC_SHARED_MODELS" not in os.environ, reason="MLC_SHARED_MODELS names no folder")
@pytest.mark.parametrize("name", SHARED)
def test_models_of_others_compile(name: str) -> None:
    """Without their first and last steps, where those are of types of which the device knows nothing."""
    model = mlc.load(Path(os.environ["MLC_SHARED_MODELS"]) / name)
    check_architectures(programs_from(model, CUDA))
    assert programs_from(model, MALI)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "file", [f if f.stem in QUICK_OPERATORS else pytest.param(f, marks=pytest.mark.slow) for f in FILES], ids=family
)
def test_operators_compile(file: Path) -> None:
    """What the operator tests evaluate, the first time of each with operands of each type."""
    some = first_of_each(evaluations(file))
    graph, _, _ = model_of(some)
    for target in (CUDA, MALI):
        built = build_package(graph, get_target(target), CompileOptions("operators", "tests", "0" * 64), Observer())
        known = "of which the device knows nothing"
        assert all(known in d.reason for d in built.offloads if not d.region)

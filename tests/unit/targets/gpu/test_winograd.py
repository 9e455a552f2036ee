"""Winograd's convolutions on devices: when they are chosen, and what they are made of."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.build import build_package
from mlc.ir.graph import Builder, Graph
from mlc.ir.types import TensorType, f32
from mlc.ops import get
from mlc.ops.algorithms import Algorithm
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import get_target
from mlc.targets.cuda.arch import DEVICES
from mlc.targets.cuda.dialect import CUDA_C
from mlc.targets.gpu.emit import emit, source_of
from mlc.targets.gpu.kernel import kernel
from mlc.targets.gpu.program import GpuProgram, unpack
from mlc.targets.gpu.scalars import Scalars
from mlc.targets.gpu.schedules.winograd import winograd_algorithms
from tests.unit.targets.gpu.groups import Case, winograd

A100 = DEVICES["a100"]


def known(channels: int, pixels: int, filters: int) -> tuple[Algorithm, ...]:
    x, w = TensorType((1, channels, pixels, pixels), f32), TensorType((filters, channels, 3, 3), f32)
    return winograd_algorithms(x, w, (1, 1, 1, 1), A100)


def test_it_is_taken_where_it_saves_more_than_its_transforms_cost() -> None:
    assert known(256, 14, 256)[0] is Algorithm.WINOGRAD_4
    assert known(3, 224, 64)[0] is Algorithm.DIRECT


def test_there_is_a_choice_wherever_it_is_possible() -> None:
    assert set(known(8, 9, 8)) == {Algorithm.DIRECT, Algorithm.WINOGRAD_2, Algorithm.WINOGRAD_4}


def program(graph: Graph, target: str, **options: object) -> GpuProgram:
    settings = CompileOptions("m", "tests", "0" * 64, **options)  # type: ignore[arg-type]
    package = build_package(graph, get_target(target), settings, Observer())
    (data,) = (data for name, data in package.members.items() if name.endswith((".cuda", ".opencl")))
    assert isinstance(data, bytes)
    return unpack(data)[0]


def model() -> Graph:
    b = Builder("m")
    weights = np.random.default_rng(0).standard_normal((128, 128, 3, 3)).astype(np.float32)
    attrs = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}
    inputs = [b.input("x", TensorType((1, 128, 14, 14), f32)), b.constant(weights, "w")]
    return b.finish(b.add(get("conv"), inputs, attrs))


@pytest.mark.parametrize(
    "options, launches",
    [({}, 3), ({"disabled_passes": ("winograd",)}, 1), ({"fast_math": False}, 1)],
    ids=["as it is", "without the pass", "exact"],
)
def test_a_model_has_three_launches_a_convolution(options: dict[str, object], launches: int) -> None:
    found = program(model(), "opencl -device=generic", **options)
    assert len(found.commands) == launches


def test_half_precision_is_convolved_directly() -> None:
    found = program(model(), "opencl -device=generic", fp16=True)
    assert "points" not in found.source


def test_products_of_points_are_made_by_tensor_cores_where_these_are_asked_for() -> None:
    record = get_target("cuda -arch=sm_80 -tf32=on").accelerator.record  # type: ignore[union-attr]
    case = Case.made("k", lambda b: [winograd(b, (1, 16, 16, 16), 16, 4)])
    scalars = Scalars(CUDA_C)
    emitted = emit(kernel(case.node, "k", record), scalars)
    text = source_of(scalars, [emitted.text])
    first, second, third = (text.index(f" {one.name}(") for one in emitted.launches)
    assert first < second < text.index("mlc_mma", second) < third


@pytest.mark.parametrize("shape, tile", [((1, 2, 224, 224), 4), ((1, 2, 12, 62, 90), 2)])
def test_tiles_of_large_images_are_told_apart(shape: tuple[int, ...], tile: int) -> None:
    """The checker does so by the structure of fused loops: there are too many elements to count them."""
    slices = (3,) * (len(shape) - 4)
    kernel(Case.made("k", lambda b: [winograd(b, shape, 64, tile, slices=slices)]).node, "k", A100)

"""Products by a unit for whole matrices: what there is to choose, and whatever is chosen means the same."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from mlc.ir.graph import Builder, Graph
from mlc.ir.interp.loop import run_function
from mlc.ir.types import TensorType, bf16, u8
from mlc.lower.knobs import Factors, Permutation
from mlc.ops import get
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import get_target
from mlc.targets.cpu.matrix import Sums
from mlc.targets.cpu.schedules.matrix_tile import Work, best_rows
from mlc.tuning.features import LoopFeatures
from mlc.tuning.task import Task, candidate, tasks_of

TARGET = get_target("x86 -mcpu=sapphirerapids")
OPTIONS = CompileOptions("matrices", "onnx", "")


def _convolution(
    c: int, o: int, k: int, size: tuple[int, int], stride: int = 1, groups: int = 1
) -> Callable[[], Graph]:
    def graph() -> Graph:
        g, rng = Builder("convolution"), np.random.default_rng(c)
        x = g.input("x", TensorType((1, c, *size), u8))
        w = g.constant(rng.integers(-128, 128, (o, c // groups, k, k), np.int8), "w")
        attrs = {"strides": (stride, stride), "pads": (k // 2,) * 4, "dilations": (1, 1), "groups": groups}
        (y,) = g.add(get("conv"), [x, w], attrs, names=["y"])
        return g.finish([y])

    return graph


def _product(m: int, k: int, n: int, *, wide: bool = False) -> Callable[[], Graph]:
    def graph() -> Graph:
        g, rng = Builder("product"), np.random.default_rng(k)
        x = g.input("x", TensorType((m, k), bf16 if wide else u8))
        w = rng.integers(-8, 8, (k, n)).astype(ml_dtypes.bfloat16 if wide else np.int8)
        (y,) = g.add(get("matmul_wide" if wide else "matmul"), [x, g.constant(w, "w")], names=["y"])
        return g.finish([y])

    return graph


def _task(graph: Graph) -> Task:
    return tasks_of(graph, TARGET, OPTIONS, Observer())[-1]


LARGE, SMALL = 100_000, 1_000
SPACES = {
    "image": (_convolution(64, 64, 3, (28, 28)), "image", LARGE),
    "pixels": (_convolution(256, 64, 1, (56, 56)), "image", LARGE),
    "gathered": (_convolution(512, 512, 3, (7, 7)), "gathered", LARGE),
    "runs": (_convolution(3, 32, 3, (224, 224), 2), "runs", LARGE),
    "product": (_product(128, 768, 768), None, LARGE),
    "product of bf16": (_product(128, 768, 768, wide=True), None, LARGE),
    "rows that fill no matrix": (_product(197, 768, 768), None, LARGE),
    "windows of bytes": (_convolution(96, 96, 3, (56, 56), groups=96), None, SMALL),
}


@pytest.mark.parametrize("name", SPACES)
def test_there_are_tilings_and_orders_to_choose(name: str) -> None:
    graph, way, least = SPACES[name]
    space = _task(graph()).space
    assert space.size >= least
    assert {Factors, Permutation} <= {type(k) for k in space.knobs}
    assert space.default.get("matrices") == way


MEANT = {
    "image": _convolution(70, 40, 3, (4, 8)),
    "image, stride": _convolution(64, 32, 3, (8, 8), 2),
    "gathered": _convolution(128, 64, 3, (3, 7)),
    "runs": _convolution(3, 64, 5, (8, 32), 2),
    "product": _product(24, 100, 48),
    "product of bf16": _product(16, 40, 32, wide=True),
    "rows that fill no matrix": _product(37, 64, 48),
}


@pytest.mark.parametrize("name", MEANT)
def test_every_configuration_means_the_same(name: str) -> None:
    graph = MEANT[name]()
    task, rng = _task(graph), np.random.default_rng(7)
    (weights,) = (array for array in graph.constants.values())
    x = task.node.inputs[0].type
    data = rng.integers(0, 9, x.shape).astype(x.dtype.numpy)
    rows = task.space.sample(rng, 4000)  # of operators that small, few can be cut evenly
    rows = rows[LoopFeatures(task, TARGET).valid(rows)][:3]
    assert len(rows) == 3
    wanted: np.ndarray | None = None
    for config in [dict(task.space.default), *map(task.space.config, rows)]:
        node = candidate(task, TARGET, config)
        kernel = TARGET.kernel(node, "k")
        assert "tdp" in repr(kernel)
        given = []
        for array, v, b in zip((data, weights), node.inputs, kernel.params, strict=False):
            packed = array if v.type.layout is None else v.type.layout.pack(array)
            given.append(packed.reshape(b.shape))
        out = np.zeros(kernel.params[-1].shape, kernel.params[-1].dtype.numpy)
        run_function(kernel, [*given, out])
        (result,) = node.outputs
        found = out.reshape(result.type.physical_shape)
        found = found if result.type.layout is None else result.type.layout.unpack(found)
        wanted = found if wanted is None else wanted
        np.testing.assert_array_equal(found, wanted, err_msg=str(config))
    assert wanted is not None
    assert len(np.unique(wanted)) > 10


def test_sums_and_their_operands_have_registers_of_their_own() -> None:
    unit = TARGET.record.matrices[0]
    assert [unit.fits(Sums(16, *of)) for of in ((2, 2), (1, 3), (3, 1), (1, 4), (2, 3))] == [True] * 3 + [False] * 2
    best = best_rows(Work(1, 784, 784, 4, 9), unit, TARGET.record)
    assert best is not None
    assert (best.rows, best.bands) == (14, 56)  # of sixteen, 49 bands could not be taken by twos
    assert best_rows(Work(1, 17, 17, 4, 9), unit, TARGET.record) is None
    assert best_rows(Work(1, 49, 0, 4, 9), unit, TARGET.record) == Work(13, 49, 0, 4, 9)

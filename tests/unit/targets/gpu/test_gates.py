"""Rows times weights of gates, steps of recurrences: one launch, whose threads read neighbouring weights."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest

from mlc.errors import ScheduleError
from mlc.ir.graph import Builder, Graph
from mlc.ir.loop import Function
from mlc.ir.types import DType, f16, f32
from mlc.lower.threads import launches
from mlc.rewrite.fuse import fuse
from mlc.rewrite.gates import fuse_gates
from mlc.rewrite.group import configured
from mlc.targets.cuda.arch import DEVICES as GPUS
from mlc.targets.cuda.dialect import CUDA_C
from mlc.targets.gpu.emit import emit, source_of
from mlc.targets.gpu.kernel import kernel
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.scalars import Scalars
from mlc.targets.opencl.devices import DEVICES
from tests.cuda import CXX, built
from tests.unit.targets.cuda.test_kernels import launch
from tests.unit.targets.gpu.blocks import check
from tests.unit.targets.gpu.groups import lstm, put, x


def gates(rows: int, terms: int = 70, width: int = 11) -> Graph:
    """Columns of one product that are combined element by element."""
    b = Builder("gates")
    rng = np.random.default_rng(2)
    w = b.constant(rng.standard_normal((terms, 2 * width)).astype(np.float32), "w")
    y = put(b, "matmul", [x(b, rows, terms), w])
    kept, new = (put(b, "slice", [y], begin=(0, k), end=(rows, k + width), step=(1, 1)) for k in (0, width))
    return fuse_gates(b.finish([put(b, "mul", [put(b, "sigmoid", [kept]), put(b, "tanh", [new])])]))


def step(rows: int, dtype: DType = f32) -> Graph:
    b = Builder("lstm")
    return fuse_gates(b.finish(list(lstm(b, rows, 70, 11, dtype))))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("dtype", [f32, f16], ids=str)
@pytest.mark.parametrize("target", [DEVICES["generic"], GPUS["h200"]], ids=lambda t: t.name)
def test_state_and_cell_in_one_launch(rows: int, dtype: DType, target: Gpu) -> None:
    graph = step(rows, dtype)
    (fn,) = check(graph, graph, target=target)
    assert len(list(launches(fn.body))) == 1


@pytest.mark.sweep(3)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("target", [DEVICES["generic"], GPUS["h200"]], ids=lambda t: t.name)
def test_columns_of_a_row(rows: int, target: Gpu) -> None:
    graph = gates(rows)
    check(graph, graph, target=target)


def under(graph: Graph, config: dict[str, object]) -> Graph:
    """The graph's one group with a configuration."""
    (node,) = graph.nodes
    tuned = configured(node, config)
    return Graph(graph.name, graph.inputs, tuned.outputs, (tuned,), graph.constants, graph.output_names)


@pytest.mark.parametrize("config", [{"wide": 4, "deep": 1}, {"wide": 16, "deep": 7}, {"wide": 8, "deep": 16}], ids=str)
def test_under_any_configuration(config: dict[str, object]) -> None:
    graph = gates(2)
    check(graph, under(graph, config), target=DEVICES["generic"])


def test_more_threads_than_a_block_has_are_refused() -> None:
    graph = under(step(1), {"wide": 32, "deep": 32})
    with pytest.raises(ScheduleError, match="1408 threads of a block, 1024 are the most"):
        kernel(graph.nodes[0], "k", GPUS["h200"])


@pytest.mark.parametrize("config", [{"wide": 8, "deep": 1}, {"wide": 16, "deep": 16}, {"wide": 32, "deep": 4}], ids=str)
def test_sums_of_columns_under_any_configuration(config: dict[str, int]) -> None:
    b = Builder("columns")
    graph = fuse(b.finish([put(b, "reduce_sum", [x(b, 70, 22)], axes=(0,), keepdims=False)]))
    tuned = under(graph, {"stage0.by": "columns", **{f"stage0.{k}": v for k, v in config.items()}})
    check(graph, tuned, target=DEVICES["generic"])


def test_weights_are_read_by_neighbours() -> None:
    fn = kernel(gates(1, 650, 650).nodes[0], "k", GPUS["h200"])
    scalars = Scalars(CUDA_C)
    text = emit(fn, scalars).text
    (places,) = re.findall(r"\* p1\[(.*?)\]\)", text)
    assert re.search(r"(^|\+ )tx\b", places), places


@pytest.mark.skipif(CXX is None, reason="there is no C++ compiler")
def test_printed_for_cuda() -> None:
    graph = step(2)

    def run(fn: Function, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        scalars = Scalars(CUDA_C)
        emitted = emit(fn, scalars)
        return launch(built(source_of(scalars, [emitted.text])), fn, emitted, inputs)

    check(graph, graph, run, GPUS["h200"])

"""A row times weights (a step of a recurrence): neighbouring threads read neighbouring weights."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest

from mlc.ir.graph import Builder, Graph
from mlc.ir.loop import Function
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
from tests.unit.targets.gpu.groups import put, x


def gates(rows: int, terms: int = 70, width: int = 11) -> Graph:
    """Columns of one product that are combined element by element."""
    b = Builder("gates")
    rng = np.random.default_rng(2)
    w = b.constant(rng.standard_normal((terms, 2 * width)).astype(np.float32), "w")
    y = put(b, "matmul", [x(b, rows, terms), w])
    kept, new = (put(b, "slice", [y], begin=(0, k), end=(rows, k + width), step=(1, 1)) for k in (0, width))
    return fuse_gates(b.finish([put(b, "mul", [put(b, "sigmoid", [kept]), put(b, "tanh", [new])])]))


@pytest.mark.sweep(3)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("target", [DEVICES["generic"], GPUS["h200"]], ids=lambda t: t.name)
def test_columns_of_a_row(rows: int, target: Gpu) -> None:
    graph = gates(rows)
    check(graph, graph, target=target)


@pytest.mark.parametrize("config", [{"wide": 8, "deep": 1}, {"wide": 16, "deep": 16}, {"wide": 32, "deep": 4}], ids=str)
def test_under_any_configuration(config: dict[str, int]) -> None:
    graph = gates(1)
    (node,) = graph.nodes
    tuned = configured(node, {"stage0.by": "columns", **{f"stage0.{k}": v for k, v in config.items()}})
    laid = Graph(graph.name, graph.inputs, tuned.outputs, (tuned,), graph.constants, graph.output_names)
    check(graph, laid, target=DEVICES["generic"])


def test_weights_are_read_by_neighbours() -> None:
    fn = kernel(gates(1, 650, 650).nodes[0], "k", GPUS["h200"])
    scalars = Scalars(CUDA_C)
    text = emit(fn, scalars).text
    (places,) = re.findall(r"\* p1\[(.*?)\]\)", text)
    assert re.search(r"(^|\+ )tx\b", places), places


@pytest.mark.skipif(CXX is None, reason="there is no C++ compiler")
def test_printed_for_cuda() -> None:
    graph = gates(2)

    def run(fn: Function, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        scalars = Scalars(CUDA_C)
        emitted = emit(fn, scalars)
        return launch(built(source_of(scalars, [emitted.text])), fn, emitted, inputs)

    check(graph, graph, run, GPUS["h200"])

"""ALT's figure 9: what its cases are, and what its page says."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from benchmarks.papers.alt import convolution, in_network
from benchmarks.papers.alt_fig9 import OPERATORS, cases, lies_elsewhere
from benchmarks.papers.alt_fig9_page import findings, page
from benchmarks.papers.alt_limits import Transforms, bytes_of, multiplied_lanes, multiply_adds
from benchmarks.papers.alt_peers import OF_OPERATORS
from mlc.ir.graph import Attrs, Builder
from mlc.ir.interp.graph import run_graph
from mlc.ir.types import TensorType, f32
from mlc.ops import get
from mlc.targets.base import get_target
from mlc.targets.x86.record import record_for
from mlc.tuning.joint import layout_space, primitives_of

TARGET = get_target("x86 -mcpu=haswell")


@pytest.mark.parametrize("name", OPERATORS)
def test_cases_have_layouts_to_choose_and_are_always_the_same(name: str) -> None:
    ((case, task),) = cases(1, [name], TARGET)
    ((again, _),) = cases(1, [name], TARGET)
    assert case.name == f"{name}-0"
    assert case.shapes == again.shapes
    assert not task.site.row_major
    space = layout_space(task, TARGET)
    assert space is not None
    assert space.size > 8


def row(name: str, loops: float, joint: float, **more: object) -> dict[str, object]:
    """A row whose core multiplies and adds 10^9 times in a second, and moves its data in a tenth of one."""
    seconds = {"untuned": 2e-3, "ALT-OL": loops, "ALT": joint}
    found = {
        "case": name, "shapes": "s", "trials": 8, "seconds": seconds, "layouts": {"result": "split(1, 8)"},
        "search_seconds": {"ALT-OL": 3.0, "ALT": 2.0}, "multiply_adds": 500_000, "peak": 2e9, "stream_seconds": 1e-4,
        "padded": {"untuned": 1.0, "ALT": 1.2}, "peers": {OF_OPERATORS[0]: 3e-3},
        "whole": {"channels": 1_200_000, "rows": 1_000_000}, "elsewhere": True,
    }  # fmt: skip
    return {**found, **more}


def test_the_page_has_means_limits_and_findings() -> None:
    counts = {"untuned": {"instructions": 4, "reads": 2}, "layout": {"instructions": 3, "reads": 4}}
    rows = [
        row("C2D-0", 2e-3, 1e-3, counts=counts), row("C2D-1", 1e-3, 2e-3, layouts={}, elsewhere=False),
        row("GMM-0", float(np.sqrt(8)) * 1e-3, 1e-3), row("GMM-1", 0.0, 1e-3), row("GMM-10", 0.55e-3, 0.55e-3),
    ]  # fmt: skip
    text = page(rows)
    first = (
        "| C2D-0 | s | 8 | 2.0000 | 2.0000 | 1.0000 | 2.00 | 0.5000 c | 25% 50% | 1.0000 rows | 50% 100% "
        "| 1.00 1.20 | 3.0000 |  | split(1, 8) |"
    )
    assert first in text
    assert "Geometric mean of 4: 1.297; least 0.50, most 2.83." in text
    assert "By operator: C2D 1.00, GMM 1.68." in text
    assert "reach 85% of the limit or more in 1 rows (GMM-10); geometric mean of the other 3: 1.414." in text
    assert "the limit in whole vectors or more in 1 rows (GMM-10); geometric mean of the other 3: 1.414." in text
    assert "At their limits all rows would be" in text
    assert "Trials a second of the joint search, times those of loops only: 1.50 of 4." in text
    assert "Joint over the best of the engines: 2.93 of 4, and 2.93 of the 4 where that takes 0.1 ms" in text
    assert [r["case"] for r in findings(rows)] == ["GMM-0", "C2D-0"]
    assert "| C2D-0 | 2.00 | 1.00 to 1.20 | 0.75 | 2.00 |  | split(1, 8) | as it is |" in page([rows[0]])
    by_loops = {"untuned": {"cycles": 2500.0, "bound": "loads"}, "layout": {"cycles": 1200.0, "bound": "latency"}}
    assert "| 2.5 loads to 1.2 latency | split(1, 8) |" in page([{**rows[0], "expected": by_loops}])


def test_the_page_lists_tvm_where_it_was_measured() -> None:
    one = row("C2D-0", 2e-3, 1e-3)
    assert "TVM is\nnot among them" in page([one])
    both = page([{**one, "peers": {"onnxruntime": 3e-3, "openvino": 4e-3, "tvm": 5e-3}}])
    assert "TVM is\nuntuned" in both
    assert "| 3.0000 | 4.0000 | 5.0000 |" in both


def test_a_layout_that_lies_as_the_untuned_one_is_no_finding() -> None:
    rows = [row("C3D-0", 2e-3, 1e-3, elsewhere=False)]
    assert findings(rows) == []
    text = page(rows)
    assert "| the target's own |" in text
    assert "By loops under the target's own layouts, which the loop search missed: C3D-0 (2.00)." in text


def test_what_was_compared_twice_is_told() -> None:
    first = {"untuned": 2e-3, "ALT-OL": 1e-3, "ALT": 2e-3}
    text = page([row("C2D-0", 2e-3, 1e-3, first_comparison=first)])
    assert "Compared twice, of which the second counts: C2D-0 (first 0.50). By the first comparison alone" in text


@pytest.mark.parametrize("o, elsewhere", [((2, 8), False), ((16, 1), True)])
def test_blocks_of_vectors_lie_as_untuned_however_they_are_written(o: tuple[int, int], elsewhere: bool) -> None:
    graph = convolution(16, 16, 14, 1)
    task = in_network(graph, TARGET)
    assert task is not None
    space = layout_space(task, TARGET)
    assert space is not None
    whole = {"layout.h": (1, 14), "layout.w": (1, 14), "layout.input": "as it is"}
    config = {**space.default, **whole, "layout.o": o}
    assert lies_elsewhere(task, TARGET, config, primitives_of(task, TARGET, config)) is elsewhere


def test_half_a_vector_may_take_half_the_time() -> None:
    assert [multiplied_lanes(record_for(cpu)) for cpu in ("znver4", "znver5", "haswell")] == [8, 16, 8]


def test_the_memory_side_of_a_limit() -> None:
    assert "| 1.0000 m | 50% 100% |" in page([row("DEP-0", 2e-3, 1e-3, stream_seconds=1e-3)])


@pytest.mark.parametrize("name", ["C2D", "GRP", "DEP", "DIL", "C3D", "C1D", "GMM", "T2D", "T3D"])
def test_multiply_adds_of_limits_are_those_inside_of_borders(name: str) -> None:
    """Ones, of which every product that is not with a zero of the border adds one to the result."""
    rng = np.random.default_rng(11)
    _, graph, flops = OPERATORS[name](rng)
    while not flops < 1e7:
        _, graph, flops = OPERATORS[name](rng)
    ones = replace(graph, constants={v: np.ones_like(a) for v, a in graph.constants.items()})
    feeds = {v.name: np.ones(v.type.shape, np.float32) for v in graph.inputs}
    assert multiply_adds(graph) == run_graph(ones, feeds)[graph.outputs[0].name].sum(dtype=np.float64)
    assert bytes_of(graph) == 4 * sum(a.size for a in (*feeds.values(), *graph.constants.values())) + 4 * prod(
        graph.outputs[0].type.shape
    )


def test_winograds_transforms_count_what_they_take_at_least() -> None:
    """Two by two tiles of four: along an axis, 12 sums of six numbers, and 10 of what comes back."""
    b = Builder()
    x = b.input("x", TensorType((3, 8, 7, 7), f32))
    attrs: Attrs = {"pads": (1, 1, 1, 1), "tile": 4}
    (y,) = b.add(get("conv_winograd"), [x, b.constant(np.ones((6, 6, 8, 5), np.float32))], attrs)
    (y,) = b.add(get("relu"), [y])
    watch = Transforms()
    watch.passed("winograd", b.finish([y]), 0.0)
    assert watch.operations == 2 * 3 * 4 * (8 * 12 * (6 + 6) + 5 * 10 * (6 + 4))

"""Operators of random shapes: as much to choose as in those of networks, and whatever is chosen means the same."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest

from benchmarks.papers.alt import Given
from mlc.errors import ScheduleError
from mlc.ir.graph import Graph
from mlc.ir.interp.graph import run_graph
from mlc.lower.knobs import Config, Factors, Knobs, Permutation
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import Target, get_target
from mlc.tuning.features import LoopFeatures
from mlc.tuning.task import Task, candidate, tasks_of
from mlc.tuning.whole import build_module
from tests.unit.targets.cpu.operators import PRODUCTS, WINDOWS, convolution, pool, product, products

PROCESSORS = ("x86-64", "znver3", "znver4", "skylake-avx512")
OPTIONS = CompileOptions("spaces", "onnx", "0" * 64)
SHAPES = 1  # of a kind and processor
LARGE, SMALL = 100_000, 1_000  # configurations of products, and of windows
# Operations up to which an operator is over sooner than a tuner could tell configurations apart; they also have so few
# rows, channels and tiles that there are no more programs.
TINY, TINY_WINDOW = 2_000_000, 200_000
FEW = 4  # results along each axis of space, below which there is nothing to cut either


def _task(graph: Graph, target: Target) -> Task:
    return tasks_of(graph, target, OPTIONS, Observer())[-1]


def _heavy(kind: str, cpu: str) -> Iterator[tuple[str, Task]]:
    """Tasks of random shapes of a kind, but for tiny ones."""
    rng, target = np.random.default_rng(zlib.crc32(f"{kind} {cpu}".encode())), get_target(f"x86 -mcpu={cpu}")
    least, found = TINY_WINDOW if kind in WINDOWS else TINY, 0
    while found < SHAPES:
        text, graph = {**PRODUCTS, **WINDOWS}[kind](rng)
        task = _task(graph(), target)
        space = task.node.outputs[0].type.shape[2:]
        if task.flops >= least and all(n >= FEW for n in space):
            found += 1
            yield text, task


@pytest.mark.parametrize("cpu", PROCESSORS)
@pytest.mark.parametrize("kind", [*PRODUCTS, *WINDOWS])
def test_random_shapes_have_tilings_and_orders_to_choose(kind: str, cpu: str) -> None:
    for text, task in _heavy(kind, cpu):
        space = task.space
        assert space.size >= (SMALL if kind in WINDOWS else LARGE), text
        assert {Factors, Permutation} <= {type(k) for k in space.knobs}, text


OPERATORS: dict[str, Callable[[], Graph]] = {
    "joined images": partial(convolution, 3, 12, (7, 7), 32, 3, groups=4),
    "joined rows": partial(convolution, 2, 12, (12, 9), 16, 3, groups=4, stride=2),
    "rows": partial(convolution, 2, 12, (9, 33), 14, 3, groups=2),
    "rows of volumes": partial(convolution, 2, 10, (4, 5, 17), 14, 3, groups=2),
    "pixels": partial(convolution, 1, 29, (19, 31), 34, 1),
    "pixels of groups": partial(convolution, 4, 30, (9, 7), 36, 1, groups=3),
    "pixels apart": partial(convolution, 2, 30, (9, 9), 36, 1, groups=3, stride=2),
    "filters": partial(convolution, 1, 60, (28, 3), 56, 3, groups=4, blocked=True),
    "filters of volumes": partial(convolution, 1, 36, (7, 9, 8), 36, 3, groups=3, stride=2, blocked=True),
    "phases": partial(convolution, 2, 32, (6, 5), 48, 5, stride=2, transposed=True),
    "phases of rows": partial(convolution, 2, 19, (40,), 40, 4, stride=2, transposed=True),
    "row-major phases": partial(convolution, 1, 20, (8, 32), 8, 5, stride=2, groups=2, transposed=True),
    "row-major phases of rows": partial(convolution, 1, 12, (64,), 8, 3, stride=2, groups=2, transposed=True),
    "vector": partial(product, 1, 97, 190),
    "free vector": partial(product, 3, 64, 192, constant=False),
    "thin": partial(product, 46, 59, 15),
    "whole panel": partial(product, 46, 60, 16),
    "thin products": partial(products, "bji,bjk->bik", b=3, i=23, j=34, k=6),
    "depthwise row": partial(convolution, 2, 6, (245,), 6, 5, groups=6),
    "strided row": partial(convolution, 1, 12, (189,), 12, 7, groups=12, stride=2),
    "blocked row": partial(pool, "max_pool", 2, 35, (121,), 5, 1, blocked=True),
}


@pytest.mark.parametrize("cpu", ["haswell"])
@pytest.mark.parametrize("name", OPERATORS)
def test_random_configurations_give_the_results_of_the_operator(name: str, cpu: str) -> None:
    target, graph = get_target(f"x86 -mcpu={cpu}"), OPERATORS[name]()
    task, rng = _task(graph, target), np.random.default_rng(3)
    rows = task.space.sample(rng, 300)[:80]  # to know which can be built takes longer than to draw them
    rows = rows[LoopFeatures(task, target).valid(rows)]
    assert len(rows) >= 2
    feeds = {v.name: rng.integers(-3, 4, v.type.shape).astype(np.float32) for v in graph.inputs}
    (wanted,) = run_graph(graph, feeds).values()
    for threads, config in enumerate(map(task.space.config, rows[:2]), 1):
        with build_module(graph, target, OPTIONS, threads, Given({"last": config})) as module:
            (found,) = module.run(feeds).values()
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5, err_msg=str(config))


# Of each knob a value and, where it says something about blocks only, the blocks.
CHANGES: list[tuple[str, Config, Config]] = [
    ("joined rows", {}, {"copy": "apart"}),
    ("joined rows", {"vectors": 1}, {"runs": 2}),
    ("joined rows", {"rows": 1}, {"shares": 2}),
    ("joined rows", {"rows": 1}, {"panels": 2}),
    ("joined rows", {"rows": 1, "panels": 2, "vectors": 1}, {"tiles": ("panels", "columns")}),
    ("joined rows", {"rows": 1}, {"fetch_weights": 2}),
    ("joined rows", {}, {"unrolled": 1}),
    ("joined images", {"block": 7}, {"order": ("groups", "images", "blocks")}),
    ("joined images", {"block": 7}, {"fetch": True}),
    ("rows", {}, {"share": "pixels"}),
    ("rows", {}, {"copy": "group"}),
    ("rows", {}, {"unrolled": 2}),
    ("rows", {"rows": 1}, {"fetch_weights": 1}),
    ("pixels", {"vectors": 2}, {"share": "weights"}),
    ("pixels", {}, {"share": "pixels"}),
    ("pixels", {}, {"fetch_pixels": 4}),
    ("pixels apart", {}, {"copy": "group"}),
    ("filters", {}, {"rows.h": 3}),
    ("filters", {"rows.h": 1}, {"bands": (2, 14)}),
    ("filters", {"rows.h": 1, "bands": (2, 14)}, {"nest": ("bands", "blocks")}),
    ("filters", {}, {"columns_first": True}),
    ("filters", {}, {"fetch_weights": 1}),
    ("phases", {"rows": 1, "chunk": 2}, {"held": 2}),
    ("phases", {"vectors": 1}, {"panels": 3}),
    ("phases", {"vectors": 1, "panels": 3, "rows": 1}, {"inside": ("panels", "columns")}),
    ("phases", {}, {"columns_first": True}),
    ("phases", {}, {"unrolled": True}),
    ("phases", {}, {"fetch_weights": 4}),
    ("phases", {}, {"copy": "task"}),
    ("phases of rows", {"rows": 13, "vectors": 1}, {"width": (3, 13)}),
    ("row-major phases", {}, {"phases": "one"}),
    ("row-major phases", {"rows": 1}, {"phases": "all"}),
    ("row-major phases", {"rows": 1}, {"panels": 2}),
    ("row-major phases of rows", {"vectors": 1}, {"runs": 2}),
    ("row-major phases", {"vectors": 1, "runs": 2, "rows": 1, "panels": 2}, {"inside": ("panels", "columns", "rows")}),
    ("row-major phases", {}, {"copy": "task"}),
    ("row-major phases", {}, {"steps": 4}),
    ("vector", {}, {"steps": 16}),
    ("vector", {}, {"ahead": 8}),
    ("free vector", {}, {"ahead": 8}),
    ("thin", {"rows": 1}, {"ahead": 4}),
    ("thin", {"rows": 1, "ahead": 4}, {"level": 2}),
    ("thin products", {"rows": 1}, {"ahead": 4}),
    ("depthwise row", {"vectors": 1}, {"runs": 2}),
    ("depthwise row", {"vectors": 1, "channels": (3, 2)}, {"walk": ("columns", "channels")}),
    ("depthwise row", {"prefetch": True}, {"ahead": 8}),
    ("blocked row", {}, {"columns": 7}),
    ("blocked row", {"columns": 8}, {"runs": 4}),
    ("blocked row", {}, {"walk": ("blocks", "columns", "channels", "inner")}),
]


@pytest.mark.parametrize(("name", "base", "change"), CHANGES, ids=lambda of: of if isinstance(of, str) else None)
def test_a_knob_changes_the_code(name: str, base: Config, change: Config) -> None:
    target = get_target("x86 -mcpu=znver4")
    task = _task(OPERATORS[name](), target)

    def code(config: Config) -> str:
        return str(target.kernel(candidate(task, target, config), "k"))

    (knob,) = change
    assert base.get(knob, task.space.default[knob]) != change[knob]
    assert code(base) != code({**base, **change})


REFUSED: list[tuple[str, Config, str]] = [
    ("joined rows", {"rows": 4, "shares": 2}, "tiles of channels cannot be cut evenly into such parts"),
    ("joined rows", {"vectors": 2, "runs": 2}, "tiles of a run cannot be cut evenly into such blocks"),
    ("joined images", {"copy": "apart", "fetch": True}, "what the next task copies lies apart, or is there already"),
    ("rows", {"unrolled": 2, "depth": (1, 1, 6), "rows": 7, "vectors": 3}, "too much is unrolled"),
    ("rows", {"copy": "group", "share": "pixels"}, "pixels that are shared are copied as a whole"),
    ("filters", {"rows.h": 4, "bands": (4, 7)}, "tiles of space cannot be cut evenly into so many bands"),
    ("phases", {"panels": 2, "vectors": 1}, "tiles of channels cannot be cut evenly into such blocks"),
    ("phases", {"held": 6, "rows": 5, "vectors": 3}, "the sums of a tile do not fit"),
    ("phases", {"chunk": 1, "held": 2, "rows": 1, "vectors": 1}, "a tile of a chunk is of one row"),
    ("row-major phases", {"rows": 4, "panels": 4}, "channels cannot be cut evenly into such blocks"),
    ("row-major phases of rows", {"vectors": 1, "runs": 3}, "tiles of a row cannot be cut evenly into such blocks"),
    ("whole panel", {"rows": 1, "depth": (2, 30), "tiles": 2, "walk": ("depth", "columns", "rows"), "ahead": 1},
     "rows are read chunk by chunk"),
    ("phases of rows", {"rows": 4, "width": (3, 13)}, "a row cannot be cut evenly into so many blocks"),
    ("depthwise row", {"vectors": 8, "runs": 8}, "tiles of a row cannot be cut evenly into such tasks"),
    ("blocked row", {"columns": 11, "runs": 2}, "tiles of a row cannot be cut evenly into such blocks"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "config", "message"), REFUSED, ids=lambda of: of if isinstance(of, str) else None)
def test_what_cannot_be_is_refused_before_anything_is_built(name: str, config: Config, message: str) -> None:
    target = get_target("x86 -mcpu=znver4")
    task = _task(OPERATORS[name](), target)
    with pytest.raises(ScheduleError, match=re.escape(message)):
        target.schedule(candidate(task, target, config), Knobs(config))


def test_blocks_of_filters_are_chosen_alike_when_layouts_are_known() -> None:
    """The cost model found rows faster when it saw that the input lies in blocks, and the template's knobs differed."""
    task = _task(
        convolution(1, 28, (18, 15), 12, 5, dilation=2, groups=4, blocked=True), get_target("x86 -mcpu=x86-64")
    )
    assert "rows.h" in task.space.default


def test_transposed_convolutions_along_one_axis_can_be_described() -> None:
    target = get_target("x86 -mcpu=znver4")
    task = _task(OPERATORS["row-major phases of rows"](), target)
    assert LoopFeatures(task, target).valid(task.space.sample(np.random.default_rng(0), 50)).any()

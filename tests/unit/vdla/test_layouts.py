"""Orders of blocks in the accelerator's memory: where elements are, what may be chosen, and who gets what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import ScheduleError
from mlc.ir.graph import Graph, Node, Value
from mlc.ir.site import Site
from mlc.ir.types import TensorType, i8
from mlc.lower.knobs import Config, Knobs, divisors
from mlc.ops.algorithms import Algorithm
from mlc.pipeline.layouts import lay_out, parts_of
from mlc.pipeline.passes import optimise
from mlc.pipeline.placements import Placements, placements_of
from mlc.rewrite.group import configured, is_group
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import get_target
from mlc.tuning.joint import Neighbours, layout_space, layouts_in, loop_space, primitives_of
from mlc.tuning.task import Task, candidate, tasks_of
from mlc.vdla.fold import Fold
from mlc.vdla.layouts import AXES, Blocks, arranged, wanted_layout
from tests.unit.rewrite.helpers import Net

TARGET = get_target("vdla")
OPTIONS = CompileOptions("layers", "", "0" * 64)
ROWS_FIRST = ("rows", "channels", "columns")


@given(st.integers(0, 2**32))
def test_blocks_are_where_packing_puts_them(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, c, h, w = (int(k) for k in rng.integers(1, (3, 70, 6, 6)))
    shape = (n, c, h, w) if rng.integers(4) else (h, c)
    run = int(rng.choice(divisors(-(-c // 16)))) if rng.integers(2) else 0
    order = tuple(rng.permutation([*AXES, *(["run"] if run else [])]))
    type = TensorType(shape, i8, arranged(shape, 16, order, run))
    extents = (n, -(-c // 16), h, w, 16) if len(shape) == 4 else (1, -(-c // 16), h, 1, 16)
    blocks = Blocks.of(type, extents)
    array = rng.integers(-128, 128, shape).astype(np.int8)
    assert type.layout is not None
    packed = type.layout.pack(array).reshape(blocks.shape)
    image = array if len(shape) == 4 else array.T[None, :, :, None]
    for at in zip(*(rng.integers(0, k, 5) for k in image.shape), strict=True):
        image_, channel, y, x = (int(k) for k in at)
        place = blocks.at(image_, channel // 16, y, x, channel % 16)
        assert packed[tuple(ix.const for ix in place)] == image[at]


def test_orders_on_the_chip_are_those_in_memory() -> None:
    def of(order: Sequence[str], shape: tuple[int, ...] = (1, 64, 5, 6), run: int = 0) -> Blocks:
        return Blocks.of(TensorType(shape, i8, arranged(shape, 16, order, run)), (1, 4, *shape[2:], 16))

    assert of(AXES).layout is None
    assert of(AXES).order == (0, 1, 2, 3, 4)
    assert of(ROWS_FIRST).order == (0, 2, 1, 3, 4)
    assert of(("columns", "rows", "channels")).order == (0, 3, 2, 1, 4)
    assert of(ROWS_FIRST, (1, 64, 1, 6)).order == (0, 1, 2, 3, 4)  # of one row nothing is between its channels
    runs = of(("channels", "rows", "run", "columns"), run=2)
    assert (runs.order, runs.run) == ((0, 2, 1, 3, 4), 2)
    assert of(ROWS_FIRST).run == 4


def test_what_lies_in_folds_is_seen_as_the_layers_over_it_do() -> None:
    bare = TensorType((1, 8, 4, 6), i8)
    folded = bare.with_layout(Fold(2).layout(bare, 16))
    assert Blocks.of(folded, (1, 1, 4, 3, 16)).layout is None
    assert wanted_layout(folded, 16, Knobs()) is None


@pytest.mark.parametrize(
    ("shape", "levels", "orders", "runs"),
    [
        ((1, 64, 5, 6), 1, 6, 1),
        ((1, 64, 1, 6), 1, 2, 1),  # an axis of one element has no place of its own
        ((7, 40), 1, 2, 1),
        ((1, 128, 5, 6), 2, 24, 2),  # runs of 2 and 4 of 8 blocks
        ((1, 48, 5, 6), 2, 6, 1),  # 3 blocks are no runs
    ],
)
def test_the_space_has_every_order(shape: tuple[int, ...], levels: int, orders: int, runs: int) -> None:
    knobs = Knobs({"layout": levels})
    assert wanted_layout(TensorType(shape, i8), 16, knobs) is not None
    sizes = {k.name: len(k.values) for k in knobs.space().knobs}
    assert sizes["layout.order"] == orders
    assert sizes.get("layout.run", 1) == runs
    assert sizes["layout"] == 2


@pytest.mark.parametrize("shape", [(1, 16, 1, 9), (1, 64, 1, 1), (1, 64), (5,), (2, 3, 4)])
def test_what_has_one_order_has_no_space(shape: tuple[int, ...]) -> None:
    knobs = Knobs()
    assert wanted_layout(TensorType(shape, i8), 16, knobs) is None
    assert not knobs.asked


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"layout": 3}, "layout"),
        ({"layout": 1, "layout.order": ("rows", "columns")}, "layout.order"),
        ({"layout": 2, "layout.run": 3}, "layout.run"),
    ],
)
def test_what_is_no_layout_is_refused(config: Config, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        wanted_layout(TensorType((1, 128, 5, 6), i8), 16, Knobs(config))


def chain(*, shared: bool = False) -> Graph:
    """Three convolutions of bytes in a row; ``shared``: the last two read the same, and what they give is added."""
    n, rng = Net(), np.random.default_rng(0)

    def conv(v: Value, k: int, filters: int) -> Value:
        w = n.c(rng.integers(-127, 128, (filters, v.type.shape[1], 3, 3)), np.int8)
        sums = n.relu(n.conv(v, w, strides=(1, 1), pads=(1,) * 4, dilations=(1, 1), sources=[f"conv{k}"]))
        return narrow(sums, 12)

    def narrow(v: Value, places: int) -> Value:
        return n.cast(n.clip(n.round_shift(v, n.c([places], np.int32)), lo=-128, hi=127), to="i8")

    x = n.x(1, 64, 8, 8, dtype="i8")
    y = conv(x, 0, 32)
    if shared:
        a, b = conv(y, 1, 48), conv(y, 2, 48)
        return n(narrow(n.add(n.cast(a, to="i32"), n.cast(b, to="i32")), 1))
    return n(conv(conv(y, 1, 48), 2, 64))


class Given:
    """Configurations by the name of the operator."""

    def __init__(self, configs: Mapping[str, Config]) -> None:
        self._configs = configs

    def algorithm(self, node: Node, known: Sequence[Algorithm]) -> Algorithm | None:
        return None

    def configure(self, node: Node, site: Site) -> Node:
        wanted = next((self._configs[s] for s in node.sources if s in self._configs), None)
        return node if wanted is None or not is_group(node) else configured(node, wanted)

    def refuse(self, group: tuple[str, ...], reason: str) -> None:
        raise AssertionError(reason)


def region(graph: Graph, configs: Mapping[str, Config]) -> Graph:
    fused = optimise(graph, TARGET, OPTIONS, Observer())
    (part,) = (p for p in parts_of(fused, TARGET) if p.region is not None)
    return lay_out(part, OPTIONS, Observer(), Given(configs))


def placed(graph: Graph, configs: Mapping[str, Config]) -> Placements:
    found = region(graph, configs)
    return placements_of(replace(found, nodes=()), TARGET, [found])


ASKS: Config = {"layout": 1, "layout.order": ROWS_FIRST}
PRIMITIVES = "split(1, 16).reorder(0,3,1,4,2)"


def test_a_reader_gets_what_it_asks_for() -> None:
    found = region(chain(), {"conv1": ASKS})
    first, second, third = found.nodes
    assert str(first.outputs[0].type.layout) == PRIMITIVES
    assert second.inputs[0] is first.outputs[0]
    assert str(third.inputs[0].type.layout) == "split(1, 16).reorder(0,1,3,4,2)"
    listed = placed(chain(), {"conv1": ASKS})
    (asked,) = (t for t in listed.tensors if t.layout == PRIMITIVES)
    assert (asked.asked_by, asked.reason, asked.shape) == ("conv1", "searched", (1, 8, 2, 8, 16))
    assert listed.conversions == ()


def test_constants_are_listed_though_they_lie_as_their_layer_loads_them() -> None:
    found = [t for t in placed(chain(), {}).tensors if t.reason == "a constant, packed when compiled"]
    weights = [(t.type, t.asked_by) for t in found if t.type.endswith(",3,3]")]
    assert weights == [("i8[32,64,3,3]", "conv0"), ("i8[48,32,3,3]", "conv1"), ("i8[64,48,3,3]", "conv2")]
    assert {(t.layout, t.shape) for t in found} == {("in the order of its loads", ())}


def test_the_border_of_a_region_stays_as_it_is() -> None:
    usual, asked = region(chain(), {}), region(chain(), {"conv0": ASKS})
    assert [str(v.type.layout) for v in asked.inputs] == [str(v.type.layout) for v in usual.inputs]
    assert [str(v.type.layout) for v in asked.outputs] == [str(v.type.layout) for v in usual.outputs]
    (read,) = placed(chain(), {"conv0": ASKS}).conversions
    assert (read.where, read.how, read.nbytes) == ("conv0", "load", 64 * 64)


def test_the_first_of_several_readers_gets_what_it_asks_for() -> None:
    other: Config = {"layout": 1, "layout.order": ("rows", "columns", "channels")}
    found = region(chain(shared=True), {"conv1": ASKS, "conv2": other})
    assert str(found.nodes[0].outputs[0].type.layout) == PRIMITIVES
    (read,) = placed(chain(shared=True), {"conv1": ASKS, "conv2": other}).conversions
    assert (read.where, read.how, read.layout, read.shape) == ("conv2", "load", PRIMITIVES, (1, 8, 8, 2, 16))


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    graph = chain()
    return [t for t in tasks_of(graph, TARGET, OPTIONS, Observer()) if t.constants is not None]


def test_layouts_are_searched_of_what_a_region_makes(tasks: list[Task]) -> None:
    spaces = [layout_space(t, TARGET) for t in tasks]
    assert [space is None for space in spaces] == [True, False, False]  # the first one reads what the host packs
    assert [t.fixed for t in tasks] == [frozenset({0}), frozenset(), frozenset()]
    assert spaces[1] is not None
    assert spaces[1].size == 6


def test_loops_are_rebuilt_for_a_layout(tasks: list[Task]) -> None:
    task = tasks[1]
    loops = loop_space(task, TARGET, ASKS)
    assert loops is not None
    assert layouts_in(loops.default) == ASKS
    node = candidate(task, TARGET, loops.default)
    assert str(node.inputs[0].type.layout) == PRIMITIVES
    assert node.outputs[0].type == task.node.outputs[0].type
    assert all(v in (task.constants or {}) for v in node.inputs[1:])
    assert primitives_of(task, TARGET, loops.default)["operand 0"] == PRIMITIVES


def test_neighbours_have_other_loops_or_another_layout(tasks: list[Task]) -> None:
    near = Neighbours(tasks[1], TARGET, 1)
    assert not any(layouts_in(c) for c in Neighbours(tasks[1], TARGET).of(near.default))
    own = near.of(near.default)
    assert {str(layouts_in(c)) for c in own} >= {"{}", str(ASKS)}
    moved = {**near.default, **ASKS}
    around = near.of(moved)
    assert near.default in around  # the same loops under the target's own layout
    loops = [c for c in around if layouts_in(c) == ASKS]
    assert loops
    assert all(sum(c[k] != moved[k] for k in moved) == 1 for c in loops)
    assert near.of(near.default) == own
    assert replace(tasks[1], fixed=frozenset({0})).fixed
    assert layout_space(replace(tasks[1], fixed=frozenset({0})), TARGET) is None

"""Where layouts go that an operator was given: the rules of ALT §4.2 and §6, one test each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from mlc.ir.graph import Builder, Graph, Node, Value
from mlc.ir.layout import Layout
from mlc.ir.site import Site
from mlc.ir.types import TensorType, f32
from mlc.lower.knobs import Config, Knobs
from mlc.ops import get
from mlc.ops.algorithms import Algorithm
from mlc.pipeline.layouts import lay_out, parts_of
from mlc.pipeline.passes import optimise
from mlc.pipeline.placements import Conversion, Placement, Placements, placements_of
from mlc.rewrite.group import config_of, configured, is_alias, is_group
from mlc.rewrite.layout import assign_layouts
from mlc.rewrite.workload import workload_document
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import LayoutChoice, Target, get_target
from mlc.tuning.joint import layout_space, loop_space
from mlc.tuning.task import task_of

TARGET = get_target("x86 -mcpu=haswell")
OPTIONS = CompileOptions("net", "onnx", "", disabled_passes=frozenset({"winograd"}))
TILES: Config = {"layout.h": (3, 4), "layout.w": (2, 6), "layout.o": (2, 8)}  # of 12 rows, 12 columns, 16 channels
TILED = "split(3, 6).split(2, 4).split(1, 8).reorder(0,3,5,1,4,6,2)"
OTHERS: Config = {"layout.h": (6, 2), "layout.w": (1, 12), "layout.o": (1, 16)}
OTHERWISE = "split(3, 12).split(2, 2).split(1, 16).reorder(0,3,5,1,4,6,2)"


class Given:
    """Layouts by the name of the operator, with the first loops of the space that is rebuilt for them."""

    def __init__(self, layouts: Mapping[str, Config], target: Target = TARGET) -> None:
        self._layouts, self._target = layouts, target

    def algorithm(self, node: Node, known: Sequence[Algorithm]) -> Algorithm | None:
        return None

    def configure(self, node: Node, site: Site) -> Node:
        wanted = next((self._layouts[s] for s in node.sources if s in self._layouts), None)
        if wanted is None or not is_group(node):
            return node
        task = task_of(workload_document(node, site), (), self._target)
        space = layout_space(replace(task, site=replace(task.site, row_major=False)), self._target)
        assert space is not None
        loops = loop_space(task, self._target, {**space.default, **wanted})
        assert loops is not None
        return configured(node, loops.default)

    def refuse(self, group: tuple[str, ...], reason: str) -> None:
        raise AssertionError(reason)


class Net:
    """A builder of networks over images of 16 channels, 12 by 12."""

    def __init__(self) -> None:
        self.builder = Builder("net")
        self.x, self.y = (self.builder.input(name, TensorType((1, 16, 12, 12), f32)) for name in "xy")

    def conv(self, x: Value, name: str, *, pad: int = 1) -> Value:
        w = np.random.default_rng(len(name)).integers(-1, 2, (16, 16, *[2 * pad + 1] * 2)).astype(np.float32)
        attrs = {"strides": (1, 1), "pads": (pad,) * 4, "dilations": (1, 1), "groups": 1}
        (y,) = self.builder.add(
            get("conv"), [x, self.builder.constant(w, f"w_{name}")], attrs, names=[name], sources=[name]
        )
        return y

    def op(self, kind: str, *inputs: Value, name: str, **attrs: object) -> Value:
        (y,) = self.builder.add(get(kind), inputs, attrs, names=[name], sources=[name])
        return y

    def pool(self, x: Value, name: str, stride: int = 2) -> Value:
        """What reads any layout, and is never part of the group that makes what it reads."""
        return self.op("max_pool", x, name=name, kernel=(2, 2), strides=(stride,) * 2, pads=(0,) * 4, dilations=(1, 1))

    def kept(self, *values: Value) -> list[Value]:
        """Two results for each, so that it is stored before they read it."""
        return [self.pool(v, f"p{k}{v.name}", k) for v in values for k in (1, 2)]

    def placed(self, results: Sequence[Value], **layouts: Config) -> tuple[Graph, Placements]:
        given = Given(layouts)
        fused = optimise(self.builder.finish(list(results)), TARGET, OPTIONS, Observer(), configurations=given)
        graph = lay_out(parts_of(fused, TARGET)[0], OPTIONS, Observer(), given)
        return graph, placements_of(graph, TARGET)


def of(found: Placements, tensor: str) -> Placement:
    (one,) = [t for t in found.tensors if t.tensor == tensor]
    return one


def moves(found: Placements, where: str) -> list[Conversion]:
    return [c for c in found.conversions if where in c.where.split(", ")]


def test_layouts_propagate_along_element_wise_paths_of_one_shape() -> None:
    net = Net()
    a = net.conv(net.x, "a")
    r = net.op("relu", a, name="r")  # a kernel of its own, since what it reads is read again
    _, found = net.placed(net.kept(a, r), a=TILES)
    assert (of(found, "a").layout, of(found, "a").asked_by, of(found, "a").reason) == (TILED, "a", "searched")
    assert of(found, "r").layout == TILED
    assert (of(found, "r").asked_by, of(found, "r").reason) == ("a", "propagated from an operand of its shape")
    assert not moves(found, "r")


def test_they_do_not_where_elements_change_places() -> None:
    net = Net()
    a = net.conv(net.x, "a")
    t = net.op("transpose", a, name="t", perm=(0, 1, 3, 2))  # of the same shape, but not element by element
    _, found = net.placed([net.pool(a, "p"), net.pool(net.op("relu", t, name="r"), "q")], a=TILES)
    assert of(found, "a").layout == TILED
    assert TILED not in {t.layout for t in found.tensors if t.tensor != "a"}


def test_nor_where_shapes_differ() -> None:
    net = Net()
    _, found = net.placed([net.pool(net.conv(net.x, "a"), "p")], a=TILES)
    assert of(found, "a").layout == TILED
    assert of(found, "p").layout != TILED


def test_what_expands_data_is_not_propagated_but_converted_by_who_reads_it() -> None:
    """ALT's second constraint, with overlapping rows that someone has asked for."""
    unfolded = Layout((1, 16, 12, 12)).split(1, 8).unfold(3, 7, 5).reorder(0, 1, 3, 4, 5, 2)
    net = Net()
    first = net.op("exp", net.x, name="first")
    graph = net.builder.finish([net.pool(net.op("relu", first, name="second"), "p"), net.pool(first, "q")])

    def choose(node: Node, site: Site) -> tuple[Node, LayoutChoice]:
        if node.outputs[0].name == "first":
            return node, LayoutChoice((unfolded,))
        return node, TARGET.layouts(node, site, Knobs())

    laid = assign_layouts(graph, choose, get("identity"))
    types = {v.name: v.type for n in laid.nodes for v in n.outputs}
    assert types["first"].layout == unfolded
    assert types["second"].layout is None or not types["second"].layout.expands
    assert unfolded.expands


def test_complex_operators_are_independent() -> None:
    """ALT's third constraint: the second keeps its own layouts and converts what the first has given it."""
    net = Net()
    b = net.conv(net.conv(net.x, "a"), "b", pad=0)
    _, found = net.placed([net.pool(b, "p")], a=TILES, b=OTHERS)
    assert (of(found, "a").layout, of(found, "b").layout) == (TILED, OTHERWISE)
    (move,) = moves(found, "b")
    assert (move.tensor, move.how, move.layout) == ("a", "copy", TILED)
    assert move.nbytes == 2 * 4 * 16 * 144
    _, alone = net.placed([net.pool(b, "p")], b=OTHERS)
    assert of(alone, "b").layout == OTHERWISE
    assert of(alone, "a").layout != TILED


def test_every_consumer_reads_the_layout_and_converts_for_itself() -> None:
    net = Net()
    a = net.conv(net.x, "a")
    r, s = net.op("relu", a, name="r"), net.op("exp", a, name="s")
    b = net.conv(a, "b", pad=0)
    _, found = net.placed(net.kept(r, s, b), a=TILES, b=OTHERS)
    assert [of(found, name).layout for name in "arsb"] == [TILED, TILED, TILED, OTHERWISE]
    assert [(c.tensor, c.how) for c in moves(found, "b")] == [("a", "copy")]
    assert not moves(found, "r") + moves(found, "s")


def test_of_several_producers_the_first_operand_wins() -> None:
    """The sum lies as what it reads first; the other is read from where it lies, element by element."""
    net = Net()
    a, b = net.conv(net.x, "a"), net.conv(net.y, "b")
    first, second = net.op("add", a, b, name="first"), net.op("sub", b, a, name="second")
    _, found = net.placed(net.kept(a, b, first, second), a=TILES, b=OTHERS)
    assert [of(found, name).layout for name in ("a", "b")] == [TILED, OTHERWISE]
    assert (of(found, "first").layout, of(found, "first").asked_by) == (TILED, "a")
    assert (of(found, "second").layout, of(found, "second").asked_by) == (OTHERWISE, "b")


def test_what_is_read_out_of_another_layout_is_listed_with_its_bytes() -> None:
    """Nothing is copied, but elements that lie apart are fetched one by one, which costs as well."""
    net = Net()
    a, b = net.conv(net.x, "a"), net.conv(net.y, "b")
    first, second = net.op("add", a, b, name="first"), net.op("sub", b, a, name="second")
    _, found = net.placed(net.kept(a, b, first, second), a=TILES, b=OTHERS)
    tiles = (1, 3, 2, 2, 4, 6, 8)
    assert moves(found, "first") == [Conversion("b", "first", "read", OTHERWISE, tiles, 4 * 16 * 144)]
    assert [(c.tensor, c.how) for c in moves(found, "second")] == [("a", "read")]
    read = [(c.tensor, c.layout, c.shape) for c in moves(found, "p2a")]  # a pool reads tiles, and makes blocks
    assert read == [("a", TILED, (1, 2, 6, 6, 8))]


def test_what_is_plain_and_made_into_blocks_is_listed() -> None:
    net = Net()
    s = net.op("add", net.op("exp", net.x, name="e1"), net.y, name="s")
    _, found = net.placed([net.pool(net.conv(s, "b", pad=0), "p")], b=OTHERS)
    reads = [(c.tensor, c.where, c.how, c.layout) for c in found.conversions if c.tensor in ("x", "y")]
    assert reads == [("x", "e1, s", "read", "plain"), ("y", "e1, s", "read", "plain")]


def test_what_a_join_puts_into_rows_is_listed() -> None:
    net = Net()
    a = net.conv(net.x, "a")
    j = net.op("concat", a, net.op("exp", net.y, name="e"), name="j", axis=1)
    _, found = net.placed(net.kept(j), a=TILES)
    assert of(found, "j").layout == "plain"
    assert [(c.tensor, c.how, c.nbytes) for c in moves(found, "j")] == [("a", "read", 4 * 16 * 144)]


def test_what_a_convolution_adds_is_listed_and_what_it_multiplies_is_not() -> None:
    net = Net()
    a = net.conv(net.x, "a")
    s = net.op("add", a, net.conv(net.y, "b", pad=0), name="s")
    _, found = net.placed(net.kept(a, s), a=TILES, b=OTHERS)
    assert [(c.tensor, c.how) for c in moves(found, "s")] == [("y", "copy"), ("a", "read")]
    _, usual = net.placed([net.pool(net.conv(net.x, "c", pad=0), "p")])
    assert not moves(usual, "c")


def test_what_lies_alike_under_other_primitives_is_not_listed() -> None:
    """One pixel of each channel: blocks of them are the same memory as none."""
    net = Net()
    m = net.op("reduce_mean", net.conv(net.x, "a"), name="m", axes=(2, 3), keepdims=True)
    z = net.builder.input("z", TensorType((1, 16, 1, 1), f32))
    _, found = net.placed([net.op("add", m, z, name="s")])
    assert of(found, "m").layout != "plain"
    assert [c for c in found.conversions if c.how == "read"] == []


def test_a_complex_operator_wins_over_the_other_producers_of_its_group() -> None:
    net = Net()
    a = net.conv(net.x, "a")
    s = net.op("add", a, net.conv(net.y, "b"), name="s")
    _, found = net.placed(net.kept(a, s), a=TILES, b=OTHERS)
    assert (of(found, "s").layout, of(found, "s").reason) == (OTHERWISE, "searched")
    assert of(found, "a").layout == TILED


def test_the_padding_operator_converts_on_the_way() -> None:
    """ALT, figure 5b: no step of its own converts what the border of the next convolution reads."""
    net = Net()
    b = net.conv(net.conv(net.x, "a"), "b")
    _, found = net.placed([net.pool(b, "p")], a=TILES, b=OTHERS)
    (border,) = moves(found, "b")
    assert (border.tensor, border.how, border.layout, border.shape) == ("a", "border", TILED, (1, 6, 1, 1, 4, 14, 16))
    assert not [c for c in found.conversions if c.how == "step" and c.tensor == "a"]


def test_loops_of_fused_consumers_are_reconstructed_alike() -> None:
    """ALT, figure 7: what follows in the group runs over the axes of the convolution's tiles, within its loops."""
    net = Net()
    r = net.op("relu", net.conv(net.x, "a"), name="r")
    graph, found = net.placed([net.pool(r, "p")], a=TILES)
    assert of(found, "r").layout == TILED
    (node,) = [n for n in graph.nodes if "a" in n.sources]
    schedule = TARGET.schedule(node, Knobs(config_of(node)))
    assert schedule is not None
    relu, sums = schedule.stages[-1], next(s for s in schedule.stages if s.op.combiner is not None)
    assert relu.op.shape == sums.op.shape == (1, 3, 2, 2, 4, 6, 8)
    assert sums.attach is not None


def test_blocks_are_turned_before_a_reshape_sees_them_in_another_shape() -> None:
    net = Net()
    r = net.op("reshape", net.conv(net.x, "a"), name="r", shape=(1, 16 * 144))
    w = net.builder.constant(np.ones((16 * 144, 3), np.float32), "w_fc")
    graph, found = net.placed([net.op("matmul", r, w, name="fc")], a=TILES)
    assert of(found, "a").layout == TILED
    (reshape,) = [n for n in graph.nodes if is_alias(n)]
    (turned,) = [n for n in graph.nodes if reshape.inputs[0] in n.outputs]
    assert turned.op is get("identity")


def test_layouts_propagate_backwards_to_who_makes_what_is_read() -> None:
    """ALT §4.2, "or vice versa", and §6: no layout has come to the element-wise operator from in front of it."""
    net = Net()
    e = net.op("tanh", net.op("exp", net.x, name="x_exp"), name="e")
    graph, found = net.placed([net.pool(net.conv(e, "b", pad=0), "p")], b=OTHERS)
    assert of(found, "e") == Placement("e", "f32[1,16,12,12]", OTHERWISE, (1, 6, 1, 1, 2, 12, 16), "b", "searched")
    assert not moves(found, "b")
    assert "copy" not in config_of(next(n for n in graph.nodes if n.outputs[0].name == "b"))


def test_all_that_reads_it_later_finds_it_like_that() -> None:
    net = Net()
    e = net.op("exp", net.x, name="e")
    _, found = net.placed(
        [net.pool(net.conv(e, "b", pad=0), "p"), net.pool(net.conv(e, "cc", pad=0), "q")], b=OTHERS, cc=TILES
    )
    assert (of(found, "e").layout, of(found, "e").asked_by) == (OTHERWISE, "b")
    (move,) = moves(found, "cc")
    assert (move.tensor, move.how, move.layout) == ("e", "copy", OTHERWISE)


def test_they_do_not_where_somebody_has_read_it_before() -> None:
    net = Net()
    e = net.op("exp", net.x, name="e")
    _, found = net.placed([net.pool(e, "p"), net.pool(net.conv(e, "b", pad=0), "q")], b=OTHERS)
    assert of(found, "e").layout == "plain"
    assert [m.how for m in moves(found, "b")] == ["copy"]


def test_nor_where_it_is_a_result_of_the_model_or_an_input() -> None:
    net = Net()
    e = net.op("exp", net.x, name="e")
    _, found = net.placed(
        [e, net.pool(net.conv(e, "b", pad=0), "p"), net.pool(net.conv(net.y, "a", pad=0), "q")], b=OTHERS, a=OTHERS
    )
    assert of(found, "e").layout == of(found, "y").layout == "plain"
    assert [(m.tensor, m.how) for name in "ba" for m in moves(found, name)] == [("e", "copy"), ("y", "copy")]


def test_nor_where_tiles_overlap_or_a_border_is_around_it() -> None:
    """What holds elements twice is no layout for others; a border converts on the way (figure 5b)."""
    net = Net()
    _, found = net.placed([net.pool(net.conv(net.op("exp", net.x, name="e"), "c"), "p")], c=OTHERS)
    assert of(found, "e").layout == "plain"
    assert [m.how for m in moves(found, "c")] == ["border"]


def test_nor_against_a_layout_that_has_come_from_in_front() -> None:
    net = Net()
    a = net.conv(net.x, "a")
    r = net.op("relu", a, name="r")
    _, found = net.placed([*net.kept(a), net.pool(net.conv(r, "b", pad=0), "q")], a=TILES, b=OTHERS)
    assert (of(found, "r").layout, of(found, "r").asked_by) == (TILED, "a")
    assert [m.tensor for m in moves(found, "b")] == ["r"]


def test_what_moves_elements_makes_them_in_the_layout_that_is_asked_for() -> None:
    net = Net()
    t = net.op("transpose", net.x, name="t", perm=(0, 1, 3, 2))
    _, found = net.placed([net.pool(net.conv(t, "b", pad=0), "p")], b=OTHERS)
    assert (of(found, "t").layout, of(found, "t").asked_by) == (OTHERWISE, "b")
    assert not moves(found, "b")


def test_they_do_on_a_device() -> None:
    target, net = get_target("opencl -device=generic"), Net()
    y = net.conv(net.op("exp", net.x, name="e"), "b", pad=0)
    given = Given({"b": OTHERS}, target)
    fused = optimise(net.builder.finish([net.pool(y, "p")]), target, OPTIONS, Observer(), configurations=given)
    host, *regions = (lay_out(part, OPTIONS, Observer(), given) for part in parts_of(fused, target))
    found = placements_of(host, target, regions)
    assert (of(found, "e").layout, of(found, "e").asked_by) == (OTHERWISE, "b")
    assert not moves(found, "b")

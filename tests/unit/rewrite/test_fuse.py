"""Which operators fuse (TVM §3), and that fused graphs compute the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.ir import te
from mlc.ir.graph import FusionKind, Graph, Operator, Value
from mlc.ir.types import boolean, i64
from mlc.ops import get
from mlc.ops.algorithms import Algorithm
from mlc.rewrite.fuse import FuseLimits, fuse, group_each
from mlc.rewrite.group import body_of, is_group
from mlc.rewrite.winograd import use_winograd
from tests.fuzz import examples
from tests.unit.rewrite.helpers import Net, assert_same
from tests.unit.rewrite.random_graphs import random_graph


def groups(graph: Graph, limits: FuseLimits | None = None) -> list[str]:
    """The operators of each group after fusion, e.g. ``conv+add``; checks that results stay the same."""
    after = fuse(graph) if limits is None else fuse(graph, limits)
    assert_same(graph, after, rtol=1e-5, atol=1e-6)
    return ["+".join(m.op.name for m in body_of(n).nodes) if is_group(n) else n.op.name for n in after.nodes]


def conv(n: Net, x: Value, seed: int = 0, **attrs: object) -> Value:
    rank = x.type.rank - 2
    attrs = {"strides": (1,) * rank, "pads": (1,) * (2 * rank), "dilations": (1,) * rank, **attrs}
    return n.conv(x, n.w(x.type.shape[1], x.type.shape[1], *(3,) * rank, seed=seed), **attrs)


def image(n: Net, name: str = "x") -> Value:
    return n.x(1, 2, 4, 4, name=name)


# -- injective ------------------------------------------------------------------------------------------------------
def test_injective_operators_fuse() -> None:
    n = Net()
    y = n.transpose(n.relu(n.reshape(n.add(n.x(2, 6), n.w(6)), shape=(3, 4))), perm=(1, 0))
    assert groups(n(y)) == ["add+reshape+relu+transpose"]


def test_a_diamond_fuses_as_a_whole() -> None:
    n = Net()
    a = n.relu(n.x(3))
    assert groups(n(n.mul(n.neg(a), n.add(a, n.abs(a))))) == ["relu+neg+abs+add+mul"]


def test_what_is_read_by_two_kernels_is_computed_once() -> None:
    n = Net()
    a = n.exp(n.x(2, 3))
    assert groups(n(n.softmax(a), n.reduce_sum(n.neg(a), axes=(0,)))) == ["exp", "softmax", "neg+reduce_sum"]


def test_an_output_is_not_fused_into_its_reader() -> None:
    n = Net()
    a = n.neg(n.x(3))
    assert groups(n(n.relu(a), a)) == ["neg", "relu"]


# -- reductions -----------------------------------------------------------------------------------------------------
def test_a_reduction_takes_in_what_comes_before() -> None:
    n = Net()
    y = n.reduce_sum(n.transpose(n.mul(n.x(2, 3), n.w(3)), perm=(1, 0)), axes=(0,))
    assert groups(n(y)) == ["mul+transpose+reduce_sum"]


def test_nothing_follows_a_reduction() -> None:
    n = Net()
    x = n.x(2, 3)
    y = n.mul(n.softmax(x), n.reduce_max(x, axes=(1,)))
    assert groups(n(n.relu(y))) == ["softmax", "reduce_max", "mul+relu"]


def test_a_reduction_takes_in_a_cast_to_fewer_bits() -> None:
    n = Net()
    y = n.cast(n.softmax(n.neg(n.x(2, 3))), to="f16")
    assert groups(n(y)) == ["neg+softmax+cast"]
    assert groups(n(n.relu(y))) == ["neg+softmax+cast", "relu"]


def test_a_reduction_that_is_read_in_both_precisions_is_cast_apart() -> None:
    n = Net()
    y = n.softmax(n.x(2, 3))
    assert groups(n(y, n.cast(y, to="f16"))) == ["softmax", "cast"]
    n = Net()
    assert groups(n(n.cast(n.softmax(n.x(2, 3)), to="f64"))) == ["softmax", "cast"]


def test_two_reductions_never_share_a_group() -> None:
    n = Net()
    assert groups(n(n.reduce_sum(n.neg(n.softmax(n.x(2, 3))), axes=(1,)))) == ["softmax", "neg+reduce_sum"]


# -- complex operators ----------------------------------------------------------------------------------------------
def test_a_convolution_takes_in_its_bias_activation_and_residual_sum() -> None:
    n = Net()
    x = n.relu(image(n))
    y = n.relu(n.add(n.add(conv(n, x), n.w(2, 1, 1)), x))
    assert groups(n(y)) == ["relu", "conv+add+add+relu"]


def test_a_convolution_takes_in_a_diamond_behind_it() -> None:
    n = Net()
    y = conv(n, image(n))
    assert groups(n(n.mul(y, n.sigmoid(y)))) == ["conv+sigmoid+mul"]


def test_nothing_before_a_convolution_fuses_into_it() -> None:
    n = Net()
    assert groups(n(conv(n, n.relu(image(n))))) == ["relu", "conv"]


def test_elementwise_operators_beside_a_convolution_join_its_tail() -> None:
    n = Net()
    side = n.neg(n.add(image(n, "s"), n.w(2, 1, 1)))
    assert groups(n(n.add(conv(n, image(n)), side))) == ["conv+add+neg+add"]


def test_of_two_convolutions_one_takes_in_the_sum() -> None:
    n = Net()
    y = n.relu(n.add(conv(n, image(n)), conv(n, image(n, "y"), seed=1)))
    assert sorted(groups(n(y))) == ["conv", "conv+add+relu"]


@pytest.mark.parametrize("short_first", [True, False])
def test_the_shorter_of_two_branches_takes_in_the_sum(short_first: bool) -> None:
    n = Net()
    x = image(n)
    short = conv(n, x, seed=1) if short_first else None
    long = conv(n, n.relu(conv(n, x, seed=2)), seed=3)
    short = conv(n, x, seed=1) if short is None else short
    graph = n(n.relu(n.add(n.add(long, n.w(2, 1, 1)), n.add(short, n.w(2, 1, 1)))))
    assert groups(graph) == ["conv+relu", "conv+add", "conv+add+add+relu"]
    assert x in fuse(graph).nodes[-1].inputs


def test_a_residual_around_a_convolution_makes_no_cycle() -> None:
    n = Net()
    a = conv(n, image(n))
    assert groups(n(n.add(a, conv(n, a, seed=1)))) == ["conv", "conv+add"]


@pytest.mark.parametrize(
    "tail",
    [
        lambda n, y: n.reshape(y, shape=(32,)),
        lambda n, y: n.transpose(y, perm=(0, 2, 3, 1)),
        lambda n, y: n.add(y, n.x(3, 2, 4, 4, name="more")),  # the result is greater
        lambda n, y: n.concat(y, image(n, "c"), axis=1),
    ],
)
def test_operators_that_move_or_repeat_elements_do_not_follow_a_convolution(
    tail: Callable[[Net, Value], Value],
) -> None:
    n = Net()
    assert len(groups(n(n.relu(tail(n, conv(n, image(n))))))) == 2


def test_a_sum_that_was_widened_before_the_convolution_came_stays_outside() -> None:
    # `p` reaches past the sum, which so joins a group of another shape before the convolution is looked at
    n = Net()
    p = n.neg(image(n, "p"))
    s = n.add(p, conv(n, image(n)))
    wide = n.add(n.add(s, n.x(3, 2, 4, 4, name="more")), p)
    assert "conv" in groups(n(wide))


def test_matrix_products_take_in_casts_and_activations() -> None:
    n = Net()
    y = n.cast(n.gelu(n.add(n.matmul(n.x(3, 4), n.w(4, 5)), n.w(5))), to="f16")
    assert groups(n(y)) == ["matmul+add+gelu+cast"]


# -- opaque ---------------------------------------------------------------------------------------------------------
def test_opaque_operators_stay_alone() -> None:
    n = Net()
    values, indices = n.builder.add(get("top_k"), [n.neg(n.x(5))], {"k": 2, "axis": 0})
    assert groups(n(n.relu(values), indices)) == ["neg", "top_k", "relu"]


def test_an_operator_called_opaque_stays_alone_though_it_has_an_expression() -> None:
    own = Operator(
        "mine", FusionKind.OPAQUE, get("relu").infer, lambda ts, _: [te.compute(ts[0].shape, lambda *i: ts[0][i] * 2)]
    )
    n = Net()
    (y,) = n.builder.add(own, [n.neg(n.x(3))])
    assert groups(n(n.relu(y))) == ["neg", "mine", "relu"]


# -- limits ---------------------------------------------------------------------------------------------------------
def test_functions_are_not_computed_again_for_every_reader() -> None:
    n = Net()
    gate = n.sigmoid(n.x(1, 2, 1, 1, name="g"))
    assert groups(n(n.mul(image(n), gate))) == ["sigmoid", "mul"]


def test_cheap_arithmetic_may_be_repeated() -> None:
    n = Net()
    gate = n.mul(n.x(1, 2, 1, 1, name="g"), n.c(2.0))
    assert groups(n(n.mul(image(n), gate))) == ["mul+mul"]


def test_functions_stay_out_of_windows_that_overlap_much() -> None:
    attrs = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
    n = Net()
    assert groups(n(n.max_pool(n.tanh(n.x(1, 2, 9, 9)), kernel=(3, 3), **attrs))) == ["tanh", "max_pool"]
    n = Net()
    assert groups(n(n.max_pool(n.relu(n.x(1, 2, 9, 9)), kernel=(3, 3), **attrs))) == ["relu+max_pool"]


def test_padding_does_not_hide_how_often_a_window_reads() -> None:
    n = Net()
    attrs = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    y = n.max_pool(n.relu(n.tanh(n.x(1, 2, 9, 9))), kernel=(3, 3), **attrs)
    assert groups(n(y)) == ["tanh+relu", "max_pool"]


def test_recomputation_adds_up_along_a_path() -> None:
    n = Net()
    a = n.broadcast_to(n.tanh(n.x(4, 1)), shape=(4, 3))
    y = n.add(n.broadcast_to(a, shape=(2, 4, 3)), n.x(2, 4, 3))
    # three times is allowed, six times is not
    assert groups(n(y)) == ["tanh+broadcast_to", "broadcast_to+add"]


def test_groups_are_bounded_in_nodes() -> None:
    n = Net()
    v = n.x(2)
    for k in range(10):
        v = n.neg(v) if k % 2 else n.sigmoid(v)
    assert [g.count("+") + 1 for g in groups(n(v), FuseLimits(nodes=4))] == [4, 4, 2]


def test_groups_are_bounded_in_size_when_values_are_read_twice() -> None:
    n = Net()
    v = n.x(2)
    for _ in range(30):
        v = n.mul(v, v)
    graph = n(v)
    after = fuse(graph)
    # 2 ** 30 loads if everything were inlined
    assert 3 <= len(after.nodes) <= 6


def test_concats_that_may_be_made_in_place_stay_out_of_reductions() -> None:
    n = Net()
    assert groups(n(n.reduce_max(n.concat(image(n), image(n, "b"), axis=1), axes=(2,)))) == ["concat", "reduce_max"]
    n = Net()
    assert groups(n(n.reduce_max(n.concat(image(n), image(n, "b"), axis=2), axes=(2,)))) == ["concat+reduce_max"]


def test_computed_parts_are_put_together_last() -> None:
    n = Net()
    joined = n.concat(n.neg(n.x(3)), n.x(2), axis=0)
    assert groups(n(n.relu(joined))) == ["neg+concat", "relu"]
    n = Net()
    assert groups(n(n.relu(n.concat(n.x(3), n.x(2), axis=0)))) == ["concat+relu"]


# -- wrapping -------------------------------------------------------------------------------------------------------
def test_fusing_twice_changes_nothing() -> None:
    n = Net()
    after = fuse(n(n.relu(n.neg(n.x(2)))))
    assert fuse(after) is after
    assert group_each(after) is after


def test_without_fusion_every_operator_is_a_group() -> None:
    n = Net()
    graph = n(n.relu(n.add(n.x(3), n.c(1.0))))
    after = group_each(graph)
    assert [body_of(node).name for node in after.nodes] == ["g0_add", "g1_relu"]
    assert not after.constants
    assert_same(graph, after)


def test_an_output_that_is_a_literal_stays_a_constant_of_the_graph() -> None:
    n = Net()
    one = n.c(1.0)
    graph = n(n.add(n.x(3), one), one)
    assert list(fuse(graph).constants) == [one]
    assert_same(graph, fuse(graph))


def test_a_graph_without_nodes_is_left_alone() -> None:
    n = Net()
    graph = n(n.x(3))
    assert fuse(graph) is graph
    assert group_each(graph) is graph


@examples(40)
@given(st.data())
def test_random_graphs_compute_the_same_when_fused(data: st.DataObject) -> None:
    graph = random_graph(data)
    after = fuse(graph)
    assert_same(graph, after, rtol=1e-4, atol=1e-4)
    members = [m.outputs[0].name for n in after.nodes if is_group(n) for m in body_of(n).nodes]
    assert len(members) == len(set(members)), "something is computed twice"
    for node in after.nodes:
        if is_group(node):
            kinds = [m.op.kind for m in body_of(node).nodes]
            assert sum(k is not FusionKind.INJECTIVE for k in kinds) <= 1
            assert FusionKind.REDUCTION not in kinds[:-1]


# -- channel shuffles -----------------------------------------------------------------------------------------------
def test_a_depthwise_convolution_reads_through_a_channel_shuffle() -> None:
    n = Net()
    shuffled = n.channel_shuffle(n.x(1, 6, 4, 4), groups=3)
    window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    y = n.relu(n.conv(shuffled, n.w(6, 1, 3, 3), **window, groups=6))
    assert groups(n(y)) == ["channel_shuffle+conv+relu"]


def test_other_convolutions_read_a_shuffled_copy() -> None:
    n = Net()
    window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    y = n.conv(n.channel_shuffle(n.x(1, 6, 4, 4), groups=3), n.w(6, 2, 3, 3), **window, groups=3)
    assert groups(n(y)) == ["channel_shuffle", "conv"]


def test_grouped_convolutions_read_through_a_shuffle_of_blocks() -> None:
    n = Net()
    window = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
    x = n.channel_shuffle(n.x(1, 18, 4, 4), groups=3, block=2)
    y = n.conv(x, n.w(6, 6, 1, 1), **window, groups=3)
    assert groups(n(n.relu(y))) == ["channel_shuffle+conv+relu"]


# -- the text of a group ----------------------------------------------------------------------------------------------
def test_indices_do_not_double_without_end() -> None:
    """Reshapes of transposed matrices do not cancel: the index of thirty would have a billion terms."""
    n = Net()
    x = n.x(12, 10)
    for _ in range(30):
        x = n.reshape(n.transpose(x, perm=(1, 0)), shape=(12, 10))
    parts = groups(n(x))
    assert 2 < len(parts) < 10
    assert len(groups(n(x), FuseLimits(text=4))) > len(parts)


def test_expressions_do_not_double_without_end() -> None:
    """Each of these reads the one before in two places, and so at two to the power of their number in the end."""
    n = Net()
    x, i, c = n.x(16), n.x(16, dtype=i64, name="i"), n.x(16, dtype=boolean, name="c")
    for _ in range(30):
        x = n.where(c, n.gather(x, i, axis=0), x)
    assert len(fuse(n(x)).nodes) < 30


def test_what_an_operator_takes_by_itself_is_no_reason_not_to_fuse() -> None:
    """Each of these transforms reads its tile in dozens of places."""
    n = Net()
    conv_ = n.conv(n.x(1, 8, 8, 8), n.w(8, 8, 3, 3), strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1))
    graph = use_winograd(n(n.leaky_relu(n.relu(conv_), alpha=0.1)), lambda _: Algorithm.WINOGRAD_4)
    last = fuse(graph, FuseLimits(text=1)).nodes[-1]
    assert [m.op.name for m in body_of(last).nodes] == ["conv_winograd", "relu", "leaky_relu"]

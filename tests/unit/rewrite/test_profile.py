"""What inlining costs, from expressions."""

from __future__ import annotations

import pytest

from mlc.ir.graph import Node
from mlc.ir.types import i64
from mlc.rewrite.profile import Profiler
from tests.unit.rewrite.helpers import Net


def profile(build):
    n = Net()
    node: Node = n(build(n)).nodes[-1]
    return Profiler()(node)


def test_an_elementwise_operator_reads_each_element_once() -> None:
    p = profile(lambda n: n.add(n.x(2, 3), n.x(2, 3)))
    assert (p.sites, p.reads, p.dear) == ((1, 1), (1.0, 1.0), 0)


def test_a_repeated_operand_is_read_for_every_repetition() -> None:
    assert profile(lambda n: n.add(n.x(2, 3), n.x(3))).reads == (1.0, 2.0)


def test_one_tensor_given_twice_is_one_operand() -> None:
    p = profile(lambda n: (lambda x: n.mul(x, x))(n.x(3)))
    assert (p.sites, p.reads) == ((2,), (1.0,))


def test_stages_of_a_softmax_read_its_operand_three_times() -> None:
    p = profile(lambda n: n.softmax(n.x(2, 8)))
    assert p.reads == (3.0,)
    assert p.dear == 1


@pytest.mark.parametrize("pads", [(0, 0), (1, 1)])
def test_overlapping_windows_read_an_element_often(pads: tuple[int, int]) -> None:
    p = profile(lambda n: n.max_pool(n.x(1, 1, 100), kernel=(5,), strides=(1,), pads=pads, dilations=(1,)))
    assert p.reads[0] == pytest.approx(5, rel=0.1)


def test_functions_are_dear_and_arithmetic_is_not() -> None:
    assert profile(lambda n: n.gelu(n.x(3))).dear == 1
    assert profile(lambda n: n.pow(n.x(3), n.x(3))).dear == 1
    assert profile(lambda n: n.sqrt(n.abs(n.x(3)))).dear == 0


def test_equal_applications_share_a_profile() -> None:
    n = Net()
    graph = n(n.relu(n.x(3)), n.relu(n.x(3)), n.relu(n.x(4)))
    profiler = Profiler()
    a, b, c = (profiler(node) for node in graph.nodes)
    assert a is b is not c


def test_empty_tensors_have_profiles() -> None:
    assert profile(lambda n: n.neg(n.x(0, 3))).reads == (0.0,)


def test_views_that_mix_their_axes_write_them_down_twice() -> None:
    """An element of a flattened matrix lies at ``[k // 4, k % 4]``."""
    assert profile(lambda n: n.reshape(n.x(6, 4), shape=(24,))).growth == (2,)
    assert profile(lambda n: n.reshape(n.x(24), shape=(6, 4))).growth == (1,)
    assert profile(lambda n: n.transpose(n.x(6, 4), perm=(1, 0))).growth == (1,)


def test_what_an_index_computes_with_is_written_down_more_often_than_it_is_loaded() -> None:
    """A negative position counts from the end: ``i < 0 ? i + n : i``."""
    p = profile(lambda n: n.gather(n.x(5), n.x(4, dtype=i64), axis=0))
    assert p.sites[1] == 1
    assert p.written[1] >= 2
    assert p.growth[0] == p.written[1]

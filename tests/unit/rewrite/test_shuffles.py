"""Shuffles between grouped convolutions of integers move blocks of channels: where, and that nothing changes."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.ir.graph import Graph, Value
from mlc.ir.types import u8
from mlc.rewrite.shuffles import shuffle_blocks
from mlc.targets.base import get_target
from tests.unit.rewrite.helpers import Net, assert_same, op_names


def conv(n: Net, x: Value, filters: int, taps: int, groups: int, seed: int) -> Value:
    shape = (filters, x.type.shape[1] // groups, taps, taps)
    w = n.c(np.random.default_rng(seed).integers(-60, 61, shape), "int8")
    return n.conv(x, w, strides=(1, 1), pads=(0,) * 4, dilations=(1, 1), groups=groups)


def to_bytes(n: Net, sums: Value, seed: int) -> Value:
    """Sums with a bias and a factor for each channel, as requantisation has them."""
    channels = sums.type.shape[1]
    biased = n.add(sums, n.c(np.random.default_rng(seed).integers(-99, 99, (channels, 1, 1)), "int32"))
    factor = n.c(np.random.default_rng(seed).uniform(0.001, 0.01, (channels, 1, 1)))
    return n.cast(n.clip(n.round(n.mul(n.cast(biased, to="f32"), factor)), lo=0.0, hi=255.0), to="u8")


def unit(groups: int = 3, behind: int = 3, middle: int = 30, channels: int = 12, *, twice: bool = False) -> Graph:
    """Of ShuffleNet: a grouped convolution, a shuffle, a depthwise convolution with a border of 7, another grouped one.

    Args:
        groups: of the first convolution and of the shuffle.
        behind: of the last convolution.
        middle: channels between them.
        channels: of the input.
        twice: whether somebody else reads the shuffle's result.
    """
    n = Net()
    before = to_bytes(n, conv(n, n.x(2, channels, 5, 4, dtype=u8), middle, 1, groups, 1), 2)
    shuffled = n.channel_shuffle(before, groups=groups)
    around = n.pad(shuffled, pads=(0, 0, 1, 1, 0, 0, 1, 1), value=7.0)
    own = to_bytes(n, conv(n, around, middle, 3, middle, 3), 4)
    y = conv(n, own, 2 * behind, 1, behind, 5)
    return n(*([y, shuffled] if twice else [y]))


@pytest.mark.parametrize(
    ("groups", "behind", "middle", "block"), [(3, 3, 30, 4), (3, 3, 36, 4), (2, 4, 32, 4), (4, 2, 24, 4), (5, 5, 50, 2)]
)
def test_the_same_numbers_from_blocks(groups: int, behind: int, middle: int, block: int) -> None:
    before = unit(groups, behind, middle, channels=4 * groups)
    after = shuffle_blocks(before, block)
    (shuffle,) = (node for node in after.nodes if node.op.name == "channel_shuffle")
    assert shuffle.attrs == {"groups": groups, "block": block}
    assert shuffle.outputs[0].type.shape[1] == groups * behind * block
    assert_same(before, after)
    # behind the depthwise convolution, not before it
    names = op_names(after)
    assert names.index("channel_shuffle") > names.index("pad")
    assert shuffle_blocks(after, block) is after


def test_blocks_that_are_more_than_half_empty_are_not_worth_it() -> None:
    graph = unit()
    assert shuffle_blocks(graph, 16) is graph


def test_a_target_may_want_no_blocks() -> None:
    graph = unit()
    assert shuffle_blocks(graph, 0) is graph
    assert get_target("x86 -mcpu=knl").channel_block() == 0  # whose vectors have no bytes
    assert get_target("x86 -mcpu=haswell").channel_block() == 8


def test_what_others_read_stays() -> None:
    graph = unit(twice=True)
    assert shuffle_blocks(graph, 4) is graph


def test_floats_stay() -> None:
    n = Net()
    window = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "groups": 3}
    x = n.channel_shuffle(n.conv(n.x(1, 12, 4, 4), n.w(30, 4, 1, 1), **window), groups=3)
    graph = n(n.conv(x, n.w(6, 10, 1, 1), **window))
    assert shuffle_blocks(graph, 4) is graph

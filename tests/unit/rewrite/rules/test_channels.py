"""Channel shuffles: recognised, and taken into the weights of convolutions before and behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mlc.ir.graph import Graph, Value
from mlc.rewrite.recognise import recognise_operators
from mlc.rewrite.rules import channels
from tests.unit.rewrite.helpers import Net, apply_rule, assert_same, op_names

RULES = {r.name: r for r in (*channels.SPELLINGS, *channels.RULES)}
BEFORE, BEHIND = "channel_shuffle_into_weights_before", "channel_shuffle_into_weights_behind"


def spelled(n: Net, x: Value, groups: int, *, flat: bool = False) -> Value:
    b, c, *space = x.type.shape
    size = 1
    for extent in space:
        size *= extent
    inner = [size] if flat else space
    cut = n.reshape(x, shape=(b, groups, c // groups, *inner))
    return n.reshape(n.transpose(cut, perm=(0, 2, 1, *range(3, 3 + len(inner)))), shape=x.type.shape)


def conv(n: Net, x: Value, filters: int, groups: int = 1, seed: int = 0) -> Value:
    rank = x.type.rank - 2
    w = n.w(filters, x.type.shape[1] // groups, *(3,) * rank, seed=seed)
    return n.conv(x, w, strides=(1,) * rank, pads=(1,) * 2 * rank, dilations=(1,) * rank, groups=groups)


def pool(n: Net, x: Value) -> Value:
    return n.max_pool(x, kernel=(2, 2), strides=(2, 2), pads=(0, 0, 0, 0), dilations=(1, 1))


@pytest.mark.parametrize(
    "shape, groups", [((1, 6, 4, 4), 2), ((2, 15, 3, 5), 3), ((2, 15, 3), 5), ((1, 9, 2, 2, 2), 9)]
)
@pytest.mark.parametrize("flat", [False, True])
def test_the_spelling_is_recognised(shape: tuple[int, ...], groups: int, flat: bool) -> None:
    n = Net()
    before = n(spelled(n, n.x(*shape), groups, flat=flat))
    after = recognise_operators(before)
    assert op_names(after) == ["channel_shuffle"]
    assert_same(before, after)


def test_other_transposes_stay() -> None:
    n = Net()
    cut = n.reshape(n.x(2, 6, 4), shape=(2, 2, 3, 4))
    y = n.reshape(n.transpose(cut, perm=(0, 1, 3, 2)), shape=(2, 6, 4))
    assert "channel_shuffle" not in op_names(recognise_operators(n(y)))
    n = Net()
    cut = n.reshape(n.x(2, 6, 4), shape=(3, 2, 4, 2))  # not the channels
    y = n.reshape(n.transpose(cut, perm=(0, 2, 1, 3)), shape=(2, 6, 4))
    assert "channel_shuffle" not in op_names(recognise_operators(n(y)))


def image(n: Net, channels: int = 15) -> Value:
    return n.x(2, channels, 4, 4)


def residual(n: Net) -> Value:
    """A sum of two convolutions, one of them depthwise on top of another."""
    x = image(n, 5)
    return n.add(conv(n, x, 6), conv(n, conv(n, x, 6, seed=1), 6, groups=6, seed=2))


FIRES: list[tuple[str, Callable[[Net], Value]]] = [
    (BEFORE, lambda n: n.channel_shuffle(conv(n, image(n, 4), 15), groups=3)),
    (BEFORE, lambda n: n.channel_shuffle(n.relu(n.add(conv(n, image(n, 4), 15), n.w(15, 1, 1))), groups=5)),
    (BEFORE, lambda n: n.channel_shuffle(pool(n, n.mul(conv(n, image(n, 4), 15), n.c(2.0))), groups=3)),
    (BEFORE, lambda n: n.channel_shuffle(n.add(conv(n, image(n, 4), 6), n.w(4, 4)), groups=3)),
    (BEFORE, lambda n: n.channel_shuffle(residual(n), groups=2)),
    (BEHIND, lambda n: conv(n, n.channel_shuffle(image(n), groups=3), 4)),
    (BEHIND, lambda n: conv(n, n.relu(n.add(n.channel_shuffle(image(n), groups=5), n.w(15, 1, 1))), 4)),
    (BEHIND, lambda n: conv(n, pool(n, conv(n, n.channel_shuffle(image(n), groups=5), 15, groups=15)), 4, seed=1)),
]


@pytest.mark.parametrize("name, build", FIRES, ids=[f"{k}-{case[0]}" for k, case in enumerate(FIRES)])
def test_a_convolution_takes_the_shuffle_in(name: str, build: Callable[[Net], Value]) -> None:
    n = Net()
    before = n(build(n))
    after = apply_rule(RULES[name], before)
    assert "channel_shuffle" in op_names(before)
    assert "channel_shuffle" not in op_names(after)
    assert_same(before, after, rtol=1e-6, atol=1e-6)


def read_twice(n: Net) -> Graph:
    y = conv(n, image(n, 4), 15)
    return n(n.channel_shuffle(y, groups=3), y)


KEEPS_OFF: list[tuple[str, Callable[[Net], Graph]]] = [
    (BEFORE, lambda n: n(n.channel_shuffle(conv(n, image(n), 15, groups=3), groups=3))),
    (BEFORE, read_twice),
    (BEFORE, lambda n: n(n.channel_shuffle(n.add(conv(n, image(n, 4), 6), n.x(2, 6, 4, 4, name="y")), groups=3))),
    (BEFORE, lambda n: n(n.channel_shuffle(n.softmax(conv(n, image(n, 4), 6), axis=1), groups=3))),
    (BEHIND, lambda n: n(conv(n, n.channel_shuffle(image(n), groups=3), 15, groups=3))),
    (
        BEHIND,
        lambda n: n(
            conv(
                n,
                n.add(n.channel_shuffle(image(n), groups=3), n.channel_shuffle(n.x(2, 15, 4, 4, name="y"), groups=5)),
                4,
            )
        ),
    ),
]


@pytest.mark.parametrize("name, build", KEEPS_OFF, ids=[f"{k}-{case[0]}" for k, case in enumerate(KEEPS_OFF)])
def test_a_shuffle_stays(name: str, build: Callable[[Net], Graph]) -> None:
    before = build(Net())
    assert apply_rule(RULES[name], before) is before

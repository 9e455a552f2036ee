"""Pads taken into convolutions and pools."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mlc.ir.graph import Graph, Value
from mlc.rewrite.rules import windows
from tests.unit.rewrite.helpers import Net, apply_rule, assert_same, op_names

RULES = {r.name: r for r in windows.RULES}
SPATIAL = (0, 0, 1, 2, 0, 0, 0, 1)


def image(n: Net) -> Value:
    return n.x(1, 3, 6, 6)


def conv(n: Net, x: Value, **attrs: object) -> Graph:
    w = n.w(2, x.type.shape[1], 3, 3)
    return n(n.conv(x, w, **{"strides": (1, 2), "pads": (1, 0, 1, 0), "dilations": (1, 1), **attrs}))


def pool(n: Net, kind: str, x: Value, pads: tuple[int, ...] = (0, 0, 0, 0), **attrs: object) -> Graph:
    op = getattr(n, kind)
    return n(op(x, **{"kernel": (3, 2), "strides": (2, 1), "pads": pads, "dilations": (1, 1), **attrs}))


def padded(n: Net, x: Value, *pads: int, value: float = 0.0) -> Value:
    return n.pad(x, pads=pads or SPATIAL, value=value)


ONE_ROUND = (0, 0, 1, 1, 0, 0, 1, 0)

FIRES: list[tuple[str, Callable[[Net], Graph]]] = [
    ("pad_into_conv", lambda n: conv(n, padded(n, image(n)))),
    ("pad_into_avg_pool", lambda n: pool(n, "avg_pool", padded(n, image(n)))),
    ("pad_into_avg_pool", lambda n: pool(n, "avg_pool", padded(n, image(n)), (1, 0, 0, 1), count_include_pad=True)),
    ("pad_into_avg_pool", lambda n: pool(n, "avg_pool", padded(n, image(n)), output_shape=(4, 9))),
    ("pad_into_max_pool", lambda n: pool(n, "max_pool", padded(n, image(n), value=float("-inf")))),
    ("pad_into_max_pool", lambda n: pool(n, "max_pool", padded(n, n.relu(image(n)), *ONE_ROUND))),
    ("pad_into_max_pool", lambda n: pool(n, "max_pool", padded(n, n.clip(image(n), lo=0.0, hi=2.0), *ONE_ROUND))),
]


@pytest.mark.parametrize("name, build", FIRES, ids=[f"{k}-{case[0]}" for k, case in enumerate(FIRES)])
def test_pad_goes_into_the_window(name: str, build: Callable[[Net], Graph]) -> None:
    before = build(Net())
    after = apply_rule(RULES[name], before)
    assert "pad" in op_names(before)
    assert "pad" not in op_names(after)
    assert_same(before, after, rtol=1e-6, atol=1e-6)


KEEPS_OFF: list[tuple[str, Callable[[Net], Graph]]] = [
    ("pad_into_conv", lambda n: conv(n, n.pad(n.x(1, 3, 6, 6), pads=SPATIAL, value=1.0))),
    ("pad_into_conv", lambda n: conv(n, n.pad(n.x(1, 3, 6, 6), pads=SPATIAL, mode="edge"))),
    ("pad_into_conv", lambda n: conv(n, n.pad(n.x(1, 3, 9, 9), pads=(0, 0, -1, 2, 0, 0, 0, 1)))),
    ("pad_into_conv", lambda n: conv(n, n.pad(n.x(1, 3, 6, 6), pads=(0, 1, 0, 0, 0, 0, 0, 0)))),
    ("pad_into_avg_pool", lambda n: pool(n, "avg_pool", n.pad(n.x(1, 3, 6, 6), pads=SPATIAL), (1, 0, 0, 1))),
    ("pad_into_max_pool", lambda n: pool(n, "max_pool", n.pad(n.x(1, 3, 6, 6), pads=SPATIAL))),
    # the last windows lie in the padding alone
    ("pad_into_max_pool", lambda n: pool(n, "max_pool", n.pad(n.relu(n.x(1, 3, 6, 6)), pads=(0, 0, 0, 0, 0, 0, 0, 2)))),
    ("pad_into_max_pool", lambda n: pool(n, "max_pool", n.pad(n.neg(n.x(1, 3, 6, 6)), pads=SPATIAL))),
]


@pytest.mark.parametrize("name, build", KEEPS_OFF, ids=[f"{k}-{case[0]}" for k, case in enumerate(KEEPS_OFF)])
def test_pad_stays(name: str, build: Callable[[Net], Graph]) -> None:
    before = build(Net())
    assert apply_rule(RULES[name], before) is before


@pytest.mark.parametrize("kind, reduction", [("avg_pool", "reduce_mean"), ("max_pool", "reduce_max")])
def test_pool_of_everything_is_a_reduction(kind: str, reduction: str) -> None:
    n = Net()
    before = pool(n, kind, image(n), kernel=(6, 6))
    after = apply_rule(RULES[f"{kind}_of_everything"], before)
    assert op_names(after) == [reduction]
    assert_same(before, after, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "attrs", [{"kernel": (6, 5)}, {"kernel": (6, 6), "pads": (1, 0, 1, 0)}, {"kernel": (3, 3), "dilations": (2, 2)}]
)
def test_pool_of_a_part_stays(attrs: dict[str, tuple[int, ...]]) -> None:
    n = Net()
    before = pool(n, "avg_pool", image(n), **attrs)
    assert apply_rule(RULES["avg_pool_of_everything"], before) is before


def test_every_rule_has_a_case() -> None:
    elsewhere = {
        "avg_pool_of_everything", "max_pool_of_everything", "conv_taps_in_padding", "transposed_without_strides",
        "conv_transpose_of_pixel",
    }  # fmt: skip
    assert {name for name, *_ in FIRES} | elsewhere == set(RULES)


@pytest.mark.parametrize(
    "size, attrs, kernel",
    [
        ((5, 6), {"pads": (8, 8, 8, 8), "dilations": (8, 8), "strides": (1, 1)}, (1, 1)),
        ((5, 9), {"pads": (6, 6, 6, 6), "dilations": (6, 6), "strides": (1, 1)}, (1, 3)),
        ((3, 6), {"pads": (4, 0, 1, 0), "dilations": (3, 1), "strides": (1, 1)}, (2, 3)),
        ((4, 6), {"pads": (9, 1, 5, 1), "dilations": (5, 1), "strides": (2, 1)}, (2, 3)),
    ],
)
def test_taps_that_meet_padding_only_are_left_out(
    size: tuple[int, int], attrs: dict[str, object], kernel: tuple[int, int]
) -> None:
    net = Net()
    before = conv(net, net.x(1, 3, *size), **attrs)
    after = apply_rule(RULES["conv_taps_in_padding"], before)
    assert next(node for node in after.nodes if node.op.name == "conv").inputs[1].type.shape[2:] == kernel
    assert_same(before, after, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "size, attrs",
    [
        ((6, 6), {"pads": (1, 1, 1, 1), "dilations": (1, 1)}),
        ((9, 9), {"pads": (8, 8, 8, 8), "dilations": (8, 8)}),  # the last tap of the last window is inside
        ((3, 3), {"pads": (0, 0, 2, 2), "dilations": (1, 1)}),
    ],
)
def test_taps_that_meet_elements_stay(size: tuple[int, int], attrs: dict[str, object]) -> None:
    net = Net()
    before = conv(net, net.x(1, 3, *size), **{"strides": (1, 1), **attrs})
    assert apply_rule(RULES["conv_taps_in_padding"], before) is before


def transposed(n: Net, channels: int, *weights: int, size: tuple[int, int] = (4, 5), **attrs: object) -> Graph:
    usual = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "groups": 1}
    return n(n.conv_transpose(n.x(2, channels, *size), n.w(channels, *weights), **{**usual, **attrs}))


@pytest.mark.parametrize(
    "channels, weights, attrs",
    [
        (3, (4, 2, 3), {}),
        (3, (4, 3, 3), {"pads": (1, 0, 2, 1)}),
        (6, (2, 3, 2), {"groups": 3, "dilations": (2, 1)}),
        (4, (1, 3, 3), {"groups": 4, "output_shape": (8, 9)}),  # two rows and columns more than any tap reaches
        (5, (3, 1, 1), {}),
    ],
)
def test_transposed_without_strides_is_a_convolution(
    channels: int, weights: tuple[int, ...], attrs: dict[str, object]
) -> None:
    before = transposed(Net(), channels, *weights, **attrs)
    after = apply_rule(RULES["transposed_without_strides"], before)
    assert op_names(after) == ["conv"]
    assert_same(before, after, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("attrs", [{"strides": (1, 2)}, {"pads": (3, 0, 0, 0)}, {"pads": (0, 0, 0, 4)}])
def test_transposed_with_strides_or_cut_off_stays(attrs: dict[str, object]) -> None:
    before = transposed(Net(), 3, 4, 3, 3, **attrs)
    assert apply_rule(RULES["transposed_without_strides"], before) is before


@pytest.mark.parametrize("attrs", [{}, {"strides": (2, 3)}, {"output_shape": (3, 4)}])
def test_transposed_convolution_of_a_pixel_is_a_product(attrs: dict[str, object]) -> None:
    before = transposed(Net(), 5, 3, 3, 4, size=(1, 1), **attrs)
    after = apply_rule(RULES["conv_transpose_of_pixel"], before)
    assert "matmul" in op_names(after)
    assert "conv_transpose" not in op_names(after)
    assert_same(before, after, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "size, attrs",
    [
        ((1, 2), {}),
        ((1, 1), {"groups": 2}),
        ((1, 1), {"pads": (1, 0, 0, 0)}),
        ((1, 1), {"dilations": (2, 1)}),
    ],
)
def test_transposed_convolutions_of_more_stay(size: tuple[int, int], attrs: dict[str, object]) -> None:
    before = transposed(Net(), 4, 2, 3, 3, size=size, **attrs)
    assert apply_rule(RULES["conv_transpose_of_pixel"], before) is before

"""Rules on operators that only move elements: results are equal bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.ir.graph import Graph
from mlc.rewrite.pattern import RuleSet, apply_rules
from mlc.rewrite.rules import views
from tests.fuzz import examples
from tests.unit.rewrite.helpers import Net, apply_rule, assert_same, op_names

RULES = {r.name: r for r in views.RULES}
Build = Callable[[Net], Graph]


def cut(n: Net, x: object, *ranges: slice | tuple[int, int, int]):
    begin, end, step = zip(*ranges, strict=True)
    return n.slice(x, begin=begin, end=end, step=step)


def turned(n: Net, x: object, *perm: int):
    return n.transpose(x, perm=perm)


def spread(n: Net, x: object, *shape: int):
    return n.broadcast_to(x, shape=shape)


def two_slices(n: Net, *, gap: int = 0, step: int = 1) -> Graph:
    x = n.x(2, 8)
    a = cut(n, x, (0, 2, 1), (1, 4, step))
    b = cut(n, x, (0, 2, 1), (4 + gap, 7, 1))
    return n(n.concat(a, b, axis=1))


def shared_concat(n: Net) -> Graph:
    inner = n.concat(n.x(2), n.x(3, name="y"), axis=0)
    return n(n.concat(inner, n.x(1, name="z"), axis=0), inner)


FIRES: list[tuple[str, Build, list[str]]] = [
    ("reshape_nothing", lambda n: n(n.reshape(n.x(2, 3), shape=(2, 3))), []),
    ("reshape_chain", lambda n: n(n.reshape(n.reshape(n.x(2, 6), shape=(12,)), shape=(3, 4))), ["reshape"]),
    ("reshape_chain", lambda n: n(n.reshape(n.reshape(n.x(2, 6), shape=(12,)), shape=(2, 6))), []),
    ("transpose_nothing", lambda n: n(n.transpose(n.x(2, 3), perm=(0, 1))), []),
    ("transpose_chain", lambda n: n(turned(n, turned(n, n.x(2, 3, 4), 2, 0, 1), 0, 2, 1)), ["transpose"]),
    ("transpose_chain", lambda n: n(turned(n, turned(n, n.x(2, 3, 4), 2, 0, 1), 1, 2, 0)), []),
    ("transpose_is_reshape", lambda n: n(n.transpose(n.x(1, 3, 1, 4), perm=(1, 0, 3, 2))), ["reshape"]),
    ("slice_nothing", lambda n: n(cut(n, n.x(2, 3), (0, 2, 1), (0, 3, 1))), []),
    ("slice_chain", lambda n: n(cut(n, cut(n, n.x(9), (8, -1, -2)), (1, 4, 2))), ["slice"]),
    ("slice_chain", lambda n: n(cut(n, cut(n, n.x(9), (1, 8, 1)), (6, -1, -3))), ["slice"]),
    ("slice_of_concat", lambda n: n(cut(n, n.concat(n.x(3), n.x(4, name="y"), axis=0), (6, 3, -2))), ["slice"]),
    ("slice_of_concat", lambda n: n(cut(n, n.concat(n.x(3), n.x(4, name="y"), axis=0), (3, 7, 1))), []),
    ("concat_of_one", lambda n: n(n.concat(n.x(3), axis=0)), []),
    ("concat_of_empty", lambda n: n(n.concat(n.x(0, 2), n.x(3, 2, name="y"), axis=0)), []),
    ("concat_of_empty", lambda n: n(n.concat(n.x(2), n.x(0, name="e"), n.x(3, name="y"), axis=0)), ["concat"]),
    ("concat_chain", lambda n: n(n.concat(n.concat(n.x(2), n.x(3), axis=0), n.x(1), axis=0)), ["concat"]),
    ("concat_of_slices", lambda n: two_slices(n), ["slice"]),
    ("gather_is_slice", lambda n: n(n.gather(n.x(4, 5), n.c(-2, "int64"), axis=1)), ["slice", "reshape"]),
    ("gather_is_slice", lambda n: n(n.gather(n.x(4, 5), n.c([3, 1], "int32"), axis=0)), ["slice"]),
    ("gather_is_slice", lambda n: n(n.gather(n.x(4, 5), n.c([[0, 1], [2, 3]], "int64"), axis=0)), ["reshape"]),
    ("pad_nothing", lambda n: n(n.pad(n.x(2, 3), pads=(0, 0, 0, 0))), []),
    ("pad_chain", lambda n: n(n.pad(n.pad(n.x(2), pads=(1, 2), value=3.0), pads=(0, 1), value=3.0)), ["pad"]),
    (
        "transpose_before_pad",
        lambda n: n(n.transpose(n.pad(n.x(2, 3), pads=(1, 0, 2, 4), value=2.0), perm=(1, 0))),
        ["transpose", "pad"],
    ),
    ("tile_is_broadcast", lambda n: n(n.tile(n.x(1, 3), repeats=(4, 1))), ["broadcast_to"]),
    ("tile_is_broadcast", lambda n: n(n.tile(n.x(2, 3), repeats=(1, 1))), []),
    ("broadcast_nothing", lambda n: n(n.broadcast_to(n.x(2, 3), shape=(2, 3))), []),
    ("broadcast_chain", lambda n: n(spread(n, spread(n, n.x(3), 2, 3), 4, 2, 3)), ["broadcast_to"]),
    ("reduce_nothing", lambda n: n(n.reduce_mean(n.x(2, 1, 3, 1), axes=(1, 3), keepdims=False)), ["reshape"]),
    ("reduce_nothing", lambda n: n(n.reduce_max(n.x(2, 1), axes=(1,))), []),
]  # fmt: skip


@pytest.mark.parametrize("name, build, expected", FIRES, ids=[f"{k}-{case[0]}" for k, case in enumerate(FIRES)])
def test_rule_fires_and_moves_the_same_elements(name: str, build: Build, expected: list[str]) -> None:
    before = build(Net())
    after = apply_rule(RULES[name], before)
    assert after is not before
    assert op_names(after) == expected
    assert_same(before, after)


KEEPS_OFF: list[tuple[str, Build]] = [
    ("reshape_nothing", lambda n: n(n.reshape(n.x(2, 3), shape=(3, 2)))),
    ("transpose_is_reshape", lambda n: n(n.transpose(n.x(1, 3, 4), perm=(2, 0, 1)))),
    ("slice_nothing", lambda n: n(cut(n, n.x(3), (2, -1, -1)))),
    ("slice_of_concat", lambda n: n(cut(n, n.concat(n.x(3), n.x(4), axis=0), (2, 5, 1)))),
    ("concat_chain", shared_concat),
    ("concat_chain", lambda n: n(n.concat(n.concat(n.x(1, 2), n.x(1, 2), axis=0), n.x(2, 1), axis=1))),
    ("concat_of_slices", lambda n: two_slices(n, gap=1)),
    ("concat_of_slices", lambda n: two_slices(n, step=2)),
    ("gather_is_slice", lambda n: n(n.gather(n.x(4, 5), n.c([0, 1, 3], "int64"), axis=0))),
    ("gather_is_slice", lambda n: n(n.gather(n.x(4, 5), n.c([1, 1], "int64"), axis=0))),
    ("gather_is_slice", lambda n: n(n.gather(n.x(4, 5), n.c([9], "int64"), axis=0))),  # out of range: left as it is
    ("gather_is_slice", lambda n: n(n.gather(n.w(4, 5), n.x(2, dtype="i64"), axis=0))),
    ("pad_chain", lambda n: n(n.pad(n.pad(n.x(2), pads=(1, 2), value=3.0), pads=(0, 1), value=2.0))),
    ("pad_chain", lambda n: n(n.pad(n.pad(n.x(4), pads=(1, 2)), pads=(-2, 1)))),
    ("tile_is_broadcast", lambda n: n(n.tile(n.x(2), repeats=(2,)))),
    ("reduce_nothing", lambda n: n(n.reduce_sum(n.x(2, 1), axes=(0, 1)))),
]


@pytest.mark.parametrize("name, build", KEEPS_OFF, ids=[f"{k}-{case[0]}" for k, case in enumerate(KEEPS_OFF)])
def test_rule_keeps_off(name: str, build: Build) -> None:
    before = build(Net())
    assert apply_rule(RULES[name], before) is before


def test_every_rule_has_a_case() -> None:
    assert {name for name, *_ in FIRES} == set(RULES)


@examples(40)
@given(st.data())
def test_random_chains_of_views_keep_their_elements(data: st.DataObject) -> None:
    n = Net()
    v = n.x(2, 3, 4)
    for _ in range(data.draw(st.integers(2, 7))):
        shape = v.type.shape
        kind = data.draw(st.sampled_from(["reshape", "transpose", "slice", "concat", "pad", "broadcast"]))
        if kind == "reshape":
            flat = int(np.prod(shape))
            options = [
                s for s in ((flat,), (1, flat), (flat, 1), (2, flat // 2), (flat // 2, 2, 1)) if np.prod(s) == flat
            ]
            v = n.reshape(v, shape=data.draw(st.sampled_from(options)))
        elif kind == "transpose":
            v = n.transpose(v, perm=tuple(data.draw(st.permutations(range(len(shape))))))
        elif kind == "slice":
            ranges = []
            for extent in shape:
                a, b = sorted(data.draw(st.tuples(st.integers(0, extent), st.integers(0, extent))))
                step = data.draw(st.sampled_from([1, 1, 2]))
                ranges.append(data.draw(st.sampled_from([(a, b, step), (b - 1, a - 1, -step), (0, extent, 1)])))
            v = cut(n, v, *ranges)
        elif kind == "concat" and v.type.size < 500:
            v = n.concat(v, v, axis=data.draw(st.integers(0, len(shape) - 1)))
        elif kind == "pad":
            v = n.pad(v, pads=tuple(data.draw(st.integers(0, 1)) for _ in range(2 * len(shape))), value=1.0)
        elif kind == "broadcast":
            v = n.broadcast_to(v, shape=(2, *shape) if len(shape) < 5 else shape)
    before = n(v)
    assert_same(before, apply_rules(before, RuleSet(views.RULES)))

"""Blocks in an arena."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from mlc.rewrite import arena
from mlc.rewrite.arena import ALIGNMENT, Block, live_bytes, place, rounded
from tests.fuzz import examples

blocks = st.builds(
    lambda size, first, length: Block(size, first, first + length),
    st.sampled_from([0, 1, 64, 65, 200, 1000, 4096]),
    st.integers(0, 12),
    st.integers(0, 6),
)


@examples(100)
@given(st.lists(blocks, max_size=14))
def test_blocks_that_live_together_lie_apart(given_blocks: list[Block]) -> None:
    for strategy in (place, arena._by_time, arena._by_size):
        offsets, total = strategy(given_blocks)
        for k, (a, x) in enumerate(zip(given_blocks, offsets, strict=True)):
            assert x % ALIGNMENT == 0
            assert x + a.size <= total or not a.size
            for b, y in zip(given_blocks[:k], offsets, strict=False):
                meet = a.first <= b.last and b.first <= a.last and a.size and b.size
                assert not meet or x >= y + b.size or y >= x + a.size
        assert live_bytes(given_blocks) <= total <= sum(rounded(b.size) for b in given_blocks)


def test_a_chain_needs_two_blocks_at_a_time() -> None:
    chain = [Block(1000, k, k + 1) for k in range(50)]
    assert place(chain)[1] == live_bytes(chain) == 2 * 1024


def test_the_better_of_two_orders_is_taken() -> None:
    # by time the small one lies below and the great one cannot use its room
    tricky = [Block(64, 0, 2), Block(64, 1, 1), Block(128, 2, 3), Block(192, 3, 4)]
    assert place(tricky)[1] == min(arena._by_time(tricky)[1], arena._by_size(tricky)[1])


def test_nothing_needs_nothing() -> None:
    assert place([]) == ([], 0)
    assert place([Block(0, 0, 5)]) == ([0], 0)
    assert live_bytes([]) == 0


def test_many_blocks_are_placed_by_time_alone() -> None:
    many = [Block(100, k, k + 2) for k in range(arena.SIZE_ORDER_MOST + 1)]
    assert place(many)[1] == live_bytes(many)


def naive_by_time(given_blocks: list[Block]) -> list[int]:
    """The best gap found by looking at all living blocks."""
    offsets = [0] * len(given_blocks)
    living: list[tuple[int, int, int]] = []
    for k in sorted(range(len(given_blocks)), key=lambda k: (given_blocks[k].first, -given_blocks[k].size)):
        b = given_blocks[k]
        if b.size:
            living = sorted(a for a in living if a[2] >= b.first)
            offsets[k] = arena._best_gap([a[:2] for a in living], rounded(b.size))
            living.append((offsets[k], offsets[k] + rounded(b.size), b.last))
    return offsets


@examples(200)
@given(st.lists(blocks, max_size=30))
def test_gaps_are_kept_as_they_would_be_found(given_blocks: list[Block]) -> None:
    assert arena._by_time(given_blocks)[0] == naive_by_time(given_blocks)


def test_a_hundred_thousand_blocks_that_live_together_are_placed_at_once() -> None:
    """Looking at all living blocks for each would take 10^10 steps."""
    many = [Block(64 * (k % 7 + 1), k, 200_000 - k % 1000) for k in range(100_000)]
    start = time.process_time()
    assert place(many)[1] == live_bytes(many)
    assert time.process_time() - start < 5

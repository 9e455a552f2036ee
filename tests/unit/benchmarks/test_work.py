"""Operations and bytes counted from graphs."""

from __future__ import annotations

import pytest

from benchmarks.work import count_work
from benchmarks.zoo import build


@pytest.mark.parametrize(
    "name, flops, size",
    [
        ("C2", 2 * 56 * 56 * 64 * 64 * 9, 4 * (2 * 56 * 56 * 64 + 64 * 64 * 9)),
        ("D8", 2 * 7 * 7 * 512 * 9, 4 * (14 * 14 * 512 + 7 * 7 * 512 + 512 * 9)),
        ("MM1", 2 * 512 * 1024 * 1024, 4 * (2 * 512 * 1024 + 1024 * 1024)),
        ("BMM2", 2 * 960 * 128 * 128 * 64, 4 * 960 * (128 * 128 + 2 * 128 * 64)),
    ],
)
def test_single_operators(name: str, flops: int, size: int) -> None:
    work = count_work(build(name))
    assert (work.flops, work.bytes) == (flops, size)


def test_what_is_written_is_the_outputs() -> None:
    assert count_work(build("D8")).written == 4 * 7 * 7 * 512


@pytest.mark.parametrize("name, giga", [("squeezenet", 0.70), ("lstm_lm", 0.93), ("dcgan", 0.83)])
def test_networks_have_the_operations_of_their_papers(name: str, giga: float) -> None:
    assert count_work(build(name)).flops / 1e9 == pytest.approx(giga, rel=0.1)

"""Cores that times are taken on, and those that build."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlc.errors import UsageError
from mlc.tuning.measure import cores
from mlc.tuning.measure.cores import cores_for, siblings, timed_cores


def test_builders_keep_off_the_cores_that_are_timed_and_their_other_halves() -> None:
    pairs = {0: {0, 2}, 1: {1, 3}, 2: {0, 2}, 3: {1, 3}}
    assert cores_for([0, 1, 2, 3], [3], pairs.__getitem__) == (0, 2)
    assert cores_for([0, 1, 2, 3], [3], lambda c: {c}) == (0, 1, 2)
    assert cores_for([2, 3], [2, 3], lambda c: {c}) == ()


def test_times_are_taken_on_the_last_cores_unless_others_are_wanted() -> None:
    assert timed_cores((), 2, [0, 1, 2, 3]) == (2, 3)
    assert timed_cores((1, 0), 1, [0, 1, 2, 3]) == (1, 0)


@pytest.mark.parametrize(
    "wanted, threads, words",
    [
        ((), 5, "5 threads cannot be timed on 4 cores"),
        ((4095,), 1, r"cores \[4095\] are not all available"),
        ((2, 2), 2, "2 threads cannot be timed on 1 cores"),
    ],
)
def test_more_threads_than_cores_are_refused(wanted: tuple[int, ...], threads: int, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        timed_cores(wanted, threads, [0, 1, 2, 3])


def test_other_halves_are_those_that_the_system_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "FOLDER", tmp_path)
    (tmp_path / "cpu1" / "topology").mkdir(parents=True)
    (tmp_path / "cpu1" / "topology" / "thread_siblings_list").write_text("1,4-5\n", encoding="ascii")
    assert siblings(1) == {1, 4, 5}
    assert siblings(7) == {7}

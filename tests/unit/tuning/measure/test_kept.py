"""Programs that are kept until the last decision."""

from __future__ import annotations

from mlc.tuning.measure import kept
from mlc.tuning.measure.building import Built
from mlc.tuning.measure.kept import EACH, Kept


def _built(n: int, size: int = 1) -> Built:
    return Built(n, {"n": n}, 0, bytes(size), 0.1)


def test_the_fastest_of_a_task_are_kept() -> None:
    some = Kept()
    for n in range(EACH + 3):
        some.add(0, float(n % 5), _built(n))
    found = {n for n in range(EACH + 3) if some.find(0, {"n": n}) is not None}
    assert len(found) == EACH
    assert {n % 5 for n in range(EACH + 3) if n not in found} == {4}
    assert some.find(1, {"n": 0}) is None


def test_a_candidate_is_kept_once() -> None:
    some = Kept()
    for seconds in (2.0, 1.0):
        some.add(0, seconds, _built(7))
    for n in range(EACH - 1):
        some.add(0, 1.5, _built(n + 10))
    assert some.find(0, {"n": 7}) is not None


def test_others_are_forgotten_first_where_there_is_no_room(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(kept, "BYTES", 100)
    some = Kept()
    some.add(0, 1.0, _built(0, 40))
    some.add(0, 2.0, _built(1, 40))
    some.add(1, 3.0, _built(2, 50))
    assert [some.find(0, {"n": n}) is not None for n in (0, 1)] == [True, False]  # the slower one goes
    assert some.find(1, {"n": 2}) is not None
    some.add(1, 1.0, _built(3, 90))
    assert some.find(0, {"n": 0}) is None
    assert [some.find(1, {"n": n}) is not None for n in (2, 3)] == [False, True]
    some.add(1, 0.5, _built(4, 101))  # has no room at all
    assert all(some.find(1, {"n": n}) is None for n in (2, 3, 4))

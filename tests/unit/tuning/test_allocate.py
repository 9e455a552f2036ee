"""Trials go to where they shorten the model most."""

from __future__ import annotations

from mlc.tuning.allocate import HOPELESS, Progress, next_task


def _run(tasks: list[Progress], curves: list[float], batches: int, batch: int = 8) -> list[int]:
    """Gives batches away; after n trials a task takes ``floor + (1 - floor) / (1 + n / 32)`` of its untuned time."""
    given = [0] * len(tasks)
    start = [t.least * 4 for t in tasks]
    for t, s in zip(tasks, start, strict=True):
        t.history.append(s)
    for _ in range(batches):
        k = next_task(tasks)
        if k is None:
            break
        t = tasks[k]
        given[k] += batch
        t.measured(batch, start[k] * (curves[k] + (1 - curves[k]) / (1 + given[k] / 32)))
    return given


def test_every_task_gets_a_batch_the_longest_first() -> None:
    tasks = [Progress(1, least=1.0), Progress(4, least=1.0), Progress(1, least=2.0)]
    order = []
    for _ in range(3):
        k = next_task(tasks)
        assert k is not None
        order.append(k)
        tasks[k].measured(8, 3.0)
    assert order == [1, 2, 0]


def test_a_heavy_task_gets_more_than_a_light_one() -> None:
    given = _run([Progress(1, least=1e-4), Progress(10, least=1e-4)], [0.4, 0.4], 60)
    assert given[1] >= 2 * given[0] > 0


def test_a_task_that_gains_gets_more_than_one_that_does_not() -> None:
    given = _run([Progress(1, least=1e-4), Progress(1, least=1e-4)], [0.99, 0.3], 60)
    assert given[1] >= given[0]


def test_a_task_at_the_roof_gets_nothing_more() -> None:
    tasks = [Progress(5, least=1.0), Progress(1, least=1.0)]
    for t, best in zip(tasks, (1.01, 2.0), strict=True):
        t.history = [4.0]
        for _ in range(4):
            t.measured(8, best)
    assert next_task(tasks) == 1


def test_tasks_that_are_done_are_left_out() -> None:
    tasks = [Progress(1, done=True), Progress(1, done=True)]
    assert next_task(tasks) is None


def test_a_task_that_never_worked_is_tried_again() -> None:
    tasks = [Progress(1, least=1e-3, history=[4e-3, 2e-3], trials=8), Progress(1, least=1e-3, trials=8)]
    tasks[1].history = [float("inf"), float("inf")]
    assert next_task(tasks) == 1


def test_a_task_of_which_nothing_works_does_not_use_up_the_trials() -> None:
    tasks = [Progress(1, least=2.0), Progress(1, least=1.0)]
    given = [0, 0]
    while sum(given) < 4 * HOPELESS:
        k = next_task(tasks)
        assert k is not None
        given[k] += 8
        tasks[k].measured(8, float("inf") if k == 0 else 10.0)
    assert given[0] == HOPELESS

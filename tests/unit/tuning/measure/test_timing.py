from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mlc.tuning.measure.timing import (
    FEW,
    IN_TURNS,
    RERUNS,
    RESTLESS,
    Drift,
    Patience,
    Rule,
    Timing,
    take,
    take_in_turns,
    warm_up,
)


class Kernel:
    """A kernel whose calls take what ``cost`` says of their number; it counts calls."""

    def __init__(self, cost: Callable[[int], float]) -> None:
        self.cost = cost
        self.calls = 0

    def __call__(self, n: int) -> int:
        # one cost a sample is enough for long ones
        steps = range(self.calls, self.calls + n) if n < 100 else [self.calls] * n
        self.calls += n
        return round(sum(self.cost(k) for k in steps))


def steady(ns: float) -> Kernel:
    return Kernel(lambda _: ns)


@pytest.mark.parametrize("ns, samples", [(50.0, 12), (2e4, 12), (3e6, 8), (4e7, 5)])
def test_a_steady_kernel_gives_its_time(ns: float, samples: int) -> None:
    kernel = steady(ns)
    timing = take(kernel, Rule())
    assert timing.seconds == pytest.approx(ns / 1e9, rel=0.02)
    assert len(timing.ns) == samples  # long calls tell as much in as many milliseconds
    assert min(timing.ns) >= 2e6 * 0.99
    assert not timing.noisy


def test_the_warm_up_ends_when_times_no_longer_fall() -> None:
    kernel = Kernel(lambda k: max(2e6, 4e6 - k * 3e5))
    assert warm_up(kernel, Rule()) == (1, pytest.approx(2e-3))
    assert kernel.calls >= 7


def test_as_many_calls_and_samples_as_were_asked_for() -> None:
    rule = Rule(sample_seconds=0.001, samples=11, calls=40)
    assert take(steady(1e6), rule).calls == 40
    assert take(steady(1e6), rule, record=1e-9).calls == 40
    assert take(steady(1e6), rule, record=1e-9, first=1.0).calls == 40
    assert len(take(steady(1e4), rule).ns) == 11
    assert len(take(steady(1e4), Rule(samples=2)).ns) == 2


def test_a_sample_is_one_call_where_caches_are_emptied() -> None:
    rule = Rule(flush=True)
    timing = take(steady(2e3), rule)
    assert (timing.calls, timing.seconds, len(timing.ns)) == (1, pytest.approx(2e-6), 12)
    assert take(steady(2e3), rule, record=1e-9).calls == 1
    assert take(steady(2e3), rule, record=1e-9, first=1.0).calls == 1
    assert [t.calls for t in take_in_turns([steady(2e3), steady(50.0)], rule)] == [1, 1]
    assert take(steady(2e3), Rule(flush=True, calls=5)).calls == 5


def test_slow_samples_do_not_move_the_time() -> None:
    """The other processes of a machine take the cores in turns that are longer than samples."""
    kernel = Kernel(lambda k: 8e6 if k % 8 < 5 else 2e6)
    timing = take(kernel, Rule(budget=10))
    assert timing.seconds == pytest.approx(2e-3)
    assert not timing.noisy


def test_a_restless_kernel_is_measured_again_and_then_called_noisy() -> None:
    rng = np.random.default_rng(0)
    kernel = Kernel(lambda _: 1e7 * rng.uniform(1, 2))
    timing = take(kernel, Rule(budget=10))
    assert len(timing.ns) == 3 * 12
    assert timing.noisy


def test_patience_ends_on_a_machine_that_hardly_ever_holds_still() -> None:
    patience = Patience()
    for restless in [True, True, False, True, True, True]:
        patience.learn(restless)
        assert patience.times == RERUNS
    patience.learn(True)
    patience.learn(False)
    assert patience.times == 1  # six of the last eight
    patience.learn(False)
    assert patience.times == RERUNS
    never = Patience(0)
    for _ in range(RESTLESS):
        never.learn(True)
        assert never.times == 0
    rng = np.random.default_rng(0)
    kernel = Kernel(lambda _: 1e7 * rng.uniform(1, 2))
    timing = take(kernel, Rule(budget=10), reruns=1)
    assert timing.noisy
    assert len(timing.ns) == 2 * 12


def test_a_kernel_that_calms_down_is_not_noisy() -> None:
    rng = np.random.default_rng(0)
    kernel = Kernel(lambda k: 1e7 * (rng.uniform(1.2, 2) if k < 16 else 1))
    timing = take(kernel, Rule(budget=10))
    assert not timing.noisy
    assert timing.seconds == pytest.approx(1e-2)


def test_a_slow_kernel_gets_few_samples_but_one_at_least() -> None:
    assert len(take(steady(1e8), Rule()).ns) == 3
    single = take(steady(3e9), Rule())
    assert len(single.ns) == 1
    assert single.noisy
    assert single.seconds == pytest.approx(3)


def test_what_is_behind_the_best_is_measured_with_less_care() -> None:
    assert len(take(steady(1e6), Rule(), record=9.6e-4).ns) == 12
    few = take(steady(1e6), Rule(), record=9.4e-4)
    assert (len(few.ns), few.calls) == (3, 2)
    kernel = Kernel(lambda k: 1e6 if k % 6 else 5e5)  # one sample is that of a contender
    assert len(take(kernel, Rule(), record=9e-4).ns) >= 12
    kernel = steady(5e7)
    assert len(take(kernel, Rule(), record=1e-2, first=5e-2).ns) == kernel.calls == 3


def test_what_is_behind_is_not_measured_again() -> None:
    kernel = Kernel(lambda k: (9.4e6, 10e6, 10.55e6)[k % 3])
    timing = take(kernel, Rule(sample_seconds=0.005), record=8.5e-3)
    assert len(timing.ns) == 4  # two of them agree
    assert kernel.calls < 12
    rng = np.random.default_rng(0)
    restless = take(Kernel(lambda _: 1e7 * rng.uniform(1, 2)), Rule(), record=8.5e-3)
    assert len(restless.ns) <= 12


@pytest.mark.parametrize("first, disturbed", [(0.0, 4), (8e-3, 1)])
def test_what_only_seemed_far_from_the_best_is_measured_with_all_care(first: float, disturbed: int) -> None:
    """A disturbance at first must not cost the best its place."""
    timing = take(Kernel(lambda k: 6e6 if k < disturbed else 2e6), Rule(), record=2.1e-3, first=first)
    assert (timing.calls, timing.seconds) == (1, pytest.approx(2e-3))
    assert len(timing.ns) >= 10
    assert not timing.noisy


def test_turns_meet_the_same_disturbances() -> None:
    clock = 0.0

    def kernel(ns: float) -> Callable[[int], int]:
        def sample(n: int) -> int:
            nonlocal clock
            slow = 1.5 if clock % 4e8 > 2e8 else 1.0
            took = n * ns * slow
            clock += took
            return round(took)

        return sample

    a, b = take_in_turns([kernel(1e6), kernel(1.1e6)], Rule(samples=40))
    assert len(a.ns) == len(b.ns) == IN_TURNS * 40
    assert a.seconds < b.seconds


def test_equal_kernels_in_turns_take_as_long_wherever_they_stand() -> None:
    """Who comes last in one turn comes first in the next, and would find its data in the caches; the others do not."""
    last = -1

    def kernel(number: int) -> Callable[[int], int]:
        def sample(n: int) -> int:
            nonlocal last
            cold = 2 if number != last else 0
            last = number
            return round(1e5 * (n + min(n, cold)))

        return sample

    seconds = [t.seconds for t in take_in_turns([kernel(k) for k in range(4)], Rule())]
    assert seconds == pytest.approx([1e-4] * 4)


def test_turns_of_kernels_with_long_calls_end_early() -> None:
    slow, slower = take_in_turns([steady(2e8), steady(3e8)], Rule())
    assert len(slow.ns) == len(slower.ns) == FEW
    assert slow.seconds < slower.seconds


def test_long_calls_in_turns_have_no_lead_in_and_end_as_soon_as_they_agree() -> None:
    kernels = [steady(6e7), steady(7e7)]
    timings = take_in_turns(kernels, Rule())
    assert [len(t.ns) for t in timings] == [FEW, FEW]
    assert [k.calls for k in kernels] == [FEW + 2, FEW + 2]  # two warm up
    slow = take_in_turns([steady(2e7), steady(3e7)], Rule())
    assert [len(t.ns) for t in slow] == [FEW, FEW]
    assert len(take_in_turns([steady(2e7), steady(3e6)], Rule())[0].ns) > FEW  # the other one is short
    restless = Kernel(lambda call: 6e7 * (1 + call / 10))
    assert len(take_in_turns([steady(7e7), restless], Rule())[0].ns) > FEW


def test_a_lead_in_is_left_out_where_caches_are_emptied() -> None:
    kernels = [steady(2e3), steady(3e3)]
    timings = take_in_turns(kernels, Rule(flush=True))
    assert [k.calls - len(t.ns) for k, t in zip(kernels, timings, strict=True)] == [3, 3]  # what warmed up


def test_the_fastest_quarter_counts_and_the_spread_is_the_median_deviation() -> None:
    timing = Timing(2, (2040, 2020, 2000, 2100, 9000))
    assert timing.seconds == pytest.approx(1.005e-6)
    assert timing.disagreement == pytest.approx(0.01)
    assert timing.spread == pytest.approx(20e-9)


def test_a_machine_that_holds_still_changes_nothing() -> None:
    drift = Drift(100.0)
    assert drift.judge(101.0, 99.0) == (True, 1.0)
    assert drift.judge(103.0, 104.0) == (True, 1.0)


def test_a_machine_that_moved_is_found_out() -> None:
    drift = Drift(100.0)
    steady, scale = drift.judge(100.0, 130.0)
    assert not steady
    assert scale == 1.0
    steady, scale = drift.judge(130.0, 130.0)
    assert not steady
    assert scale == pytest.approx(100 / 130)
    # slower for long: known by now, and made up for
    for _ in range(8):
        steady, scale = drift.judge(130.0, 130.0)
    assert steady
    assert scale == pytest.approx(100 / 130)


def test_a_machine_that_is_faster_than_ever_sets_the_scale() -> None:
    drift = Drift(130.0)
    assert drift.judge(100.0, 100.0) == (False, 1.0)
    assert drift.base == 100.0
    assert drift.judge(130.0, 130.0)[1] == pytest.approx(100 / 130)


def test_how_much_slower_a_machine_has_become_is_known() -> None:
    drift = Drift(100.0)
    assert drift.slowdown == 1.0
    for _ in range(8):
        drift.judge(130.0, 130.0)
    assert drift.slowdown == pytest.approx(1.3)

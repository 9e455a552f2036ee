"""The rule of timing: how often a kernel is called, when its times count, and whether the machine held still.

Times are taken with a monotonic clock. A kernel is called until its time no longer falls, then in samples of at least
ten milliseconds; the median counts, and the median absolute deviation says how far to trust it. A fixed kernel, the
*anchor*, is timed before and after, so that a machine that changes its speed is found out.

That is what the best are owed. Disturbances only ever make a kernel slower, so a kernel whose fastest sample is well
behind the best is not among them, and is only timed as well as a cost model needs: see ``CONTENDER`` and ``BEHIND``.
What was measured stays what is told: a result's samples are those that were taken, however few.

Where caches are emptied before every call, a sample is one call: a second one would find them full again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

Sample = Callable[[int], int]  # nanoseconds that so many calls take together

STABLE = 0.03  # two medians in succession that differ by less end the warm-up
SPREAD = 0.05  # median absolute deviation over median, above which samples are taken again
DRIFT = 0.05  # change of the anchor's time that counts
RERUNS = 3
RESTLESS = 8  # results from which is judged whether the machine ever holds still
MOSTLY = 6  # so many of which were restless: a second attempt is the last then, more did not help
WARMUPS = 12
FEWEST = 3  # samples that say something about noise
CONTENDER = 1.25  # times the best time so far, from which three samples of half the length do, warmed up or not
BEHIND = 1.1  # ... from which three samples do, calm or not
HOPELESS = 3.0  # ... from which a first run after another tells as much as a warm-up
_SHORT = 1_000_000  # nanoseconds; a call that takes less is repeated even for a first impression


@dataclass(frozen=True)
class Rule:
    """How much to measure.

    Args:
        sample_seconds: least duration of a sample; short kernels are called repeatedly.
        samples: number of samples.
        budget: seconds after which nothing is measured again, and after which three samples of a slow kernel do.
        limit: seconds after which no sample is begun any more; one is always taken.
        calls: of the kernel that a sample has at least.
        flush: whether caches are emptied before every call; a sample has no more than ``calls`` then, however short
            they are, since emptying takes longer.
    """

    sample_seconds: float = 0.010
    samples: int = 7
    budget: float = 0.25
    limit: float = 2.0
    calls: int = 1
    flush: bool = False

    def calls_for(self, seconds: float, share: float = 1.0) -> int:
        """Calls in a sample of a kernel that takes ``seconds`` each, or in one of a ``share`` of the usual length."""
        if self.flush:
            return self.calls
        return max(self.calls, math.ceil(share * self.sample_seconds / max(seconds, 1e-12)))


@dataclass(frozen=True)
class Timing:
    """Samples of one kernel.

    Args:
        calls: in a sample.
        ns: duration of each sample.
    """

    calls: int
    ns: tuple[int, ...]

    @property
    def seconds(self) -> float:
        """Median time of a call."""
        return median(self.ns) / self.calls / 1e9

    @property
    def spread(self) -> float:
        """Median absolute deviation, in seconds."""
        middle = median(self.ns)
        return median(abs(t - middle) for t in self.ns) / self.calls / 1e9

    @property
    def noisy(self) -> bool:
        return len(self.ns) < FEWEST or self.spread > SPREAD * self.seconds

    def surely_beyond(self, seconds: float) -> bool:
        """Whether even the fastest sample took longer."""
        return min(self.ns) / self.calls / 1e9 > seconds


def warm_up(sample: Sample, rule: Rule, record: float = math.inf) -> tuple[int, float]:
    """Calls a kernel until two medians in succession agree, or until it is sure that it is no contender.

    Returns:
        how many calls a sample needs, and seconds of a call.
    """
    spent = took = sample(1)
    calls = 1 if rule.flush else max(1, math.ceil(_SHORT / max(1, took)))
    size = 3 if took < 2 * _SHORT else 1
    before, fastest = 0.0, math.inf
    for turn in range(WARMUPS):
        group = []
        for _ in range(size):
            group.append(sample(calls))
            spent += group[-1]
        now = median(group) / calls
        fastest = min(fastest, min(group) / calls)
        if abs(now - before) < STABLE * now or spent > max(rule.budget * 1e9 / 5, 2.9 * took):
            break
        if turn and fastest > CONTENDER * record * 1e9:
            break
        before = now
    return rule.calls_for(now / 1e9), now / 1e9


def take(sample: Sample, rule: Rule, record: float = math.inf, first: float = 0.0, reruns: int = RERUNS) -> Timing:
    """Warms up and measures; what is too restless is measured again, and the calmest attempt counts.

    What turns out to be behind the best gets a few samples only, and what is no contender short ones.

    Args:
        sample: calls the kernel.
        rule: how much to measure.
        record: seconds of the best kernel so far; what is far from it is measured with less care.
        first: seconds that one call took before; warmed up enough if even that is far from the best.
        reruns: how often it is measured again at most.
    """
    calls, estimate = (0, first) if first > HOPELESS * record else warm_up(sample, rule, record)
    if estimate > CONTENDER * record:
        short = replace(rule, samples=FEWEST)
        timing = _attempt(sample, short, rule.calls_for(estimate, 0.5), 0, record)
        if timing.surely_beyond(CONTENDER * record):
            return timing
        calls, _ = warm_up(sample, rule)  # it was disturbed so far
    best: Timing | None = None
    spent = 0
    for _ in range(1 + reruns):
        timing = _attempt(sample, rule, calls, spent, record)
        spent += sum(timing.ns)
        # the minimum breaks ties: only disturbances make a kernel slower
        if best is None or (timing.noisy, timing.spread / timing.seconds, min(timing.ns)) < (
            best.noisy,
            best.spread / best.seconds,
            min(best.ns),
        ):
            best = timing
        if not best.noisy or spent >= rule.budget * 1e9 or timing.surely_beyond(BEHIND * record):
            break
    assert best is not None
    return best


def _attempt(sample: Sample, rule: Rule, calls: int, spent: int, record: float) -> Timing:
    """The rule's samples, or fewer: of a slow kernel, and of one that is behind the best."""
    ns: list[int] = []
    while len(ns) < rule.samples and not _enough(len(ns), spent + sum(ns), rule):
        ns.append(sample(calls))
        if len(ns) >= FEWEST and Timing(calls, tuple(ns)).surely_beyond(BEHIND * record):
            break
    return Timing(calls, tuple(ns))


class Patience:
    """How often what is restless is measured again: less on a machine that hardly ever holds still.

    Args:
        most: times, at most.
    """

    def __init__(self, most: int = RERUNS) -> None:
        self._most = most
        self._restless: deque[bool] = deque(maxlen=RESTLESS)

    @property
    def times(self) -> int:
        return min(1, self._most) if sum(self._restless) >= MOSTLY else self._most

    def learn(self, restless: bool) -> None:
        """Take a result into account."""
        self._restless.append(restless)


def _enough(samples: int, spent: float, rule: Rule) -> bool:
    """Whether a slow kernel has had its time, ``spent`` in nanoseconds."""
    return (samples >= FEWEST and spent > rule.budget * 1e9) or (samples > 0 and spent > rule.limit * 1e9)


def take_in_turns(samples: Sequence[Sample], rule: Rule) -> list[Timing]:
    """Measures several kernels in turns, a sample each, so that whatever disturbs one disturbs all.

    The number of samples is the rule's, whatever they take.
    """
    calls = [warm_up(sample, rule)[0] for sample in samples]
    ns: list[list[int]] = [[] for _ in samples]
    for turn in range(rule.samples):
        order = range(len(samples)) if turn % 2 == 0 else reversed(range(len(samples)))
        for k in order:
            ns[k].append(samples[k](calls[k]))
    return [Timing(n, tuple(found)) for n, found in zip(calls, ns, strict=True)]


class Drift:
    """Follows the anchor's time.

    Results are given on the scale of the fastest reading, so that all of a run can be compared: while the machine is
    slower, times are scaled down by as much. Nothing but the kernel itself makes it faster, so a faster reading than
    all before begins a new window.

    Args:
        base: nanoseconds of a call of the anchor when the machine was fastest.
    """

    def __init__(self, base: float) -> None:
        self.base = base
        self._recent: deque[float] = deque([base], maxlen=8)

    @property
    def slowdown(self) -> float:
        """How many times as long as at best everything takes of late."""
        return max(1.0, median(self._recent) / self.base)

    def judge(self, before: float, after: float) -> tuple[bool, float]:
        """Whether the machine held still between two readings, and what a time in between is to be multiplied by.

        Restless is also a machine whose speed is not that of the last few readings: it may be back in a moment.
        The faster reading sets the scale: a time may come out too long, but a disturbance that met the anchor alone
        must not make a candidate look fast.
        """
        level = median(self._recent)
        now = (before + after) / 2
        self._recent.append(now)
        moved = max(before, after) / min(before, after) - 1
        steady = moved <= DRIFT and abs(now / level - 1) <= DRIFT
        fastest = min(before, after)
        self.base = min(self.base, fastest)
        scale = self.base / fastest
        return steady, scale if scale < 1 / (1 + DRIFT) else 1.0

"""The rule of timing: how often a kernel is called, when its times count, and whether the machine held still.

Times are taken with a monotonic clock. For a kernel of one thread on a processor it is the clock of that thread, which
stands still while others have the core. A kernel is called until its time no longer falls, then in samples of a few
milliseconds. Disturbances only ever make a kernel slower, and last longer than a sample, so the fastest quarter of the
samples counts; when it agrees within itself, the kernel has been seen undisturbed. A fixed kernel, the *anchor*, is
timed before and after, so that a machine that changes its speed is found out.

Samples of 10 ms and their median told two kernels apart no better while nothing else ran, took four times as long, and
erred five times as far while other processes had the cores in turns of 8 ms. So did samples in turns with the anchor's:
each of the two finds the other's data in the caches, and a ratio has the errors of both.

That is what the best are owed. A kernel whose fastest samples agree that it is well behind the best is not among them,
and is only timed as well as a cost model needs: see ``BEHIND``. What was measured stays what is told: a result's
samples are those that were taken, however few.

Where caches are emptied before every call, a sample is one call: a second one would find them full again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

Sample = Callable[[int], int]  # nanoseconds that so many calls take together

STABLE = 0.03  # a sample that is faster by less ends the warm-up
CALM = 0.03  # samples that differ by less agree: no more are taken
SPREAD = 0.05  # ... and by more are called noisy
DRIFT = 0.05  # change of the anchor's time that counts
RERUNS = 2  # times as many samples again, for what is restless
RESTLESS = 8  # results from which is judged whether the machine ever holds still
MOSTLY = 6  # so many of which were restless: as many samples again are the last then, more did not help
WARMUPS = 12
FEWEST = 3  # samples that say something about noise
FEW = 5  # ... that do for a kernel whose calls are long
BEHIND = 1.05  # times the best time so far, from which samples that agree are enough
HOPELESS = 3.0  # ... from which a first run after another tells as much as a warm-up
IN_TURNS = 2  # times as many samples of what is measured in turns, for a last decision
LEAD_IN = 4  # samples in turns begin with a call for so many of theirs that does not count
LONG = 0.05  # seconds of a call from which on it makes no difference: 32 MB, all that caches hold, are read in 2 ms
SLOW = 0.01  # seconds of a call from which on a sample is so long that a few which agree say as much as many
_SHORT = 1_000_000  # nanoseconds; a call that takes less is repeated even for a first impression


@dataclass(frozen=True)
class Rule:
    """How much to measure.

    Args:
        sample_seconds: least duration of a sample; short kernels are called repeatedly.
        samples: number of samples; fewer of a kernel whose calls are longer than ``sample_seconds``, once they have
            taken as long as so many short ones.
        budget: seconds after which nothing is measured again, and after which three samples of a slow kernel do.
        limit: seconds after which no sample is begun any more; one is always taken.
        calls: of the kernel that a sample has at least.
        flush: whether caches are emptied before every call; a sample has no more than ``calls`` then, however short
            they are, since emptying takes longer.
    """

    sample_seconds: float = 0.002
    samples: int = 12
    budget: float = 0.25
    limit: float = 2.0
    calls: int = 1
    flush: bool = False

    def calls_for(self, seconds: float) -> int:
        """Calls in a sample of a kernel that takes ``seconds`` each."""
        if self.flush:
            return self.calls
        return max(self.calls, math.ceil(self.sample_seconds / max(seconds, 1e-12)))


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
        """Time of a call: the mean of the fastest quarter of the samples."""
        return fmean(sorted(self.ns)[: math.ceil(len(self.ns) / 4)]) / self.calls / 1e9

    @property
    def spread(self) -> float:
        """Median absolute deviation of all samples, in seconds."""
        middle = median(self.ns)
        return median(abs(t - middle) for t in self.ns) / self.calls / 1e9

    @property
    def disagreement(self) -> float:
        """By which share the slowest of the fastest quarter, two at least, took longer than the fastest."""
        fastest = sorted(self.ns)[: max(2, math.ceil(len(self.ns) / 4))]
        return fastest[-1] / max(1, fastest[0]) - 1

    @property
    def noisy(self) -> bool:
        return len(self.ns) < FEWEST or self.disagreement > SPREAD

    def surely_beyond(self, seconds: float) -> bool:
        """Whether even the fastest sample took longer."""
        return min(self.ns) / self.calls / 1e9 > seconds


def warm_up(sample: Sample, rule: Rule) -> tuple[int, float]:
    """Calls a kernel until its time no longer falls.

    Returns:
        how many calls a sample needs, and seconds of a call.
    """
    took = spent = sample(1)
    calls = 1 if rule.flush else max(1, math.ceil(_SHORT / max(1, took)))
    fastest = math.inf
    for _ in range(WARMUPS):
        now = sample(calls)
        spent += now
        falls = now < (1 - STABLE) * fastest * calls
        fastest = min(fastest, now / calls)
        if not falls or spent > max(rule.budget * 1e9 / 5, 1.9 * took):
            break
    return rule.calls_for(fastest / 1e9), fastest / 1e9


def take(sample: Sample, rule: Rule, record: float = math.inf, first: float = 0.0, reruns: int = RERUNS) -> Timing:
    """Warms up and measures, until the fastest samples agree.

    What turns out to be behind the best gets a few samples only.

    Args:
        sample: calls the kernel.
        rule: how much to measure.
        record: seconds of the best kernel so far; what is behind it is measured with less care.
        first: seconds that one call took before; warmed up enough if even that is far from the best.
        reruns: how often as many samples again are taken at most.
    """
    cold = first > HOPELESS * record
    calls = rule.calls_for(first) if cold else warm_up(sample, rule)[0]
    ns: list[int] = []
    while True:
        ns.append(sample(calls))
        timing = Timing(calls, tuple(ns))
        beyond = timing.surely_beyond(BEHIND * record)
        if cold and not beyond:  # it was disturbed before
            return take(sample, rule, record, 0.0, reruns)
        if _enough(timing, rule, reruns, beyond):
            return timing


def _enough(timing: Timing, rule: Rule, reruns: int, beyond: bool) -> bool:
    """Whether no more samples are needed, or may be taken."""
    n, spent = len(timing.ns), sum(timing.ns) / 1e9
    if spent > rule.limit:
        return True
    if n < min(FEWEST, rule.samples):
        return False
    all_taken = n >= rule.samples or (n >= FEW and spent >= rule.samples * rule.sample_seconds and not rule.flush)
    if timing.disagreement <= CALM and (beyond or all_taken):
        return True
    if spent > rule.budget or (beyond and all_taken):
        return True
    return n >= rule.samples * (1 + reruns)


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


def take_in_turns(samples: Sequence[Sample], rule: Rule) -> list[Timing]:
    """Measures several kernels in turns, a sample each, so that whatever disturbs one disturbs all.

    There are several times as many samples as the rule says; fewer of kernels whose calls are so long that together
    they would take longer than its limit for each (eight of 0.17 seconds took eight minutes), and no more than agree of
    those that are longer than a 100th of a second (all of a network's of 0.03 took six minutes). Calls that do not
    count come before each, unless caches are emptied: every other turn goes backwards, so that a kernel at either end
    has just run, and its data are in the caches, while others find them taken by their neighbours. Of equal kernels of
    2 to 11 MB those in the middle seemed 5 to 16 % slower (Zen 5, one thread), and with such calls 0.5 to 2 %. Where a
    call takes far longer than to fill the caches, none comes before.
    """
    warm = [warm_up(sample, rule) for sample in samples]
    calls = [n for n, _ in warm]
    led_in = [not rule.flush and took < LONG for _, took in warm]
    slow = all(took >= SLOW for _, took in warm) and not rule.flush
    ns: list[list[int]] = [[] for _ in samples]
    spent = 0
    for turn in range(IN_TURNS * rule.samples):
        if turn >= FEW and (spent > rule.limit * len(samples) * 1e9 or (slow and _agree(calls, ns))):
            break
        order = range(len(samples)) if turn % 2 == 0 else reversed(range(len(samples)))
        for k in order:
            if led_in[k]:
                spent += samples[k](math.ceil(calls[k] / LEAD_IN))
            ns[k].append(samples[k](calls[k]))
            spent += ns[k][-1]
    return [Timing(n, tuple(found)) for n, found in zip(calls, ns, strict=True)]


def _agree(calls: Sequence[int], ns: Sequence[Sequence[int]]) -> bool:
    """Whether the fastest samples of each of several kernels agree."""
    return all(Timing(n, tuple(found)).disagreement <= CALM for n, found in zip(calls, ns, strict=True))


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

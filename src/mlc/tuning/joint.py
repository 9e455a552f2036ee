"""The joint space of layouts and loops: a layout space a task, and a loop space for each of its layouts (ALT §5).

Configurations of both name the knobs of the layout and those of the loops; one that names no layout has the layouts
that the target's own templates want, and its loops are those of the task's own space.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from mlc.errors import LowerError, ScheduleError
from mlc.lower.knobs import Categorical, Config, Knobs, Space
from mlc.rewrite.group import configured
from mlc.targets.base import LEVELS, Foreseeing, Target, is_layout_knob
from mlc.tuning.base import Explorer, batch_of
from mlc.tuning.task import Task, candidate, layouts_of, schedule_of, with_types

JOINT = 0.3  # share of trials in which layouts are searched, of an operator
JOINT_OF_NETWORKS = 0.4  # of a network's
LOOK = 1  # trials that a layout is looked at first
MOST_EXPECTED = 8  # layouts that a search begins with
ROUND = 4  # trials of a round of loop search under a layout, where an explorer has no episodes of its own
MOST_ROUNDS = 3  # in the joint stage
PROMISING = 0.8  # of the best speed, from which a layout gets another round
FIRST_LAYOUTS = 3  # that are looked at before others, where the target expects them to be the fastest
LIKELY = 0.95  # of the speed that the target's own layouts are expected to have, from which one is worth such a look
HOPE = 0.85  # of the speed of the target's own layouts, which none of those that were looked at reaches: they are left
OWN = 0.25  # share of the joint stage that goes to the target's own layouts
STARTS = 3  # layouts that what is expected to be fast is sought from, beside the default
LIKE = 1.05  # times as many cycles as another layout is expected to take, from which one is worth a look beside it
CLOSE = 0.9  # of the best speed, from which these get half of the loop-only stage, too


def layout_space(task: Task, target: Target, levels: int = 1) -> Space | None:
    """The layouts that a task may have; nothing where its operator is not complex or the target follows none.

    Args:
        task: whose layouts.
        target: that has to follow them.
        levels: of tiles.
    """
    # whoever takes row-major results only would have to convert them, and no trial tells how long that takes
    if task.site.row_major and all(v.type.layout is None for v in task.node.outputs):
        return None
    config: Config = {LEVELS: levels}
    knobs = Knobs(config)
    choice = layouts_of(task, configured(task.node, config), target, knobs)
    if LEVELS not in knobs.asked or (choice.asked and task.fixed >= set(choice.asked)):
        return None
    own = [Categorical(LEVELS, (levels,)) if name == LEVELS else k for name, k in knobs.asked.items()]
    return Space(tuple(own), {**knobs.defaults, LEVELS: levels})


def expected_layouts(task: Task, target: Target, space: Space, most: int) -> list[np.ndarray]:
    """The layouts that a target expects to be the fastest, the best first; none where it expects nothing of any.

    Found by coordinate descent from the default and from layouts drawn at random, without measuring anything. What a
    target does not look at is as by default, and of two layouts next to each other that are expected to be about as
    fast one is left out: it would tell little.

    Args:
        task, target: whose layouts.
        space: of these.
        most: how many.
    """
    known: dict[bytes, float | None] = {}

    def expects(row: np.ndarray) -> float:
        key = row.tobytes()
        if key not in known:
            config = space.config(row)
            knobs = Knobs(config)
            try:
                layouts_of(task, configured(task.node, config), target, knobs)
            except ScheduleError:
                knobs.expected = None
            known[key] = knobs.expected
        found = known[key]
        return inf if found is None else found

    usual = space.row({})
    for start in (usual, *space.sample(np.random.default_rng(0), STARTS)):
        _descend(start, space, expects)
    ranked = sorted((cycles, key) for key, cycles in known.items() if cycles is not None)
    found: list[np.ndarray] = []
    for _, key in ranked:
        plain = _settle(np.frombuffer(key, np.int64), usual, expects)
        if len(found) == most:
            break
        if all((plain != other).sum() > 1 or expects(plain) > LIKE * expects(other) for other in found):
            found.append(plain)
    return found


def likeliest(task: Task, target: Target, space: Space, layouts: Sequence[np.ndarray]) -> tuple[list[np.ndarray], int]:
    """Some layouts in the order of what the loops of each, as they are by default, are expected to take.

    Args:
        task, target: whose layouts.
        space: of these.
        layouts: rows of it.
    Returns:
        the layouts that loops follow, the best first, and how many are worth a look before any other: those that are
        nearly as fast as the target's own, or the first one where none is; all where the target expects nothing.
    """
    if not isinstance(target, Foreseeing) or not layouts:
        return list(layouts), len(layouts)
    own = target.expected_cycles(candidate(task, target, task.space.default))
    found: list[tuple[float, int]] = []
    for k, row in enumerate(layouts):
        loops = loop_space(task, target, space.config(row))
        if loops is not None:
            with suppress(ScheduleError, LowerError):
                found.append((target.expected_cycles(candidate(task, target, loops.default)), k))
    found.sort()
    worth = sum(LIKELY * cycles <= own for cycles, _ in found)
    return [layouts[k] for _, k in found], max(worth, min(1, len(found)))


def _descend(row: np.ndarray, space: Space, expects: Callable[[np.ndarray], float]) -> None:
    """Takes the best value of one knob after another, until none is better."""
    best, moved = expects(row), True
    while moved:
        moved = False
        for at, count in enumerate(space.counts.tolist()):
            for value in range(count):
                other = row.copy()
                other[at] = value
                if expects(other) < best:
                    best, row, moved = expects(other), other, True


def _settle(row: np.ndarray, usual: np.ndarray, expects: Callable[[np.ndarray], float]) -> np.ndarray:
    """The same with the usual value of every knob for which nothing worse is expected then."""
    row = row.copy()
    for at, value in enumerate(usual.tolist()):
        other = row.copy()
        other[at] = value
        if expects(other) <= expects(row):
            row = other
    return row


def loop_space(task: Task, target: Target, layouts: Config) -> Space | None:
    """The loops that a task may have under one of its layouts, rebuilt for it; nothing where none is possible.

    Args:
        task: whose loops.
        target: whose schedules.
        layouts: a configuration of the layout space. Its knobs are in the space, too, with one value each.
    """
    knobs = Knobs(layouts)
    try:
        schedule_of(task, candidate(task, target, layouts), target, knobs)
    except (ScheduleError, LowerError):
        return None
    fixed = [Categorical(name, (value,)) for name, value in layouts.items()]
    loops = [k for name, k in knobs.asked.items() if not is_layout_knob(name)]
    return Space((*fixed, *loops), {**knobs.defaults, **layouts})


class Neighbours:
    """What is next to a configuration of a task: other loops, and where layouts are searched, the same under others.

    Args:
        task: whose configurations.
        target: whose schedules.
        levels: of tiles of layouts; 0 where these are not searched.
    """

    def __init__(self, task: Task, target: Target, levels: int = 0) -> None:
        self._task, self._target = task, target
        self._layouts = layout_space(task, target, levels) if levels else None
        self._loops: dict[Hashable, Space | None] = {(): task.space}

    @property
    def default(self) -> Config:
        """The untuned configuration."""
        return self._task.space.default

    def of(self, config: Config) -> list[Config]:
        """The neighbours of a configuration, those of its loops first."""
        here = layouts_in(config)
        space = self._under(here)
        found: list[Config] = []
        if space is not None:
            found += [space.config(row) for row in space.neighbours(space.row(config))]
        for layouts in self._others(here):
            other = self._under(layouts)
            if other is not None:
                # values that the loops of the other layout do not have become the nearest
                loops = {name: value for name, value in config.items() if not is_layout_knob(name)}
                found.append(other.config(other.nearest({**loops, **layouts})))
        return found

    def _others(self, here: Config) -> Iterator[Config]:
        """The layouts next to one; next to the target's own, all orders of the default, and back to these from any."""
        if self._layouts is None:
            return
        start = self._layouts.row(here)
        if here:
            yield {}
        else:
            yield self._layouts.default
        for row in self._layouts.neighbours(start):
            yield self._layouts.config(row)

    def _under(self, layouts: Config) -> Space | None:
        key = _key(layouts)
        if key not in self._loops:
            self._loops[key] = loop_space(self._task, self._target, layouts)
        return self._loops[key]


def known_in_joint(task: Task, target: Target, config: Config) -> Config | None:
    """A recorded configuration of a searched layout with a value for every knob; nothing where it is none any more."""
    layouts = layouts_in(config)
    space = layout_space(task, target, int(str(layouts[LEVELS]))) if isinstance(layouts.get(LEVELS), int) else None
    try:
        if space is None or not set(layouts) <= {k.name for k in space.knobs}:
            return None
        loops = loop_space(task, target, space.config(space.row(layouts)))
        if loops is None or not set(config) <= {k.name for k in loops.knobs}:
            return None
        return loops.config(loops.row(config))
    except ScheduleError:
        return None


def layouts_in(config: Config) -> Config:
    """The part of a configuration that says how tensors lie; empty for the target's own layouts."""
    return {name: value for name, value in config.items() if is_layout_knob(name)}


def primitives_of(task: Task, target: Target, config: Config) -> dict[str, str]:
    """The primitives of a searched layout, by what has them; empty for the target's own layouts.

    Returns:
        those of ``result``, of constants (``operand 1 packed``), and of what the operator converts, or asks for, as
        an accelerator's do (``operand 0``).
    """
    if LEVELS not in config:
        return {}
    config = layouts_in(config)
    node = configured(with_types(task.node, task.site.inputs), config)
    try:
        choice = layouts_of(task, node, target, Knobs(config))
    except ScheduleError:  # it cannot be compiled either, and the trial says why
        return {}
    found = [("result", layout) for layout in choice.outputs]
    found += [(f"operand {k}", layout) for k, layout in (*choice.inside.items(), *choice.asked.items())]
    found += [(f"operand {k} packed", layout) for k, layout in choice.packed.items()]
    return {name: "row-major" if layout is None else str(layout) for name, layout in found}


def _key(config: Config) -> Hashable:
    return tuple(sorted(layouts_in(config).items()))


class Search:
    """Proposes configurations of one space, by an explorer of it.

    Args:
        explorer: of the rows of the space.
        space: whose they are.
    """

    def __init__(self, explorer: Explorer, space: Space) -> None:
        self._explorer, self._space = explorer, space

    def batch(self, n: int) -> int:
        """How many to ask for that are measured before the search goes on, of at most ``n``."""
        return batch_of(self._explorer, n)

    def propose(self, n: int) -> list[Config]:
        """At most ``n`` new configurations."""
        return [self._space.config(row) for row in self._explorer.propose(n)]

    def observe(self, configs: Sequence[Config], speeds: np.ndarray) -> None:
        """What was measured; speeds as explorers take them."""
        if configs:
            self._explorer.observe(np.array([self._space.row(c) for c in configs]), speeds)


@dataclass(eq=False)
class _Under:
    """A layout that is being judged.

    Args:
        row: its place in the layout space; nothing for the target's own layouts.
        search: of its loops.
        best: speed.
        asked: trials proposed.
        told: whether the layouts' explorer knows how fast it is.
        queue: what its search has proposed for later.
    """

    row: np.ndarray | None
    search: Search
    best: float = 0.0
    asked: int = 0
    told: bool = False
    queue: list[Config] = field(default_factory=list)


class CrossExploration:
    """Layouts and loops searched together (ALT §5.2): a layout, some rounds of loop search, the best as its reward.

    In the joint stage an explorer of the layout space proposes layouts, and for each an explorer of the loop space that
    is rebuilt for it proposes loops; those that look promising after a round get more. The target's own layouts take
    part. Where the layouts that the target expects to be fast are looked at first, and turn out to be slower
    than its own, as of sums over few terms, the joint stage ends, and the search is that of loops alone but for these
    looks: it has the same first batch, and its cost model forgets what was measured under other layouts.

    In the loop-only stage the fastest layout keeps all trials, and its loop space does not change any more. Where the
    target's own layouts are nearly as fast, these two share them: the difference may be luck, and the loops of the own
    layouts must not be known less well than by a search of them alone.

    Args:
        task: whose configurations.
        target: whose schedules.
        layouts: the layout space.
        explorer: of that.
        make: gives an explorer of the loops of a task, whose space is that of one layout, and what it begins with,
            int64 ``[n, knobs]``.
        joint: trials of the joint stage.
        near: the best configurations of like workloads.
        trials: of a round of loop search under a layout.
        look: trials of the first round.
        expected: how many layouts the explorer begins with that are expected to be as fast as the target's own.
        leave: makes the explorer of the target's own layouts forget what those of other layouts have measured.
    """

    def __init__(
        self,
        task: Task,
        target: Target,
        layouts: Space,
        explorer: Explorer,
        make: Callable[[Task, np.ndarray], Explorer],
        joint: int,
        near: Sequence[Config] = (),
        trials: int = ROUND,
        look: int = LOOK,
        expected: int = 0,
        leave: Callable[[], None] | None = None,
    ) -> None:
        self._task, self._target, self._layouts, self._explorer, self._make = task, target, layouts, explorer, make
        self._joint, self._near, self._round = joint, near, trials
        self._look = look
        self._first = min(expected, FIRST_LAYOUTS)
        self._leave = leave
        self._hopeless = False
        self._measured = 0
        self._own = _Under(None, self._search({}, task.space))
        self._under: dict[Hashable, _Under] = {(): self._own}

    def batch(self, n: int) -> int:
        """As :meth:`Search.batch`; whole ones while they are shared among layouts, else those of loops alone."""
        alone = self._hopeless or (self._first and not self._measured)
        return self._own.search.batch(n) if alone else n

    def propose(self, n: int) -> list[Config]:
        """At most ``n`` new configurations, the untuned one first."""
        if self._hopeless and self._own.queue:
            return self._ask(self._own, min(n, len(self._own.queue)))
        if self._measured >= self._joint or self._hopeless:
            ranked = sorted(self._under.values(), key=lambda u: -u.best)
            second = ranked[0] is not self._own and self._own.best >= CLOSE * ranked[0].best
            found = self._ask(self._own, n // 2) if second else []
            for under in ranked:  # one that has nothing left is followed by the next
                found += self._ask(under, n - len(found))
                if len(found) >= n:
                    break
            return found
        if self._first and not self._measured:
            self._own.queue = self._own.search.propose(n)
            n = min(n, 1 + self._first)
        n = min(n, self._joint - self._measured)
        found = self._ask(self._own, max(round(OWN * n), 0 if self._measured else 1))
        best = max(u.best for u in self._under.values())
        again = [
            u for u in self._under.values()
            if u is not self._own and not u.told and u.best >= PROMISING * best and u.asked < MOST_ROUNDS * self._round
        ]  # fmt: skip
        for under in sorted(again, key=lambda u: -u.best):
            found += self._ask(under, min(self._round, n - len(found)))
        for under in self._under.values():
            if under not in again:  # others have rounds that are not measured yet
                self._tell(under)
        while len(found) < n:
            rows = self._explorer.propose(1)
            if not len(rows):
                return found + self._ask(self._own, n - len(found))
            # one that an earlier run has begun with goes on from what it measured
            opened = self._under.get(_key(self._layouts.config(rows[0]))) or self._open(rows[0])
            if opened is None:
                self._explorer.observe(rows, np.zeros(1))
            else:
                found += self._ask(opened, min(self._look, n - len(found)))
        return found

    def observe(self, configs: Sequence[Config], speeds: np.ndarray) -> None:
        """What was measured, in this run or an earlier one."""
        self._measured += len(configs)
        by_layout: dict[Hashable, list[int]] = {}
        for k, config in enumerate(configs):
            by_layout.setdefault(_key(config), []).append(k)
        for key, places in by_layout.items():
            under = self._under.get(key) or self._open(self._layouts.row(layouts_in(configs[places[0]])))
            if under is None:
                continue
            under.search.observe([configs[k] for k in places], speeds[places])
            under.best = max(under.best, float(speeds[places].max()))
            under.asked = max(under.asked, len(places))
        self._judge()

    def _judge(self) -> None:
        """Whether none of the layouts that are expected to be the fastest comes near the target's own."""
        tried = [u.best for u in self._under.values() if u is not self._own and u.asked]
        if not self._hopeless and 0 < self._first <= len(tried) and max(tried) < HOPE * self._own.best:
            self._hopeless = True
            if self._leave is not None:
                self._leave()

    def _ask(self, under: _Under, n: int) -> list[Config]:
        n = max(n, 0)
        found, under.queue = under.queue[:n], under.queue[n:]
        if len(found) < n:
            found += under.search.propose(n - len(found))
        under.asked += len(found)
        return found

    def _open(self, row: np.ndarray) -> _Under | None:
        """Begins with a layout: rebuilds the loop space for it."""
        config = self._layouts.config(row)
        space = loop_space(self._task, self._target, config)
        if space is None:
            return None
        under = _Under(row, self._search(config, space))
        self._under[_key(config)] = under
        return under

    def _search(self, layouts: Config, space: Space) -> Search:
        """A search of the loops under some layouts, from the best of those that like workloads have under the same."""
        rows = [space.nearest(c) for c in self._near if layouts_in(c) == dict(layouts)]
        seeds = np.array(rows, np.int64).reshape(-1, len(space.knobs))
        return Search(self._make(replace(self._task, space=space), seeds), space)

    def _tell(self, under: _Under) -> None:
        """Gives the layouts' explorer the reward of one that is judged."""
        if under.row is not None and not under.told:
            under.told = True
            self._explorer.observe(under.row[None], np.array([under.best]))

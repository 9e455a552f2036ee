"""What an exploration knows: which configurations were proposed or measured, and how fast those are."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from mlc.lower.knobs import Space
from mlc.tuning.explorers.topology import Topology

Valid = Callable[[np.ndarray], np.ndarray]

ENUMERABLE = 1 << 20  # a space of at most this many configurations is listed when random draws find nothing new
_DRAWS = 1024  # at a time, at least, once a few have not been enough
_FEW = 32  # at first: whether a configuration is valid can cost a schedule
_ROUNDS = 16  # of draws before a small space is listed
_PATIENCE = 1024  # rounds of draws before a large space counts as having nothing valid


class Ledger:
    """The books of one exploration, which all its strategies share.

    Args:
        space: what is explored.
        rng: every random choice comes from it.
        seeds: configurations to try first, after the default one; int64 ``[n, knobs]``.
        valid: tells which of many configurations ``[n, knobs]`` are worth a proposal, bool ``[n]``; the default
            configuration is proposed without asking.

    Attributes:
        rows: measured configurations in order of measuring, int64 ``[n, knobs]``.
        speeds: of these, float64 ``[n]``, finite; 0 for failures. A configuration measured again takes its last speed.
    """

    def __init__(
        self, space: Space, rng: np.random.Generator, seeds: np.ndarray | None = None, valid: Valid | None = None
    ) -> None:
        self.space = space
        self.rng = rng
        self._valid = valid
        knobs = len(space.knobs)
        self._none = np.zeros((0, knobs), np.int64)
        self.rows = self._none
        self.speeds = np.zeros(0)
        self._position: dict[int, int] = {}
        self._known = np.zeros(0, np.uint64)  # codes, ascending
        self._places = _places(space)
        self._default: np.ndarray | None = space.row({})[None]
        self._seeds = self._none if seeds is None else np.asarray(seeds, np.int64).reshape(-1, knobs)

    @cached_property
    def topology(self) -> Topology:
        """Which values are neighbours."""
        return Topology(self.space)

    def codes(self, rows: np.ndarray) -> np.ndarray:
        """A number for each configuration, uint64 ``[n]``; equal numbers mean equal configurations.

        In spaces of more than 2^63 configurations two of them share a number with a chance of one in 2^63.
        """
        found: np.ndarray = (rows.astype(np.uint64) * self._places).sum(axis=1, dtype=np.uint64)
        return found

    def valid(self, rows: np.ndarray) -> np.ndarray:
        """Which configurations are worth a proposal, bool ``[n]``."""
        if self._valid is None or not len(rows):
            return np.ones(len(rows), bool)
        return np.asarray(self._valid(rows), bool)

    def unknown(self, rows: np.ndarray) -> np.ndarray:
        """Which configurations are unknown and not the same as an earlier row, bool ``[n]``."""
        codes = self.codes(rows)
        first = np.zeros(len(rows), bool)
        first[np.unique(codes, return_index=True)[1]] = True
        return first & ~self._holds(codes)

    def new(self, rows: np.ndarray) -> np.ndarray:
        """Which configurations are unknown, valid and not the same as an earlier row, bool ``[n]``."""
        mask = self.unknown(rows)
        mask[mask] = self.valid(rows[mask])
        return mask

    def take(self, rows: np.ndarray, n: int) -> np.ndarray:
        """The first ``n`` new configurations among some, which are known from now on."""
        return self._mark(rows[self.new(rows)][:n])

    def first(self, n: int) -> np.ndarray:
        """At most ``n`` of the configurations to begin with: the default, then the seeds."""
        found = self._none
        if self._default is not None and n:
            found = self._mark(self._default[self.unknown(self._default)])
            self._default = None
        seeds = self._seeds[self.new(self._seeds)]
        taken = self._mark(seeds[: n - len(found)])
        self._seeds = seeds[len(taken) :]
        return np.concatenate([found, taken])

    def fresh(self, n: int) -> np.ndarray:
        """``n`` new configurations drawn evenly, known from now on; fewer only when there are no more.

        In a space beyond listing, no more means that a million draws found none.
        """
        found = [self._none]
        small = self.space.size <= ENUMERABLE
        rounds = 0
        while n and rounds < (_ROUNDS if small else _PATIENCE) and len(self._known) < self.space.size:
            taken = self.take(self.space.sample(self.rng, max(_DRAWS if rounds else _FEW, 2 * n)), n)
            found.append(taken)
            n -= len(taken)
            rounds += 1
        if n and small:
            rest = self._listed[~self._holds(self.codes(self._listed))]
            picked = self.rng.permutation(len(rest))[:n]
            found.append(self._mark(rest[picked]))
        return np.concatenate(found)

    def record(self, rows: np.ndarray, speeds: np.ndarray) -> None:
        """Enter what was measured; ``[n, knobs]`` and ``[n]``."""
        rows = np.asarray(rows, np.int64).reshape(-1, len(self.space.knobs))
        speeds = np.asarray(speeds, np.float64).reshape(-1)
        speeds = np.where(np.isfinite(speeds) & (speeds > 0), speeds, 0.0)
        self._mark(rows)
        where = np.zeros(len(rows), np.int64)
        end = len(self.rows)
        for k, code in enumerate(self.codes(rows).tolist()):
            where[k] = self._position.setdefault(code, end)
            end += where[k] == end
        more = end - len(self.rows)
        self.rows = np.concatenate([self.rows, np.zeros((more, rows.shape[1]), np.int64)])
        self.speeds = np.concatenate([self.speeds, np.zeros(more)])
        self.rows[where] = rows
        self.speeds[where] = speeds

    def ranked(self, most: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The fastest configurations that did not fail and their speeds, best first: ``[n, knobs]`` and ``[n]``."""
        order = np.argsort(-self.speeds, kind="stable")[:most]
        order = order[self.speeds[order] > 0]
        return self.rows[order], self.speeds[order]

    def known_best(self) -> np.ndarray:
        """What searches go out from: :meth:`ranked`, or the default until anything was measured, ``[n, knobs]``."""
        return self.ranked()[0] if len(self.rows) else self.space.row({})[None]

    @cached_property
    def _listed(self) -> np.ndarray:
        """Every valid configuration of a small space."""
        numbers = np.arange(self.space.size)
        rows = np.stack(np.unravel_index(numbers, tuple(self.space.counts)), axis=1) if self.space.knobs else self._none
        return rows[self.valid(rows)]

    def _holds(self, codes: np.ndarray) -> np.ndarray:
        if not len(self._known):
            return np.zeros(len(codes), bool)
        at = np.searchsorted(self._known, codes).clip(max=len(self._known) - 1)
        found: np.ndarray = self._known[at] == codes
        return found

    def _mark(self, rows: np.ndarray) -> np.ndarray:
        self._known = np.union1d(self._known, self.codes(rows))
        return rows


def _places(space: Space) -> np.ndarray:
    """What a step of each knob adds to a configuration's code, uint64 ``[knobs]``."""
    if space.size > 1 << 63:  # beyond mixed radix: odd numbers without a pattern, drawn once and for all
        return np.random.default_rng(0).integers(1 << 63, size=len(space.knobs), dtype=np.uint64) * np.uint64(
            2
        ) + np.uint64(1)
    places, step = [], 1
    for count in reversed(space.counts.tolist()):
        places.append(step)
        step *= count
    return np.array(places[::-1], np.uint64)

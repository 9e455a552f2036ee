"""The graph over a space's configurations as arrays, and random walks on it (OpEvo §3, §4.3)."""

from __future__ import annotations

import numpy as np

from mlc.lower.knobs import Space


class Topology:
    """Neighbours of all values of all knobs.

    The values of all knobs lie one after the other: value ``i`` of knob ``k`` is vertex ``offsets[k] + i``, and its
    neighbours, as indices of values, are ``ends[starts[v] : starts[v + 1]]``.
    """

    def __init__(self, space: Space) -> None:
        lists = [knob.neighbours(i) for knob in space.knobs for i in range(len(knob.values))]
        self.offsets = np.concatenate([[0], np.cumsum(space.counts)])[:-1].astype(np.int64)
        self.degrees = np.array([len(n) for n in lists], np.int64)
        self.starts = np.concatenate([[0], np.cumsum(self.degrees)]).astype(np.int64)
        self.ends = np.array([k for n in lists for k in n], np.int64)

    def degree(self, rows: np.ndarray) -> np.ndarray:
        """How many neighbours each value of each configuration has, int64 ``[n, knobs]``."""
        found: np.ndarray = self.degrees[rows + self.offsets]
        return found

    def neighbours(self, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All configurations in which one knob of ``row`` has moved: ``[m, knobs]``, and which knob, ``[m]``."""
        vertices = row + self.offsets
        degrees = self.degrees[vertices]
        knobs = np.repeat(np.arange(len(row)), degrees)
        within = np.arange(len(knobs)) - np.repeat(np.cumsum(degrees) - degrees, degrees)
        moved = np.repeat(row[None], len(knobs), axis=0)
        moved[np.arange(len(knobs)), knobs] = self.ends[self.starts[vertices][knobs] + within]
        return moved, knobs

    def move(self, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Each configuration with one random knob at a random neighbouring value, ``[n, knobs]``.

        A configuration without any neighbour stays.
        """
        moved = rows.copy()
        if not rows.size:
            return moved
        # The greatest of random keys picks evenly among the knobs that can move at all.
        keys = np.where(self.degree(rows) > 0, rng.random(rows.shape), -1.0)
        at = np.arange(len(rows))
        knob = keys.argmax(axis=1)
        can = keys[at, knob] >= 0
        self._jump(moved, at[can], knob[can], rng)
        return moved

    def walk(self, rows: np.ndarray, q: float, rng: np.random.Generator) -> np.ndarray:
        """Every knob of every configuration after a q-random walk of its own, ``[n, knobs]`` (OpEvo eq. 3).

        A walk stops with probability ``1 - q`` before each step, and otherwise goes to one of the neighbours of the
        value where it is, all alike. With ``T`` the matrix of these steps, a walk from ``u`` ends at the values with
        the probabilities in column ``u`` of ``(1 - q) (I - q T)^-1``.
        """
        moved = rows.copy()
        at, knob = np.nonzero(self.degree(rows) > 0)
        while True:
            going = rng.random(len(at)) < q
            at, knob = at[going], knob[going]
            if not len(at):
                return moved
            self._jump(moved, at, knob, rng)

    def _jump(self, rows: np.ndarray, at: np.ndarray, knob: np.ndarray, rng: np.random.Generator) -> None:
        vertices = rows[at, knob] + self.offsets[knob]
        rows[at, knob] = self.ends[self.starts[vertices] + rng.integers(0, self.degrees[vertices])]

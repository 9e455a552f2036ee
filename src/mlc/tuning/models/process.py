"""A Gaussian process over knobs: how fast a configuration may be, and how little is known of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlc.lower.knobs import Discrete, Factors, Space

_MOST = 768  # observations that it is made of, the fastest and some of the others
_TUNED_ON = 128  # ... and that its length scales are fitted to
_NOISES = (0.02, 0.1)  # variance of a measurement, in that of the speeds
_STEPS = (0.35, 0.6, 1.6, 2.8)  # factors by which a length scale is changed
_LEAST, _GREATEST = 0.05, 30.0  # length scales, in units of the greatest distance
_USUAL, _WIDTH = 1.6, 1.5  # median of what a length scale is expected to be, and the deviation of its logarithm
_JITTER = 1e-9


class Process:
    """Learns speeds from configurations alone.

    Two configurations are alike by ``exp(-sum of distances / length scales)``. Distances are those of the knobs'
    tables, in which neighbours (OpEvo §3) are near each other: logarithms of factors and of numbers, places in an
    order, and for things without an order whether they are the same. Every column has a length scale of its own,
    fitted by maximum likelihood, a step of each at a time; so what does not matter is found out.

    Args:
        space: of the configurations; it has at least one knob.
    """

    def __init__(self, space: Space) -> None:
        columns: list[np.ndarray] = []
        owners: list[int] = []  # the length scale of each column
        for knob in space.knobs:
            table = np.asarray(knob.table, np.float64)
            alone = isinstance(knob, (Discrete, Factors))
            if alone:
                table = table / np.maximum(np.ptp(table, axis=0), 1e-9)
            else:
                table = table / max(np.abs(table[:, None] - table[None]).sum(axis=2).max(), 1e-9)
            columns.append(table)
            first = owners[-1] + 1 if owners else 0
            owners += [first + c if alone else first for c in range(table.shape[1])]
        self._tables, self._owners = columns, np.array(owners, np.int64)
        self._lengths = np.ones(int(self._owners.max(initial=-1)) + 1)
        self._noise = _NOISES[0]
        self._at = np.zeros((0, len(owners)))
        self._inverse = np.zeros((0, 0))
        self._weights = np.zeros(0)
        self._variance = 1.0

    def fit(self, rows: np.ndarray, speeds: np.ndarray, rng: np.random.Generator) -> None:
        """Learn afresh, from the length scales on that were found before.

        Args:
            rows: int64 ``[n, knobs]``, at least one.
            speeds: ``[n]``, 0 for failures.
            rng: draws which observations stand for all where they are many.
        """
        some = _some(speeds, _MOST, rng)
        rows, targets = rows[some], _standard(speeds[some])
        at = self._coordinates(rows)
        few = _some(targets, _TUNED_ON, rng)
        self._tune(at[few], targets[few], rng)
        kernel = self._kernel(at, at) + self._noise * np.eye(len(at))
        self._at = at
        self._inverse = np.linalg.inv(np.linalg.cholesky(kernel))
        self._weights = self._inverse.T @ (self._inverse @ targets)
        self._variance = max(float(targets @ self._weights) / len(targets), _JITTER)

    def posterior(self, rows: np.ndarray) -> Posterior:
        """What is known of some configurations, int64 ``[n, knobs]``; speeds have mean 0 and deviation 1."""
        at = self._coordinates(rows)
        cross = self._kernel(at, self._at)
        half = self._inverse @ cross.T
        variance = self._variance * np.maximum(1 - (half**2).sum(axis=0), _JITTER)
        return Posterior(self, at, half, cross @ self._weights, variance)

    def _covariance(self, known: Posterior, k: int) -> np.ndarray:
        """Of the ``k``-th configuration with all of them."""
        kernel = self._kernel(known.at, known.at[k : k + 1])[:, 0]
        return np.asarray(self._variance * (kernel - known.half.T @ known.half[:, k]))

    @property
    def noise(self) -> float:
        """Variance of a measurement."""
        return self._noise * self._variance

    def _coordinates(self, rows: np.ndarray) -> np.ndarray:
        return np.concatenate([t[rows[:, k]] for k, t in enumerate(self._tables)], axis=1)

    def _kernel(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        scaled = 1 / self._lengths[self._owners]
        total = np.zeros((len(a), len(b)))
        for x, y in zip((a * scaled).T, (b * scaled).T, strict=True):
            total += np.abs(x[:, None] - y)
        return np.asarray(np.exp(-total))

    def _tune(self, at: np.ndarray, targets: np.ndarray, rng: np.random.Generator) -> None:
        """One step of each length scale uphill."""
        distances = np.zeros((len(self._lengths), len(at), len(at)))
        for column, owner in zip(at.T, self._owners, strict=True):
            distances[owner] += np.abs(column[:, None] - column)
        targets = targets - targets.mean()

        def loss(lengths: np.ndarray, noise: float) -> float:
            kernel = np.exp(-np.tensordot(1 / lengths, distances, 1)) + noise * np.eye(len(at))
            lower = np.linalg.cholesky(kernel)
            whitened = np.linalg.solve(lower, targets)
            expected = ((np.log(lengths / _USUAL) / _WIDTH) ** 2).sum() / 2
            fit = len(at) / 2 * np.log(max(float(whitened @ whitened) / len(at), _JITTER))
            return float(fit + np.log(np.diag(lower)).sum() + expected)

        best = loss(self._lengths, self._noise)
        for noise in _NOISES:
            if (found := loss(self._lengths, noise)) < best:
                best, self._noise = found, noise
        for k in rng.permutation(len(self._lengths)):
            for step in _STEPS:
                lengths = self._lengths.copy()
                lengths[k] = np.clip(lengths[k] * step, _LEAST, _GREATEST)
                if (found := loss(lengths, self._noise)) < best:
                    best, self._lengths = found, lengths


@dataclass
class Posterior:
    """What a process knows of some configurations.

    Args:
        process: whose knowledge.
        at: their coordinates, ``[n, columns]``.
        half: their likeness to what was observed, ``[observed, n]``, whitened.
        mean: of the speed, ``[n]``.
        variance: of it, ``[n]``.
    """

    process: Process
    at: np.ndarray
    half: np.ndarray
    mean: np.ndarray
    variance: np.ndarray

    def choose(self, mean: np.ndarray, n: int, kappa: float) -> np.ndarray:
        """A batch by upper confidence bounds, indices ``[min(n, all)]``, the greatest mean first.

        Each choice counts as if it had been measured for the uncertainty of the next one, so that a batch does not ask
        the same thing many times (Desautels, Krause and Burdick 2014).

        Args:
            mean: to use instead of the process's own, ``[all]``.
            n: how many.
            kappa: deviations that are added to the mean.
        """
        variance = self.variance.copy()
        chosen: list[int] = []
        learnt: list[np.ndarray] = []
        for _ in range(min(n, len(mean))):
            bound = mean + kappa * np.sqrt(variance)
            bound[chosen] = -np.inf
            k = int(bound.argmax())
            chosen.append(k)
            shared = self.process._covariance(self, k) - sum((v * v[k] for v in learnt), start=np.zeros(len(mean)))
            learnt.append(shared / np.sqrt(max(shared[k], _JITTER) + self.process.noise))
            variance = np.maximum(variance - learnt[-1] ** 2, _JITTER)
        return np.array(sorted(chosen, key=lambda k: -mean[k]), np.int64)


def _some(values: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    """Which of many observations to use: half of them the greatest, the others any."""
    if len(values) <= most:
        return np.arange(len(values))
    top, rest = np.split(np.argsort(-values, kind="stable"), [most // 2])
    return np.concatenate([top, rng.permutation(rest)[: most - len(top)]])


def _standard(values: np.ndarray) -> np.ndarray:
    centred = values - values.mean()
    return np.asarray(centred / (float(centred.std()) or 1.0))

"""Artificial tasks: spaces with a known function of the configuration instead of a machine."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mlc.lower.knobs import Categorical, Discrete, Factors, Knob, Permutation, Space
from mlc.tuning.base import Explorer

Speed = Callable[[np.ndarray], np.ndarray]


def tiles(best: tuple[float, float, float, float] = (2.6, 3.4, 4.5, 6.0)) -> tuple[Space, Speed]:
    """A product of matrices, tiled: 15 million configurations, a fifth of which fail.

    Speeds fall off smoothly (in the logarithms of tile sizes) from ``best``: rows and columns of a register tile, rows
    of a cache block, depth. Tiles that are too large for the registers fail.
    """
    knobs: tuple[Knob, ...] = (
        Factors("m", 384, 3),
        Factors("n", 512, 3),
        Factors("k", 768, 2),
        Discrete("unroll", (0, 1, 2, 4, 8, 16)),
        Permutation("order", ("m", "n", "k")),
        Categorical("pack", ("none", "a", "b", "both")),
    )
    space = Space(
        knobs,
        {"m": (384, 1, 1), "n": (512, 1, 1), "k": (768, 1), "unroll": 0, "order": ("m", "n", "k"), "pack": "none"},
    )

    def speed(rows: np.ndarray) -> np.ndarray:
        m, n, k = (
            np.stack([np.log2(space.column(rows, name, p)) for p in range(parts)], 1)
            for name, parts in (("m", 3), ("n", 3), ("k", 2))
        )
        rank, order = space.column(rows, "unroll"), rows[:, 4]
        near = (m[:, 2] - best[0]) ** 2 / 4 + (n[:, 2] - best[1]) ** 2 / 4 + (m[:, 1] + m[:, 2] - best[2]) ** 2 / 12
        near = near + (k[:, 1] - best[3]) ** 2 / 10 + (np.log2(1 + rank) - k[:, 1] / 3) ** 2 / 12
        pack = np.array([0.75, 0.85, 0.95, 1.0])[rows[:, 5]] - 0.1 * (n[:, 1] < 2) * (rows[:, 5] > 1)
        speeds = 100 * np.exp(-near) * pack * np.array([1, 0.9, 0.8, 0.75, 0.7, 0.95])[order]
        return np.where(m[:, 2] + n[:, 2] > 8.1, 0.0, speeds)

    return space, speed


def explore(explorer: Explorer, speed: Speed, trials: int, batch: int = 16) -> np.ndarray:
    """Speeds in order of measuring, ``[trials]`` or fewer if the explorer has no more."""
    found: list[np.ndarray] = []
    while sum(map(len, found)) < trials:
        rows = explorer.propose(min(batch, trials - sum(map(len, found))))
        if not len(rows):
            break
        found.append(speed(rows))
        explorer.observe(rows, found[-1])
    return np.concatenate(found) if found else np.zeros(0)

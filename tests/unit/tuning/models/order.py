"""How good predictions are where only the order matters; all of them are 1 at best."""

from __future__ import annotations

import numpy as np

_CHUNK = 512  # rows of the matrix of all pairs at a time


def rank_correlation(predicted: np.ndarray, actual: np.ndarray) -> float:
    """Spearman's: the correlation of the ranks, ties sharing their mean rank; 0 if either side is constant."""
    a, b = _ranks(predicted), _ranks(actual)
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale else 0.0


def top_recall(predicted: np.ndarray, actual: np.ndarray, k: int) -> float:
    """The share of the ``k`` best that are among the ``k`` predicted best; ties go to the first."""
    k = min(k, len(actual))
    if not k:
        return 0.0
    best, guess = (np.argsort(-v, kind="stable")[:k] for v in (actual, predicted))
    return len(np.intersect1d(best, guess)) / k


def pairwise_accuracy(predicted: np.ndarray, actual: np.ndarray) -> float:
    """The share of pairs with different speeds that are predicted in the right order; equal predictions count half.

    0.5 is chance, and the answer where no two speeds differ.
    """
    right, total = 0.0, 0
    for begin in range(0, len(actual), _CHUNK):
        rows = slice(begin, begin + _CHUNK)
        truth = np.sign(actual[rows, None] - actual)
        agree = truth * np.sign(predicted[rows, None] - predicted)
        pairs = int(np.count_nonzero(truth))
        right += (float(agree.sum()) + pairs) / 2
        total += pairs
    return right / total if total else 0.5


def _ranks(values: np.ndarray) -> np.ndarray:
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    found: np.ndarray = (ends - (counts - 1) / 2)[where]
    return found

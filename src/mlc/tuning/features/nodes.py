"""Loops as the nodes of a tree, for cost models that read one: a row of numbers a loop, parents before children."""

from __future__ import annotations

import numpy as np

PRESENT, PARENT, NAME, NODE = 0, 1, 2, 3  # what is told of a node before its context
ROOT = 0  # as a parent


def nodes(context: np.ndarray, parents: np.ndarray, names: np.ndarray) -> np.ndarray:
    """Trees of loops.

    Args:
        context: features of each loop, float32 ``[n, nodes, features]``.
        parents: of each node, an earlier one, ``[n, nodes]``; -1 for none.
        names: a number for what each is called, ``[n, nodes]``; 0 for a node that is not there.
    Returns:
        float32 ``[n, nodes, NODE + features]``: whether the node is there, 1 more than its parent's position or
        ``ROOT``, its name, and its context.
    """
    head = np.stack([names > 0, parents + 1, names], axis=2).astype(np.float32)
    return np.concatenate([head, context], axis=2, dtype=np.float32)

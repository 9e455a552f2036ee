"""Tensors that are stored without most of their zeros, made dense.

The axes of a tensor, and those of blocks in it, are levels of a tree in an order of the file's own. A level is *dense*,
with a child for every position, or *compressed*: it lists the positions that there are, node by node.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from mlc.errors import ImportModelError
from mlc.frontend.tflite.flatbuffer import Table
from mlc.frontend.tflite.types import decode, element_type

_COMPRESSED = 1


def densified(number: int, shape: tuple[int, ...], data: np.ndarray, sparsity: Table, where: str) -> np.ndarray:
    """The values of a sparse tensor.

    Args:
        number: the element type.
        shape: extents of the dense tensor.
        data: bytes of the values that are stored.
        sparsity: the file's table.
        where: what it is, for messages.
    Raises:
        ImportModelError: the table contradicts itself, or the values.
        UnsupportedError: ``mlc`` does not compute with the element type.
    """
    order, blocked = sparsity["traversal_order"].tolist(), sparsity["block_map"].tolist()
    levels: list[Table] = sparsity["dim_metadata"]
    rank = len(shape)
    axes = rank + len(blocked)
    if sorted(order) != list(range(axes)) or len(levels) != axes or not all(0 <= d < rank for d in blocked):
        raise ImportModelError(f"{where}: levels {order} with blocks of axes {blocked} for a tensor of rank {rank}")
    blocks = [1] * rank
    for axis, level in zip(order, levels, strict=True):
        if axis >= rank:
            blocks[blocked[axis - rank]] *= max(int(level["dense_size"]), 1)
    if any(n % b for n, b in zip(shape, blocks, strict=True)):
        raise ImportModelError(f"{where}: blocks {blocks} of {list(shape)}")
    extents = [n // b for n, b in zip(shape, blocks, strict=True)] + [blocks[d] for d in blocked]
    places, leaves = _walk(order, levels, extents, prod(shape), where)
    values = decode(number, (data.nbytes // element_type(number, where).itemsize,), data, where)
    if leaves != values.size:
        raise ImportModelError(f"{where}: {values.size} values for {leaves} places")
    index = [places[d] for d in range(rank)]
    for k, d in enumerate(blocked):
        index[d] = index[d] * blocks[d] + places[rank + k]
    dense = np.zeros(shape, values.dtype)
    dense[tuple(index)] = values
    return dense


def _walk(
    order: Sequence[int], levels: Sequence[Table], extents: Sequence[int], most: int, where: str
) -> tuple[dict[int, np.ndarray], int]:
    """Coordinates of every leaf along each axis, and how many leaves there are."""
    places: dict[int, np.ndarray] = {}
    nodes = 1
    for axis, level in zip(order, levels, strict=True):
        n = extents[axis]
        if level["format"] == _COMPRESSED:
            parents, here = _compressed(level, nodes, n, where)
        else:
            if nodes * n > most or level["dense_size"] != n:
                raise ImportModelError(f"{where}: a level of {level['dense_size']} where an axis has {n}")
            parents, here = np.repeat(np.arange(nodes), n), np.tile(np.arange(n), nodes)
        places = {d: known[parents] for d, known in places.items()}
        places[axis] = here
        nodes = len(here)
    return places, nodes


def _compressed(level: Table, nodes: int, extent: int, where: str) -> tuple[np.ndarray, np.ndarray]:
    """For each child of each node, its parent and its position."""
    segments, indices = (
        np.asarray((level[name] or {}).get("values", ()), np.int64) for name in ("array_segments", "array_indices")
    )
    counts = np.diff(segments)
    sound = len(segments) == nodes + 1 and segments[0] == 0 and segments[-1] == len(indices) and (counts >= 0).all()
    if not sound or (len(indices) and not (indices.min() >= 0 and indices.max() < extent)):
        raise ImportModelError(f"{where}: segments of a compressed level do not fit its {nodes} nodes")
    return np.repeat(np.arange(nodes), counts), indices

"""Single elements of tensor expressions: what the reference interpreter can say where whole tensors take too long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from mlc.errors import VerifyError
from mlc.ir import te
from mlc.ir.expr import Load
from mlc.ir.index import Var
from mlc.ir.interp.te import Array, Evaluator, fold, inside

_CHUNK = 1 << 20  # grid points evaluated at once


def run_points(output: te.Tensor, points: Sequence[np.ndarray], inputs: Mapping[te.Tensor, np.ndarray]) -> np.ndarray:
    """Some elements of ``output``, computed from only those elements of other tensors that they depend on.

    Args:
        output: the tensor.
        points: indices, an integer array a dimension, all of one shape.
        inputs: arrays of the placeholders.
    Returns:
        the elements, in the shape of the indices.
    Raises:
        VerifyError: a load outside its tensor that no ``select`` guards.
    """
    values = {id(t): np.asarray(a) for t, a in inputs.items()}
    return _elements(output, [np.asarray(p) for p in points], values)


def _elements(tensor: te.Tensor, points: Sequence[Array], values: Mapping[int, np.ndarray]) -> np.ndarray:
    if id(tensor) in values:
        found: np.ndarray = values[id(tensor)][tuple(points)]
        return found
    op = tensor.op
    assert op is not None, f"{tensor.name} has no value"
    shape = np.broadcast_shapes(*(np.shape(p) for p in points)) if points else ()
    if not points:
        return _rows(op, tensor.which, [np.zeros(1, np.int64)], values).reshape(())
    flat = np.ravel_multi_index([np.broadcast_to(p, shape).reshape(-1) for p in points], tensor.shape)
    wanted, places = np.unique(flat, return_inverse=True)
    around = max(1, prod(a.hi + 1 for a in op.reduce_axes))
    step = max(1, _CHUNK // around)
    parts = [
        _rows(op, tensor.which, list(np.unravel_index(wanted[k : k + step], tensor.shape)), values)
        for k in range(0, len(wanted), step)
    ]
    return np.concatenate(parts)[places.reshape(-1)].reshape(shape)


def _rows(op: te.Compute, which: int, points: Sequence[np.ndarray], values: Mapping[int, np.ndarray]) -> np.ndarray:
    """Elements of one output of a compute, ``[n]``."""
    n = len(points[0])
    rank = 1 + len(op.reduce_axes)
    env: dict[Var, Array] = {a: p.reshape(-1, *[1] * (rank - 1)) for a, p in zip(op.axes, points, strict=False)}
    for k, a in enumerate(op.reduce_axes):
        env[a] = np.arange(a.hi + 1).reshape([-1 if d == k + 1 else 1 for d in range(rank)])
    grid = [n, *(a.hi + 1 for a in op.reduce_axes)]
    if op.combiner is not None and 0 in grid:
        identity = op.combiner.identity([b.dtype for b in op.bodies])[which]
        return np.full(n, identity.value, op.bodies[which].dtype.numpy)
    with np.errstate(all="ignore"):
        terms = [np.broadcast_to(_Points(env, values, op).eval(b), grid) for b in op.bodies]
        return (terms if op.combiner is None else fold(op, terms, 1))[which]


class _Points(Evaluator):
    """Evaluates what is loaded on the way."""

    def _load(self, e: Load, guarded: bool) -> Array:
        if id(e.source) in self.values:
            return super()._load(e, guarded)
        indices = [np.asarray(self.index(ix, guarded)) for ix in e.indices]
        for d, (i, n) in enumerate(zip(indices, e.source.shape, strict=True)):
            if not inside(i, n):
                if not guarded:
                    raise VerifyError(f"{e!r} leaves axis {d} of extent {n} in\n{self.op!r}")
                indices[d] = np.clip(i, 0, max(0, n - 1))
        return _elements(e.source, indices, self.values)

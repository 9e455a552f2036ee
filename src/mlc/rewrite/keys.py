"""Hashable keys of attributes and constants: what counts as "the same" for merging and for kernel names."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from typing import Any

import numpy as np

from mlc.ir.graph import Attrs, Operator, Value
from mlc.ir.types import TensorType

_PLAIN = frozenset({bool, int, str, type(None)})


def content_digest(array: np.ndarray) -> str:
    """SHA-256 of the elements in row-major order; 0.0 and -0.0 differ, equal NaNs do not."""
    data = np.ascontiguousarray(array)
    return hashlib.sha256(data.reshape(-1).view(np.uint8).data).hexdigest()


def attr_key(value: Any) -> Hashable:
    """A key that is equal exactly when two attribute values mean the same.

    ``1``, ``1.0`` and ``True`` differ; so do 0.0 and -0.0. Lists count as tuples, arrays by their contents, and what is
    neither hashable nor an array only equals itself.
    """
    if type(value) in _PLAIN:  # nearly all there are
        return type(value).__name__, value
    if isinstance(value, float):
        return "float", value.hex()
    if isinstance(value, (tuple, list)):
        return "tuple", tuple([attr_key(v) for v in value])
    if isinstance(value, np.ndarray):
        return "array", str(value.dtype), value.shape, content_digest(value)
    if isinstance(value, Hashable) and not hasattr(value, "__array__"):
        return type(value).__name__, value
    return "object", id(value)


def attrs_key(attrs: Attrs) -> Hashable:
    """The key of a whole attribute mapping, whatever its order."""
    return tuple([(k, attr_key(attrs[k])) for k in sorted(attrs)])


def call_key(op: Operator, inputs: tuple[Value, ...], attrs: Attrs) -> Hashable:
    """The key of an application: same operator, same operands, same attributes."""
    return op, inputs, attrs_key(attrs)


def constant_hint(type: TensorType, array: np.ndarray) -> Hashable:
    """A cheap key that equal constants share: their type and a few elements."""
    flat = array.reshape(-1)
    picked = flat[:: max(1, flat.size // 16)][:16]
    return type, np.ascontiguousarray(picked).tobytes()

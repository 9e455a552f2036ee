"""Layouts: sequences of primitives on a tensor's index space (ALT §4.1).

A layout maps the logical index space of a tensor, the only one operators know, to the physical one in memory:

* ``split(d, f)``: dimension ``d`` becomes ``(d // f, d % f)``;
* ``reorder(p…)``: physical dimension ``k`` is old dimension ``p[k]``;
* ``fuse(d, n)``: ``n`` dimensions from ``d`` on become one;
* ``pad(d, before, after)``: dimension ``d`` grows at its ends; what the padding holds is undefined;
* ``margin(d, before, after)``: the same, but the ends hold zeros, written by whoever computes the tensor. A window that
  slides past the border may then read on. Margins come last; the layout without them is the *core*, which is what the
  loops of the tensor run over.

``forward`` rewrites an access, ``inverse`` rebuilds a loop nest over the physical shape. Both work on canonical linear
forms, so ``c // 16`` and ``c % 16`` vanish as soon as ``c`` is split by 16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from mlc.errors import VerifyError
from mlc.ir.index import ZERO, Linear, as_index


@dataclass(frozen=True)
class Split:
    """Dimension ``dim`` of extent ``e`` becomes two of extents ``e / factor`` and ``factor``."""

    dim: int
    factor: int

    def __str__(self) -> str:
        return f"split({self.dim}, {self.factor})"


@dataclass(frozen=True)
class Reorder:
    """Physical dimension ``k`` is dimension ``perm[k]`` of before."""

    perm: tuple[int, ...]

    def __str__(self) -> str:
        return f"reorder({','.join(map(str, self.perm))})"


@dataclass(frozen=True)
class Fuse:
    """Dimensions ``dim … dim + count - 1`` become one, row-major."""

    dim: int
    count: int

    def __str__(self) -> str:
        return f"fuse({self.dim}, {self.count})"


@dataclass(frozen=True)
class Pad:
    """Dimension ``dim`` grows by ``before`` and ``after`` elements of undefined content."""

    dim: int
    before: int
    after: int

    def __str__(self) -> str:
        return f"pad({self.dim}, {self.before}, {self.after})"


@dataclass(frozen=True)
class Margin:
    """Dimension ``dim`` grows by ``before`` and ``after`` zeros."""

    dim: int
    before: int
    after: int

    def __str__(self) -> str:
        return f"margin({self.dim}, {self.before}, {self.after})"


Primitive = Split | Reorder | Fuse | Pad | Margin


@dataclass(frozen=True)
class Layout:
    """How a tensor of ``logical_shape`` lies in memory; ``physical_shape`` is what a row-major buffer of it has.

    Build with the methods ``split``, ``reorder``, ``fuse``, ``pad`` and ``margin``; each gives a longer layout.
    """

    logical_shape: tuple[int, ...]
    primitives: tuple[Primitive, ...] = ()
    physical_shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        shape = self.logical_shape
        for p in self.primitives:
            shape = _apply(shape, p)
        for p, following in pairwise(self.primitives):
            if type(p) is Margin and type(following) is not Margin:
                raise VerifyError(f"layout {self}: {following} follows a margin")
        object.__setattr__(self, "physical_shape", shape)

    def __str__(self) -> str:
        return ".".join(map(str, self.primitives)) or "plain"

    def _then(self, p: Primitive) -> Layout:
        return Layout(self.logical_shape, (*self.primitives, p))

    def split(self, dim: int, factor: int) -> Layout:
        return self._then(Split(dim, factor))

    def reorder(self, *perm: int) -> Layout:
        return self._then(Reorder(perm))

    def fuse(self, dim: int, count: int = 2) -> Layout:
        return self._then(Fuse(dim, count))

    def pad(self, dim: int, before: int, after: int) -> Layout:
        """Grow a dimension; nothing is recorded when both amounts are 0."""
        return self if before == after == 0 else self._then(Pad(dim, before, after))

    def margin(self, dim: int, before: int, after: int) -> Layout:
        """Surround a dimension by zeros; nothing is recorded when both amounts are 0."""
        return self if before == after == 0 else self._then(Margin(dim, before, after))

    @property
    def core(self) -> Layout:
        """This layout without its margins."""
        return Layout(self.logical_shape, tuple(p for p in self.primitives if type(p) is not Margin))

    @property
    def margins(self) -> tuple[tuple[int, int], ...]:
        """Zeros before and after each physical dimension."""
        found = [(0, 0)] * len(self.physical_shape)
        for p in self.primitives:
            if type(p) is Margin:
                found[p.dim] = (found[p.dim][0] + p.before, found[p.dim][1] + p.after)
        return tuple(found)

    @property
    def has_margins(self) -> bool:
        return any(type(p) is Margin for p in self.primitives)

    @property
    def is_plain(self) -> bool:
        """Whether nothing is changed at all."""
        return not self.primitives

    @property
    def has_padding(self) -> bool:
        """Whether some physical elements, other than those of margins, stand for no logical one."""
        return prod(self.core.physical_shape) != prod(self.logical_shape)

    def forward(self, indices: Sequence[Linear]) -> tuple[Linear, ...]:
        """Physical indices of a logical element."""
        ixs = list(indices)
        shape = self.logical_shape
        for p in self.primitives:
            match p:
                case Split(d, f):
                    ixs[d : d + 1] = [ixs[d] // f, ixs[d] % f]
                case Reorder(perm):
                    ixs = [ixs[k] for k in perm]
                case Fuse(d, n):
                    total = ZERO
                    for ix, extent in zip(ixs[d : d + n], shape[d : d + n], strict=True):
                        total = total * extent + ix
                    ixs[d : d + n] = [total]
                case Pad(d, before, _) | Margin(d, before, _):
                    ixs[d] = ixs[d] + before
            shape = _apply(shape, p)
        return tuple(ixs)

    def inverse(self, indices: Sequence[Linear]) -> tuple[Linear, ...]:
        """Logical indices of a physical element.

        Inside padding they leave the logical range; where a part of a split dimension is padded, they may name another
        element instead.
        """
        shapes = [self.logical_shape]
        for p in self.primitives:
            shapes.append(_apply(shapes[-1], p))
        ixs = [as_index(i) for i in indices]
        for p, shape in zip(reversed(self.primitives), reversed(shapes[:-1]), strict=True):
            match p:
                case Split(d, f):
                    ixs[d : d + 2] = [ixs[d] * f + ixs[d + 1]]
                case Reorder(perm):
                    old = [ZERO] * len(perm)
                    for k, d in enumerate(perm):
                        old[d] = ixs[k]
                    ixs = old
                case Fuse(d, n):
                    rest = ixs[d]
                    parts: list[Linear] = []
                    for extent in reversed(shape[d + 1 : d + n]):
                        parts.append(rest % extent)
                        rest = rest // extent
                    ixs[d : d + 1] = [rest, *reversed(parts)]
                case Pad(d, before, _) | Margin(d, before, _):
                    ixs[d] = ixs[d] - before
        return tuple(ixs)

    def pack(self, array: np.ndarray) -> np.ndarray:
        """The physical array of a logical one; padding is zero.

        Raises:
            VerifyError: the array has another shape than the layout is for.
        """
        if tuple(array.shape) != self.logical_shape:
            raise VerifyError(f"layout of {self.logical_shape} applied to an array of {array.shape}")
        for p in self.primitives:
            shape = array.shape
            match p:
                case Split(d, f):
                    array = array.reshape(*shape[:d], shape[d] // f, f, *shape[d + 1 :])
                case Reorder(perm):
                    array = array.transpose(perm)
                case Fuse(d, n):
                    array = array.reshape(*shape[:d], prod(shape[d : d + n]), *shape[d + n :])
                case Pad(d, before, after) | Margin(d, before, after):
                    widths = [(0, 0)] * array.ndim
                    widths[d] = (before, after)
                    array = np.pad(array, widths)
        return np.ascontiguousarray(array)

    def unpack(self, array: np.ndarray) -> np.ndarray:
        """The logical array of a physical one."""
        for step, arg in self.unpack_recipe():
            if step == "reshape":
                array = array.reshape(arg)
            elif step == "transpose":
                array = array.transpose(arg)
            else:
                array = array[tuple(slice(b, e) for b, e in arg)]
        return np.ascontiguousarray(array)

    def unpack_recipe(self) -> list[tuple[str, list[Any]]]:
        """Numpy steps (``reshape``, ``transpose``, ``slice``) from the physical array to the logical one."""
        shapes = [self.logical_shape]
        for p in self.primitives:
            shapes.append(_apply(shapes[-1], p))
        steps: list[tuple[str, list[Any]]] = []
        for p, shape in zip(reversed(self.primitives), reversed(shapes[:-1]), strict=True):
            match p:
                case Split() | Fuse():
                    steps.append(("reshape", list(shape)))
                case Reorder(perm):
                    steps.append(("transpose", [int(k) for k in np.argsort(perm)]))
                case Pad(d, before, _) | Margin(d, before, _):
                    steps.append(("slice", [[before, before + n] if k == d else [0, n] for k, n in enumerate(shape)]))
        return steps


def _apply(shape: tuple[int, ...], p: Primitive) -> tuple[int, ...]:
    """Shape after a primitive.

    Raises:
        VerifyError: the primitive does not fit the shape.
    """
    match p:
        case Split(d, f):
            if not 0 <= d < len(shape) or f < 1 or shape[d] % f:
                raise VerifyError(f"layout {p} does not divide dimension {d} of {shape}; pad it first")
            return (*shape[:d], shape[d] // f, f, *shape[d + 1 :])
        case Reorder(perm):
            if sorted(perm) != list(range(len(shape))):
                raise VerifyError(f"layout {p} is no permutation of the {len(shape)} dimensions of {shape}")
            return tuple(shape[k] for k in perm)
        case Fuse(d, n):
            if n < 1 or not 0 <= d <= len(shape) - n:
                raise VerifyError(f"layout {p} reaches past the dimensions of {shape}")
            return (*shape[:d], prod(shape[d : d + n]), *shape[d + n :])
        case Pad(d, before, after) | Margin(d, before, after):
            if not 0 <= d < len(shape) or before < 0 or after < 0:
                raise VerifyError(f"layout {p} does not fit {shape}")
            return (*shape[:d], shape[d] + before + after, *shape[d + 1 :])


def blocked(shape: Sequence[int], dim: int, block: int) -> Layout:
    """``NCHW[x]c``: dimension ``dim`` split by ``block`` (padded up to it), the inner part innermost."""
    rank = len(shape)
    extra = -shape[dim] % block
    perm = [k for k in range(rank + 1) if k != dim + 1] + [dim + 1]
    return Layout(tuple(shape)).pad(dim, 0, extra).split(dim, block).reorder(*perm)

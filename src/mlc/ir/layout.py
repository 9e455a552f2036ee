"""Layouts: sequences of primitives on a tensor's index space (ALT §4.1).

A layout maps the logical index space of a tensor, the only one operators know, to the physical one in memory. The basic
primitives move every element to one place:

* ``split(d, f)``: dimension ``d`` becomes ``(d // f, d % f)``;
* ``reorder(p…)``: physical dimension ``k`` is old dimension ``p[k]``;
* ``fuse(d, n)``: ``n`` dimensions from ``d`` on become one.

The advanced ones change how many places there are:

* ``unfold(d, b, s)``: dimension ``d`` becomes tiles of ``b`` elements, ``s`` apart; they overlap where ``b > s``, and
  data expand. Only windows that stay within a tile can be read (equation 1, :func:`place_in_tiles`);
* ``pad(d, before, after)``: dimension ``d`` grows at its ends; what the padding holds is undefined;
* ``store_at(d, extent, at)``: the tensor lives inside its partner's memory, at index ``at`` of a dimension ``d`` that
  it does not have itself; the partner has been padded there;
* ``margin(d, before, after)``: like ``pad``, but the ends hold zeros, written by whoever computes the tensor. A window
  that slides past the border may then read on. Margins come last; the layout without them is the *core*, which is what
  the loops of the tensor run over.

Each has its inverse: ``fuse`` and ``split`` undo one another, ``fold``, ``unpad`` and ``decouple_at`` undo the others;
:attr:`Layout.inverted` is the sequence of them that leads from the physical index space back to the logical one.

``forward`` rewrites an access, ``inverse`` rebuilds a loop nest over the physical shape. Both work on canonical linear
forms, so ``c // 16`` and ``c % 16`` vanish as soon as ``c`` is split by 16.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise
from math import prod
from typing import Any

import numpy as np

from mlc.errors import VerifyError
from mlc.ir.index import ZERO, Linear, Var, as_index

MOST_TERMS = 8  # of an access into overlapping tiles


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
class Unfold:
    """Dimension ``dim`` of extent ``e`` becomes ``(e - tile) / stride + 1`` tiles of ``tile`` elements.

    Element ``j`` of tile ``t`` is element ``t * stride + j`` of before: ``1 2 3 4 5`` in tiles of 3, 2 apart, is
    ``1 2 3`` and ``3 4 5``.
    """

    dim: int
    tile: int
    stride: int

    def __str__(self) -> str:
        return f"unfold({self.dim}, {self.tile}, {self.stride})"


@dataclass(frozen=True)
class Fold:
    """Dimensions ``dim`` and ``dim + 1``, tiles that lie ``stride`` apart, become one; what undoes ``unfold``."""

    dim: int
    stride: int

    def __str__(self) -> str:
        return f"fold({self.dim}, {self.stride})"


@dataclass(frozen=True)
class Pad:
    """Dimension ``dim`` grows by ``before`` and ``after`` elements of undefined content."""

    dim: int
    before: int
    after: int

    def __str__(self) -> str:
        return f"pad({self.dim}, {self.before}, {self.after})"


@dataclass(frozen=True)
class Unpad:
    """Dimension ``dim`` loses ``before`` and ``after`` elements; what undoes ``pad`` and ``margin``."""

    dim: int
    before: int
    after: int

    def __str__(self) -> str:
        return f"unpad({self.dim}, {self.before}, {self.after})"


@dataclass(frozen=True)
class StoreAt:
    """A new dimension ``dim`` of ``extent``, of which the tensor is index ``at``; the rest is its partner's."""

    dim: int
    extent: int
    at: int

    def __str__(self) -> str:
        return f"store_at({self.dim}, {self.extent}, {self.at})"


@dataclass(frozen=True)
class DecoupleAt:
    """Of dimension ``dim``, index ``at`` alone; what undoes ``store_at``, given the ``extent`` of the dimension."""

    dim: int
    extent: int
    at: int

    def __str__(self) -> str:
        return f"decouple_at({self.dim}, {self.extent}, {self.at})"


@dataclass(frozen=True)
class Margin:
    """Dimension ``dim`` grows by ``before`` and ``after`` zeros."""

    dim: int
    before: int
    after: int

    def __str__(self) -> str:
        return f"margin({self.dim}, {self.before}, {self.after})"


Primitive = Split | Reorder | Fuse | Unfold | Fold | Pad | Unpad | StoreAt | DecoupleAt | Margin


@dataclass(frozen=True)
class Layout:
    """How a tensor of ``logical_shape`` lies in memory; ``physical_shape`` is what a row-major buffer of it has.

    Build with the methods named like primitives; each gives a longer layout.
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

    def unfold(self, dim: int, tile: int, stride: int) -> Layout:
        """Cut a dimension into tiles, which overlap where ``tile > stride``."""
        return self._then(Unfold(dim, tile, stride))

    def fold(self, dim: int, stride: int) -> Layout:
        """Put tiles of two dimensions together; what overlaps has to be equal."""
        return self._then(Fold(dim, stride))

    def pad(self, dim: int, before: int, after: int) -> Layout:
        """Grow a dimension; nothing is recorded when both amounts are 0."""
        return self if before == after == 0 else self._then(Pad(dim, before, after))

    def unpad(self, dim: int, before: int, after: int) -> Layout:
        """Leave the ends of a dimension out; nothing is recorded when both amounts are 0."""
        return self if before == after == 0 else self._then(Unpad(dim, before, after))

    def store_at(self, dim: int, extent: int, at: int) -> Layout:
        """Live inside a partner whose dimension ``dim`` has ``extent`` elements, at ``at`` of it."""
        return self._then(StoreAt(dim, extent, at))

    def decouple_at(self, dim: int, extent: int, at: int) -> Layout:
        """Leave the partner again."""
        return self._then(DecoupleAt(dim, extent, at))

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
        return any(type(p) in (Pad, StoreAt) for p in self.primitives)

    @property
    def expands(self) -> bool:
        """Whether data expand beyond padding: elements lie in several places, or within another tensor (§4.2)."""
        return any(
            (type(p) is Unfold and p.tile > p.stride) or type(p) in (Fold, StoreAt, DecoupleAt) for p in self.primitives
        )

    @cached_property
    def _shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape before every primitive."""
        shapes = [self.logical_shape]
        for p in self.primitives:
            shapes.append(_apply(shapes[-1], p))
        return tuple(shapes[:-1])

    @cached_property
    def inverted(self) -> Layout:
        """What leads from the physical index space to the logical one."""
        steps = [q for p, s in zip(reversed(self.primitives), reversed(self._shapes), strict=True) for q in _undo(p, s)]
        return Layout(self.physical_shape, tuple(steps))

    def forward(self, indices: Sequence[Linear], inside: Collection[Var] = ()) -> tuple[Linear, ...]:
        """Physical indices of a logical element.

        Args:
            indices: logical ones.
            inside: variables that run within a window, if there are any; see :func:`place_in_tiles`.
        Raises:
            VerifyError: an access into overlapping tiles is no window that stays within one.
        """
        ixs = list(indices)
        for p, shape in zip(self.primitives, self._shapes, strict=True):
            _rewrite(ixs, p, shape, inside)
        return tuple(ixs)

    def inverse(self, indices: Sequence[Linear | Var]) -> tuple[Linear, ...]:
        """Logical indices of a physical element.

        Inside padding they leave the logical range; where a part of a split dimension is padded, they may name another
        element instead.
        """
        return self.inverted.forward([as_index(i) for i in indices])

    def pack(self, array: np.ndarray) -> np.ndarray:
        """The physical array of a logical one; padding is zero, and so is what belongs to a partner.

        Raises:
            VerifyError: the array has another shape than the layout is for.
        """
        if tuple(array.shape) != self.logical_shape:
            raise VerifyError(f"layout of {self.logical_shape} applied to an array of {array.shape}")
        for p in self.primitives:
            array = _packed(array, p)
        return np.ascontiguousarray(array)

    def unpack(self, array: np.ndarray) -> np.ndarray:
        """The logical array of a physical one."""
        return self.inverted.pack(array)

    def unpack_recipe(self) -> list[tuple[str, list[Any]]]:
        """Numpy steps from the physical array to the logical one, as :mod:`mlc.runtime.layout` takes them.

        Raises:
            VerifyError: an inverse primitive is among them, so that undoing it would take more than these steps.
        """
        steps: list[tuple[str, list[Any]]] = []
        undone = self.inverted
        for k, (p, shape) in enumerate(zip(undone.primitives, undone._shapes, strict=True)):
            after = list(_apply(shape, p))
            match p:
                case Split() | Fuse():
                    # several dimensions that were fused come apart in one step
                    more = (
                        k + 1 < len(undone.primitives) and type(p) is Split and type(undone.primitives[k + 1]) is Split
                    )
                    if not more:
                        steps.append(("reshape", after))
                case Reorder(perm):
                    steps.append(("transpose", list(perm)))
                case Unpad(d, before, after_end):
                    kept = [[0, n] for n in shape]
                    kept[d] = [before, shape[d] - after_end]
                    steps.append(("slice", kept))
                case Fold(d, stride):
                    steps.append(("fold", [d, stride]))
                case DecoupleAt(d, _, at):
                    kept = [[0, n] for n in shape]
                    kept[d] = [at, at + 1]
                    steps += [("slice", kept), ("reshape", after)]
                case Unfold() | Pad() | StoreAt() | Margin():
                    raise VerifyError(f"layout {self}: nothing but {p} undoes what is stored")
        return steps


def place_in_tiles(
    index: Linear, tile: int, stride: int, tiles: int, inside: Collection[Var] = ()
) -> tuple[Linear, Linear]:
    """The tile of an access, and the place within it (ALT, equation 1).

    A window's access is ``V * i + r``, with ``i`` its position and ``r`` an offset inside it; it lies in tile
    ``V * i // stride`` as a whole if it never reaches beyond the tile. Which terms are the offset is found here: of all
    ways that stay inside, that one is taken whose forms have the fewest divisions left, and whose offset has the
    variables that are known to be ``inside`` a window.

    Args:
        index: into the dimension before it was unfolded.
        tile: elements of a tile.
        stride: between tiles.
        tiles: how many there are.
        inside: variables that run within a window, where that is known.
    Raises:
        VerifyError: the access is no such window.

    >>> i, r = Var("i", 0, 7), Var("r", 0, 2)
    >>> place_in_tiles(as_index(i) * 2 + r, 9, 8, 2)  # windows of 3, 2 apart: 4 a tile
    (i//4, 2*(i%4) + r)
    >>> o, k = Var("o", 0, 1), Var("k", 0, 3)
    >>> place_in_tiles((as_index(o) * 4 + k) * 2 + r, 9, 8, 2)
    (o, r + 2*k)
    """
    if tile == stride:
        return index // stride, index % stride
    if index.is_const:
        first = min(max(index.const // stride, 0), tiles - 1)
        return as_index(first), as_index(index.const - first * stride)
    atoms = list(index.terms.items())
    best: tuple[tuple[int, int], Linear, Linear] | None = None
    for count in range(len(atoms) + 1 if len(atoms) <= MOST_TERMS else 0):
        for some in combinations(atoms, count):
            for const in dict.fromkeys((0, index.const)):
                offset = Linear(dict(some), const)
                position = index - offset
                which, rest = position // stride, position % stride
                if offset.bounds()[0] < 0 or rest.bounds()[1] + offset.bounds()[1] >= tile:
                    continue
                if which.bounds()[0] < 0 or which.bounds()[1] >= tiles:
                    continue
                within = rest + offset
                divisions = sum(type(a) is not Var for a in (*which.terms, *within.terms))
                cost = divisions, len(position.vars() & {*inside})
                if best is None or cost < best[0]:
                    best = cost, which, within
    if best is None:
        raise VerifyError(
            f"access {index} is no window that stays within one of {tiles} tiles of {tile} elements, {stride} apart"
        )
    return best[1], best[2]


def _rewrite(ixs: list[Linear], p: Primitive, shape: tuple[int, ...], inside: Collection[Var]) -> None:
    """An access through one primitive, in place; ``shape`` is that of before."""
    match p:
        case Split(d, f) if f == shape[d]:  # all in one block: what lies outside stays outside
            ixs[d : d + 1] = [ZERO, ixs[d]]
        case Split(d, f):
            ixs[d : d + 1] = [ixs[d] // f, ixs[d] % f]
        case Reorder(perm):
            ixs[:] = [ixs[k] for k in perm]
        case Fuse(d, n):
            total = ixs[d]
            for ix, extent in zip(ixs[d + 1 : d + n], shape[d + 1 : d + n], strict=True):
                total = total * extent + ix
            ixs[d : d + n] = [total]
        case Unfold(d, tile, stride):
            ixs[d : d + 1] = place_in_tiles(ixs[d], tile, stride, _tiles(shape[d], tile, stride), inside)
        case Fold(d, stride):
            ixs[d : d + 2] = [ixs[d] * stride + ixs[d + 1]]
        case Pad(d, before, _) | Margin(d, before, _):
            ixs[d] = ixs[d] + before
        case Unpad(d, before, _):
            ixs[d] = ixs[d] - before
        case StoreAt(d, _, at):
            ixs[d:d] = [ZERO + at]
        case DecoupleAt(d):
            del ixs[d]


def _undo(p: Primitive, shape: tuple[int, ...]) -> list[Primitive]:
    """The primitives that lead back from one; ``shape`` is that of before it."""
    match p:
        case Split(d, _):
            return [Fuse(d, 2)]
        case Reorder(perm):
            return [Reorder(tuple(perm.index(k) for k in range(len(perm))))]
        case Fuse(d, n):
            return [Split(d, extent) for extent in reversed(shape[d + 1 : d + n])]
        case Unfold(d, _, stride):
            return [Fold(d, stride)]
        case Fold(d, stride):
            return [Unfold(d, shape[d + 1], stride)]
        case Pad(d, before, after) | Margin(d, before, after):
            return [Unpad(d, before, after)]
        case Unpad(d, before, after):
            return [Pad(d, before, after)]
        case StoreAt(d, extent, at):
            return [DecoupleAt(d, extent, at)]
        case DecoupleAt(d, extent, at):
            return [StoreAt(d, extent, at)]


def _packed(array: np.ndarray, p: Primitive) -> np.ndarray:
    """An array through one primitive."""
    shape = array.shape
    match p:
        case Split() | Fuse():
            return array.reshape(_apply(shape, p))
        case Reorder(perm):
            return array.transpose(perm)
        case Unfold(d, tile, stride):
            starts = np.arange(_tiles(shape[d], tile, stride)) * stride
            return np.take(array, starts[:, None] + np.arange(tile), axis=d)
        case Fold(d, stride):
            places = np.arange(_apply(shape, p)[d])
            first = np.minimum(places // stride, shape[d] - 1)
            flat = array.reshape(*shape[:d], shape[d] * shape[d + 1], *shape[d + 2 :])
            folded: np.ndarray = np.take(flat, first * shape[d + 1] + places - first * stride, axis=d)
            return folded
        case Pad(d, before, after) | Margin(d, before, after):
            return np.pad(array, [(before, after) if k == d else (0, 0) for k in range(array.ndim)])
        case Unpad(d, before, after):
            return array[tuple(slice(before, n - after) if k == d else slice(n) for k, n in enumerate(shape))]
        case StoreAt(d, extent, at):
            widths = [(at, extent - 1 - at) if k == d else (0, 0) for k in range(array.ndim + 1)]
            return np.pad(np.expand_dims(array, d), widths)
        case DecoupleAt(d, _, at):
            own: np.ndarray = np.take(array, at, axis=d)
            return own


def _tiles(extent: int, tile: int, stride: int) -> int:
    return (extent - tile) // stride + 1


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
        case Unfold(d, tile, stride):
            if not 0 <= d < len(shape) or not 1 <= stride <= tile <= shape[d] or (shape[d] - tile) % stride:
                raise VerifyError(f"layout {p} does not cut dimension {d} of {shape} into whole tiles; pad it first")
            return (*shape[:d], _tiles(shape[d], tile, stride), tile, *shape[d + 1 :])
        case Fold(d, stride):
            if not 0 <= d < len(shape) - 1 or shape[d] < 1 or not 1 <= stride <= shape[d + 1]:
                raise VerifyError(f"layout {p} puts no tiles of {shape} together")
            return (*shape[:d], (shape[d] - 1) * stride + shape[d + 1], *shape[d + 2 :])
        case Pad(d, before, after) | Margin(d, before, after):
            if not 0 <= d < len(shape) or before < 0 or after < 0:
                raise VerifyError(f"layout {p} does not fit {shape}")
            return (*shape[:d], shape[d] + before + after, *shape[d + 1 :])
        case Unpad(d, before, after):
            if not 0 <= d < len(shape) or before < 0 or after < 0 or before + after > shape[d]:
                raise VerifyError(f"layout {p} leaves nothing of dimension {d} of {shape}")
            return (*shape[:d], shape[d] - before - after, *shape[d + 1 :])
        case StoreAt(d, extent, at):
            if not 0 <= d <= len(shape) or not 0 <= at < extent:
                raise VerifyError(f"layout {p} names no place beside {shape}")
            return (*shape[:d], extent, *shape[d:])
        case DecoupleAt(d, extent, at):
            if not 0 <= d < len(shape) or shape[d] != extent or not 0 <= at < extent:
                raise VerifyError(f"layout {p} names no place in {shape}")
            return (*shape[:d], *shape[d + 1 :])


def blocked(shape: Sequence[int], dim: int, block: int) -> Layout:
    """``NCHW[x]c``: dimension ``dim`` split by ``block`` (padded up to it), the inner part innermost."""
    rank = len(shape)
    extra = -shape[dim] % block
    perm = [k for k in range(rank + 1) if k != dim + 1] + [dim + 1]
    return Layout(tuple(shape)).pad(dim, 0, extra).split(dim, block).reorder(*perm)

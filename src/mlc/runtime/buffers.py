"""Memory for native code: aligned arrays, their addresses, and the checks that stand before a raw pointer."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from ctypes import addressof, c_char
from math import prod

import numpy as np

from mlc.errors import UsageError
from mlc.runtime.dtypes import ELEMENTS, describe, numpy_dtype
from mlc.runtime.tensor_spec import ALIGNMENT, TensorSpec

KEPT_FROM = 1 << 20  # bytes of an array whose memory is kept: below, the C library keeps what it freed itself
MOST_KEPT = 2  # blocks of one output: callers often hold the last result while the next one is computed


def address(array: np.ndarray) -> int:
    """The address of an array's first element.

    ``array.ctypes.data`` says the same, but takes longer than all else in the run of a small model.
    """
    if array.flags.writeable:
        try:
            return addressof(c_char.from_buffer(array.data))
        except (TypeError, ValueError, BufferError):
            pass  # empty, strided, or of a type that the buffer protocol lacks (those of ml_dtypes)
    return array.__array_interface__["data"][0]


def aligned_empty(shape: Sequence[int], dtype: np.dtype | type) -> np.ndarray:
    """An uninitialised row-major array that starts at a multiple of ``ALIGNMENT`` bytes (numpy promises 16 only)."""
    dtype = np.dtype(dtype)
    return _aligned(np.empty(prod(shape) * dtype.itemsize + ALIGNMENT, np.uint8), shape, dtype)


def _aligned(raw: np.ndarray, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    return np.ndarray(shape, dtype, raw, -address(raw) % ALIGNMENT)


def _references(block: object) -> int:
    return sys.getrefcount(block)


def _alone() -> int:
    """What :func:`_references` says of an object that one local variable holds; interpreters count differently."""
    block = object()
    return _references(block)


_ALONE = _alone()


class Recycled:
    """Arrays of one type, large ones in memory that an earlier one no longer needs.

    The system gives new memory page by page, as it is written for the first time; for an output of tens of megabytes
    that takes as long as a kernel. An array and all its views hold a reference to their block, so a block without
    references but ours is free.
    """

    def __init__(self, shape: Sequence[int], dtype: np.dtype) -> None:
        self._shape, self._dtype = shape, dtype
        self._blocks: deque[np.ndarray] = deque()

    def empty(self) -> np.ndarray:
        """An uninitialised aligned array that shares memory with no array alive."""
        nbytes = prod(self._shape) * self._dtype.itemsize
        if nbytes < KEPT_FROM:
            return aligned_empty(self._shape, self._dtype)
        for _ in range(len(self._blocks)):
            try:
                raw = self._blocks.popleft()  # taken out, so that no other thread finds it free as well
            except IndexError:
                break
            free = _references(raw) == _ALONE
            array = _aligned(raw, self._shape, self._dtype) if free else None
            self._blocks.append(raw)
            if array is not None:
                return array
        raw = np.empty(nbytes + ALIGNMENT, np.uint8)
        array = _aligned(raw, self._shape, self._dtype)
        if len(self._blocks) < MOST_KEPT:
            self._blocks.append(raw)
        return array


class Ports:
    """The inputs, or the outputs, of a model: what stands between a user's arrays and the native calls.

    Args:
        kind: ``input`` or ``output``, for messages.
        specs: their types, in the model's order.
    """

    def __init__(self, kind: str, specs: Sequence[TensorSpec]) -> None:
        self._kind = kind
        self._specs = tuple((spec, spec.name, numpy_dtype(spec.dtype), spec.shape) for spec in specs)
        self._names = frozenset(spec.name for spec in specs)
        self._arrays = tuple(Recycled(spec.shape, numpy_dtype(spec.dtype)) for spec in specs)

    def empty(self) -> list[np.ndarray]:
        """A fresh aligned array for each."""
        return [arrays.empty() for arrays in self._arrays]

    def to_read(self, values: Mapping[str, object]) -> list[np.ndarray]:
        """The arrays to read from, in the model's order; strided ones are copied.

        Nothing is cast: a float64 array for a float32 input is more often a mistake than a wish.

        Raises:
            UsageError: one is missing, unknown, or of another element type or shape.
        """
        if not isinstance(values, Mapping):
            raise UsageError(
                f"expected a mapping from {self._kind} names to arrays, got {type(values).__name__}", hint=self._hint()
            )
        if values.keys() != self._names:
            self._refuse_unknown(values)
            missing = next(name for _, name, _, _ in self._specs if name not in values)
            raise UsageError(f"{self._kind} {missing!r} is missing", hint=self._hint())
        arrays = []
        for spec, name, dtype, shape in self._specs:
            array = np.asarray(values[name])
            if array.dtype != dtype or array.shape != shape:
                self._refuse_type(spec, array)
            flags = array.flags
            if not (flags.c_contiguous and flags.aligned):
                array = np.require(array, requirements=("C", "A"))
            arrays.append(array)
        return arrays

    def to_write(
        self, values: Mapping[str, np.ndarray], apart: Sequence[np.ndarray], over: Mapping[str, int]
    ) -> list[np.ndarray]:
        """The arrays to write to, in the model's order: those given, and fresh ones for the rest.

        Args:
            values: arrays by name.
            apart: arrays that must not be written to,
            over: but for one of them by each of these, by position, if it is that very memory.
        Raises:
            UsageError: a name is unknown, or an array is of another type, not contiguous, read-only, or overlaps.
        """
        self._refuse_unknown(values)
        arrays: list[np.ndarray] = []
        read = {j: (begin, begin + a.nbytes, -1) for j, a in enumerate(apart) if (begin := address(a)) and a.nbytes}
        written: list[tuple[int, int, int]] = []
        for k, ((spec, name, dtype, _), fresh) in enumerate(zip(self._specs, self._arrays, strict=True)):
            array = values.get(name)
            if array is None:
                array = fresh.empty()
            else:
                self._check_target(spec, array, dtype)
                if array.nbytes:
                    begin = address(array)
                    if (j := over.get(name)) is not None and j in read and read[j][0] == begin:
                        del read[j]
                    written.append((begin, begin + array.nbytes, k))
            arrays.append(array)
        self._require_apart([*read.values(), *written])
        return arrays

    def _require_apart(self, spans: Sequence[tuple[int, int, int]]) -> None:
        """Raises where what is written overlaps anything else.

        Args:
            spans: begin and end in memory, and the position of what is written, -1 for what is read.
        """
        end = last_end = 0  # of all so far, and of those that are written
        last = -1
        for begin, stop, k in sorted(spans):
            if begin < (end if k >= 0 else last_end):
                where = f"{self._kind} {self._specs[k if k >= 0 else last][1]!r}"
                raise UsageError(f"{where}: the array shares memory with an input or another output")
            end = max(end, stop)
            if k >= 0 and stop > last_end:
                last_end, last = stop, k

    def _check_target(self, spec: TensorSpec, array: np.ndarray, dtype: np.dtype) -> None:
        where = f"{self._kind} {spec.name!r}"
        if not isinstance(array, np.ndarray):
            raise UsageError(f"{where}: expected a numpy array, got {type(array).__name__}")
        if array.dtype != dtype or array.shape != spec.shape:
            self._refuse_type(spec, array)
        if not (array.flags.c_contiguous and array.flags.aligned and array.flags.writeable):
            raise UsageError(f"{where}: the array must be contiguous, aligned and writeable")

    def _refuse_unknown(self, values: Mapping[str, object]) -> None:
        for name in values:
            if name not in self._names:
                raise UsageError(f"unknown {self._kind} {name!r}", hint=self._hint())

    def _refuse_type(self, spec: TensorSpec, array: np.ndarray) -> None:
        dtype = numpy_dtype(spec.dtype)
        if array.dtype == dtype:
            hint = "the model was compiled for this shape; compile it for the other one with --shape"
        elif ELEMENTS[spec.dtype].plain:
            hint = f"convert the array with .astype(ml_dtypes.{dtype.name})"
        else:
            hint = f"convert the array with .astype({dtype.name!r})"
        got = describe(array.dtype, array.shape)
        raise UsageError(f"{self._kind} {spec.name!r}: expected {spec}, got {got}", hint=hint)

    def _hint(self) -> str:
        return f"the model's {self._kind}s: {', '.join(self._each()) or 'none'}"

    def _each(self) -> Iterator[str]:
        return (f"{spec.name!r} {spec}" for spec, _, _, _ in self._specs)

"""Inputs for a model, made up from a seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from mlc.errors import UsageError
from mlc.runtime.dtypes import ELEMENTS, from_plain, numpy_dtype
from mlc.runtime.manifest import ModelSpec
from mlc.runtime.tensor_spec import TensorSpec


class Fill(StrEnum):
    """How to make up inputs."""

    RANDOM = "random"
    ZEROS = "zeros"
    ONES = "ones"


@dataclass(frozen=True)
class Span:
    """The values that random inputs are drawn from: ``low`` to ``high``, both included for integers."""

    low: float
    high: float


# Integers wider than a byte are mostly token ids, masks, positions and the like: 0 and 1 are valid for all of these,
# whatever the size of the table that they index. Bytes are mostly quantised data, where every value is valid.
_WIDE_INTEGERS = Span(0, 1)


def make_feeds(
    specs: Sequence[TensorSpec],
    fill: Fill,
    seed: int,
    everywhere: Span | None = None,
    spans: Mapping[str, Span] | None = None,
) -> dict[str, np.ndarray]:
    """An array for each input.

    Random floats are standard normal, booleans even odds, bytes anything, and wider integers 0 or 1, unless a span says
    otherwise. What an input gets depends on the seed and its own name alone.

    Args:
        specs: the inputs.
        fill: how to fill them.
        seed: of the random generator, >= 0.
        everywhere: values of all random inputs but booleans; floats are then uniform.
        spans: the same for single inputs, by name.
    Raises:
        UsageError: a span is for an unknown input, or does not fit the element type.
    """
    spans = dict(spans or {})
    for name in spans:
        if name not in {spec.name for spec in specs}:
            hint = "the model's inputs: " + ", ".join(repr(spec.name) for spec in specs)
            raise UsageError(f"a range is given for {name!r}, which is not an input", hint=hint)
    return {spec.name: _filled(spec, fill, seed, spans.get(spec.name, everywhere)) for spec in specs}


def as_input(spec: TensorSpec, array: np.ndarray) -> np.ndarray:
    """An array from a file as the input wants it: for types that ``.npy`` lacks, numpy's own stand.

    So float32 does for bfloat16, int8 for i4 and i2, and uint8 for u4 and u2. Nothing else is converted: the module
    refuses another element type.

    Raises:
        UsageError: an integer does not fit the input's type.
    """
    found = from_plain(array, numpy_dtype(spec.dtype))
    if found is array and ELEMENTS[spec.dtype].plain == array.dtype.name:
        least, most = integer_limits(spec.dtype)
        raise UsageError(
            f"input {spec.name!r}: values from {array.min()} to {array.max()} are no {spec.dtype}",
            hint=f"it holds whole numbers from {least} to {most}",
        )
    return found


def _filled(spec: TensorSpec, fill: Fill, seed: int, span: Span | None) -> np.ndarray:
    dtype = numpy_dtype(spec.dtype)
    if fill is Fill.ZEROS:
        return np.zeros(spec.shape, dtype)
    if fill is Fill.ONES:
        return np.ones(spec.shape, dtype)
    generator = np.random.default_rng([seed, *spec.name.encode("utf-8")])
    if spec.dtype == "bool":
        return generator.integers(0, 2, spec.shape, dtype=np.uint8).astype(bool)
    if spec.dtype[0] in "iu":
        low, high = _integer_span(spec, span)
        drawn = generator.integers(low, high, spec.shape, dtype=ELEMENTS[spec.dtype].plain or dtype, endpoint=True)
        return drawn.astype(dtype, copy=False)
    if span is None:
        return generator.standard_normal(spec.shape).astype(dtype)
    return generator.uniform(span.low, span.high, spec.shape).astype(dtype)


def _integer_span(spec: TensorSpec, span: Span | None) -> tuple[int, int]:
    least, most = integer_limits(spec.dtype)
    if span is None:
        if ELEMENTS[spec.dtype].itemsize == 1:
            return least, most
        span = _WIDE_INTEGERS
    if not (least <= span.low <= span.high <= most and span.low == int(span.low) and span.high == int(span.high)):
        raise UsageError(
            f"input {spec.name!r}: {span.low:g}:{span.high:g} is not a range of {spec.dtype}",
            hint=f"give whole numbers from {least} to {most}, as in --range {spec.name}=0:9",
        )
    return int(span.low), int(span.high)


def integer_limits(dtype: str) -> tuple[int, int]:
    """The least and greatest value of an integer element type, sub-byte ones included."""
    bits = int(dtype[1:])
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if dtype.startswith("i") else (0, (1 << bits) - 1)


def as_original(feeds: Mapping[str, np.ndarray], model: ModelSpec) -> dict[str, np.ndarray]:
    """Inputs of a module in the order of axes in which the original model takes them."""
    own = dict(feeds)
    for name, layout in model.layouts.items():
        before, _, after = layout.partition("->")
        if name in own:
            own[name] = np.ascontiguousarray(own[name].transpose([after.index(axis) for axis in before]))
    return own

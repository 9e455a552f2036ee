"""The table of TFLite converters and what each is given.

A converter is one function for an operator, or a few of one shape: ``(ctx, op) -> outputs``. It reads options and
operands from ``op`` and appends core operators through ``ctx``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlc.errors import ImportModelError
from mlc.frontend.common.context import Context
from mlc.frontend.tflite.model import Quantization, TensorDef
from mlc.frontend.tflite.schema import enumeration
from mlc.frontend.tflite.types import element_type
from mlc.ir.graph import Value
from mlc.ir.types import DType

NARROW = ("i8", "u8", "i16")  # element types that quantised activations have


@dataclass(frozen=True)
class Operator:
    """An operator with its operands as values.

    Args:
        name: of the operator, as in ``CONV_2D``.
        options: attributes by name.
        inputs: ``None`` where one is left out.
        sources: what the file says of each input.
        results: what it says of each output.
        intermediates: what it says of numbers within the operator.
    """

    name: str
    options: Mapping[str, Any]
    inputs: tuple[Value | None, ...]
    sources: tuple[TensorDef | None, ...]
    results: tuple[TensorDef, ...]
    intermediates: tuple[TensorDef, ...] = ()

    def option(self, name: str, default: Any = 0) -> Any:
        return self.options.get(name, default)

    def choice(self, name: str, enum: str) -> str:
        """An option that is a number of an enumeration, as its name.

        Raises:
            ImportModelError: there is no such number.
        """
        number, names = self.option(name), enumeration(enum)
        if number not in names:
            raise ImportModelError(f"option {name!r} is {number}, {enum} goes up to {max(names)}")
        return names[number]

    def input(self, k: int, what: str = "") -> Value:
        """An input that must be there.

        Raises:
            ImportModelError: it is left out.
        """
        value = self.optional(k)
        if value is None:
            raise ImportModelError(f"input {k}{f' ({what})' if what else ''} is missing")
        return value

    def optional(self, k: int) -> Value | None:
        return self.inputs[k] if k < len(self.inputs) else None

    def scale_of(self, k: int) -> Quantization:
        """How the integers of an input stand for numbers.

        Raises:
            ImportModelError: the file does not say.
        """
        source = self.sources[k]
        if source is None or source.quantization is None:
            raise ImportModelError(f"input {k} is quantised, but has no scale")
        return source.quantization

    def result_scale(self, k: int = 0) -> Quantization:
        """How the integers of an output stand for numbers.

        Raises:
            ImportModelError: the file does not say, or there are several scales.
        """
        found = self.results[k].quantization
        if found is None or found.per_channel:
            raise ImportModelError(f"output {k} is quantised, but has no scale for all of it")
        return found

    def need_result_scale(self, scale: float, zero: int) -> None:
        """Check that the file agrees with a kernel whose results have one scale, whatever it says.

        Raises:
            ImportModelError: it says something else.
        """
        found = self.result_scale()
        if abs(found.scale[0] - scale) > 1e-3 * scale or found.zero[0] != zero:
            said = f"scale {found.scale[0]:g} and zero point {found.zero[0]}"
            raise ImportModelError(f"output 0 has {said}, {self.name} gives {scale:g} and {zero}")

    def intermediate_scale(self, k: int) -> Quantization:
        """How numbers within the operator are scaled.

        Raises:
            ImportModelError: the file does not say, or there are several scales.
        """
        found = self.intermediates[k].quantization
        if found is None or found.per_channel:
            raise ImportModelError(f"intermediate tensor {k} has no scale")
        return found

    def dtype(self, k: int = 0) -> DType:
        """Element type of an output, as declared."""
        return element_type(self.results[k].type, self.results[k].where)

    def quantised(self, k: int = 0) -> bool:
        """Whether an output holds integers that stand for other numbers."""
        return self.results[k].quantization is not None and self.dtype(k).name in NARROW


ConvertFn = Callable[[Context, Operator], Sequence[Value]]


@dataclass(frozen=True)
class Converter:
    """A converter and what it covers.

    Args:
        name: of the operator.
        convert: the function.
        limits: what is not covered, in words, printed by ``mlc ops``.
        custom: whether the operator is a custom one.
    """

    name: str
    convert: ConvertFn
    limits: str = ""
    custom: bool = False


@dataclass
class ConverterTable:
    """Converters by operator."""

    entries: dict[tuple[str, bool], Converter] = field(default_factory=dict)

    def find(self, name: str, custom: bool) -> Converter | None:
        return self.entries.get((name, custom))


CONVERTERS = ConverterTable()


def converter(name: str, *more: str, limits: str = "", custom: bool = False) -> Callable[[ConvertFn], ConvertFn]:
    """Decorator that enters a converter for one or more operators of one shape."""

    def wrap(fn: ConvertFn) -> ConvertFn:
        for each in (name, *more):
            if (each, custom) in CONVERTERS.entries:
                raise ValueError(f"converter for {each} is registered twice")
            CONVERTERS.entries[each, custom] = Converter(each, fn, limits, custom)
        return fn

    return wrap


def known_ints(ctx: Context, op: Operator, k: int, what: str) -> tuple[int, ...]:
    """An input of integers that must be known at compile time, in row-major order.

    Raises:
        UnknownValueError: it depends on the model's inputs.
    """
    array = ctx.require_const(op.input(k, what), what)
    return tuple(int(n) for n in np.asarray(array).reshape(-1))

"""What a manifest says of a model's tensors: name, type, and where a parameter, a result or a constant lies."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from mlc.fields import Fields, as_integer, as_integers, as_text, wrong
from mlc.runtime.dtypes import ELEMENTS, numpy_dtype
from mlc.runtime.layout import Physical

ALIGNMENT = 64
"""Bytes to which the arena, the parameters and each tensor in them are aligned: a cache line, an AVX-512 register."""

SPACES = ("workspace", "output", "input", "params")
"""Where a result may lie; ``output`` and ``input`` are numbered by ``ResultSpec.index``."""

PRECISIONS = (
    "float64", "float32", "int16", "float16", "bfloat16", "int8", "bfloat16_products", "int8_weights",
    "int4_weights", "quantised",
)  # fmt: skip
"""How precisely a tensor may have been computed, the finest first; ``int16`` and ``int8`` are the model's own steps,
``quantised`` is a model of floats that was compiled to integers."""

_HEXADECIMAL = re.compile(r"(?:[0-9a-f]{2})*")


def _dtype(value: object, where: str) -> str:
    if not isinstance(value, str) or value not in ELEMENTS:
        raise wrong(where, "one of " + " ".join(ELEMENTS), value)
    return value


def as_precision(value: object, where: str) -> str:
    if not isinstance(value, str) or value not in PRECISIONS:
        raise wrong(where, "one of " + " ".join(PRECISIONS), value)
    return value


def _hexadecimal(value: object, where: str) -> str:
    if not isinstance(value, str) or not _HEXADECIMAL.fullmatch(value):
        raise wrong(where, "bytes in hexadecimal", value)
    return value


def as_layout(value: object, where: str) -> str:
    own, _, wanted = value.partition("->") if isinstance(value, str) else ("", "", "")
    if not own or len(set(own)) != len(own) or sorted(own) != sorted(wanted):
        raise wrong(where, "two orders of the same axes, as in NHWC->NCHW", value)
    return str(value)


@dataclass(frozen=True)
class TensorSpec:
    """A named tensor: an input or output of the model, or a parameter before it has a place.

    Args:
        name: as in the original model.
        dtype: short element type, a key of ``dtypes.ELEMENTS``.
        shape: extents, each >= 0, row-major.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return prod(self.shape) * ELEMENTS[self.dtype].itemsize

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}

    @classmethod
    def from_json(cls, value: object, where: str) -> TensorSpec:
        fields = Fields(value, where)
        spec = cls(fields.take("name", as_text), fields.take("dtype", _dtype), fields.take("shape", as_integers))
        fields.end()
        return spec


@dataclass(frozen=True)
class ParamSpec(TensorSpec):
    """A parameter in its place.

    Args:
        offset: bytes from the start of the data section of ``params.safetensors``, a multiple of ``ALIGNMENT``.
    """

    offset: int

    def to_json(self) -> dict[str, Any]:
        return {**TensorSpec.to_json(self), "offset": self.offset}

    @classmethod
    def from_json(cls, value: object, where: str) -> ParamSpec:
        fields = Fields(value, where)
        spec = cls(
            fields.take("name", as_text),
            fields.take("dtype", _dtype),
            fields.take("shape", as_integers),
            fields.take("offset", as_integer),
        )
        fields.end()
        return spec


@dataclass(frozen=True)
class ResultSpec(TensorSpec):
    """A tensor that a step leaves behind, and where to read it right after that step.

    Args:
        shape: logical extents.
        space: one of ``SPACES``.
        offset: bytes from the start of the space.
        index: which input or output; 0 in the other spaces.
        physical: how it lies in memory; ``None`` is row-major.
    """

    space: str
    offset: int = 0
    index: int = 0
    physical: Physical | None = None

    @property
    def nbytes(self) -> int:
        """Size in memory in bytes, padding of the layout included."""
        shape = self.physical.shape if self.physical else self.shape
        return prod(shape) * ELEMENTS[self.dtype].itemsize

    def to_json(self) -> dict[str, Any]:
        return {
            **TensorSpec.to_json(self),
            "space": self.space,
            "offset": self.offset,
            "index": self.index,
            "physical": self.physical and self.physical.to_json(),
        }

    @classmethod
    def from_json(cls, value: object, where: str) -> ResultSpec:
        fields = Fields(value, where)
        spec = cls(
            fields.take("name", as_text),
            fields.take("dtype", _dtype),
            fields.take("shape", as_integers),
            fields.take("space", as_text),
            fields.take("offset", as_integer),
            fields.take("index", as_integer),
            fields.maybe("physical", Physical.from_json),
        )
        fields.end()
        return spec


@dataclass(frozen=True)
class ConstantSpec(TensorSpec):
    """An input of the original model that was given a value, and so is none of the module's.

    Args:
        data: the value's bytes, row-major, in hexadecimal; empty where they were too many to be kept.
    """

    data: str = ""

    @property
    def array(self) -> np.ndarray | None:
        """The value, if it was kept."""
        if len(self.data) != 2 * self.nbytes:
            return None
        return np.frombuffer(bytes.fromhex(self.data), numpy_dtype(self.dtype)).reshape(self.shape)

    def to_json(self) -> dict[str, Any]:
        return {**TensorSpec.to_json(self), "data": self.data}

    @classmethod
    def from_json(cls, value: object, where: str) -> ConstantSpec:
        """From JSON.

        Raises:
            PackageError: a field is missing, unknown or wrong, or the value has another size than its type.
        """
        fields = Fields(value, where)
        spec = cls(
            fields.take("name", as_text),
            fields.take("dtype", _dtype),
            fields.take("shape", as_integers),
            fields.take("data", _hexadecimal),
        )
        fields.end()
        if spec.data and len(spec.data) != 2 * spec.nbytes:
            raise wrong(f"{where}.data", f"{spec.nbytes} bytes in hexadecimal", spec.data)
        return spec

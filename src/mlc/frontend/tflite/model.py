"""A TFLite file as plain records, with everything in it that refers to something else checked."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from math import prod
from typing import Any

import numpy as np

from mlc.errors import ImportModelError
from mlc.frontend.common.importing import read_file
from mlc.frontend.limits import Limits
from mlc.frontend.sniff import HEAD_BYTES, describe
from mlc.frontend.tflite.flatbuffer import FlatbufferReader, Table
from mlc.frontend.tflite.schema import enumeration
from mlc.frontend.tflite.types import stored_bytes

IDENTIFIER = b"TFL3"
SCHEMA_VERSION = 3


@dataclass(frozen=True)
class Quantization:
    """How integers stand for numbers: ``(q - zero) * scale``.

    Args:
        scale: one, or one for each position of ``axis``; positive and finite.
        zero: of the same length.
        axis: of the tensor.
    """

    scale: np.ndarray
    zero: np.ndarray
    axis: int = 0

    @property
    def per_channel(self) -> bool:
        return self.scale.size > 1


@dataclass(frozen=True)
class TensorDef:
    """A tensor as the file declares it.

    Args:
        index: in its subgraph.
        name: not always unique, and never empty.
        type: number of the element type.
        shape: extents; where they may vary, those the file was made with.
        signature: the same with -1 where they may vary; empty when none does.
        data: stored values, as bytes; empty when there are none.
        quantization: ``None`` when its elements stand for themselves.
        variable: whether it keeps its value between runs.
        sparsity: how a sparse tensor's values are stored.
    """

    index: int
    name: str
    type: int
    shape: tuple[int, ...]
    signature: tuple[int, ...]
    data: np.ndarray
    quantization: Quantization | None
    variable: bool
    sparsity: Table | None

    @property
    def where(self) -> str:
        """How messages call it."""
        return f"tensor {self.index} ({self.name!r})"

    @property
    def stored(self) -> bool:
        return self.data.size > 0


@dataclass(frozen=True)
class OperatorDef:
    """An operator of a subgraph.

    Args:
        position: in the subgraph.
        name: ``CONV_2D``, or the name of a custom operator.
        custom: whether it is one.
        version: of the operator.
        inputs: indices of tensors, -1 for those left out.
        outputs: indices of tensors.
        options: its attributes; of a custom operator ``raw``, their bytes.
        intermediates: indices of tensors that say how numbers within the operator are scaled.
    """

    position: int
    name: str
    custom: bool
    version: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Any]
    intermediates: tuple[int, ...] = ()


@dataclass(frozen=True)
class SubgraphDef:
    """A graph of the file: operators in the order they run."""

    name: str
    tensors: tuple[TensorDef, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: tuple[OperatorDef, ...]


@dataclass(frozen=True)
class ModelDef:
    """A checked file.

    Args:
        version: of the schema.
        description: free text.
        subgraphs: the first is the model, others are bodies of control flow.
        sha256: of the file.
        codes: names of the operators in use.
    """

    version: int
    description: str
    subgraphs: tuple[SubgraphDef, ...]
    sha256: str
    codes: tuple[str, ...] = field(default=())


def looks_like_tflite(head: bytes) -> bool:
    """Whether a file with these first bytes is a TFLite model."""
    return head[4:8] == IDENTIFIER


def read_model(source: str | os.PathLike[str] | bytes, limits: Limits) -> ModelDef:
    """Read and check a model.

    Raises:
        UsageError: the file cannot be opened.
        ImportModelError: it is no TFLite model, damaged, or beyond the limits.
    """
    if isinstance(source, bytes):
        limits.check("file_bytes", len(source), "the model")
        data = source
    else:
        data = read_file(source, limits)
    if not looks_like_tflite(data[:HEAD_BYTES]):
        looks = describe(data[:HEAD_BYTES])
        raise ImportModelError("not a TFLite model" + (f": looks like {looks}" if looks else ""))
    root = FlatbufferReader(data, limits).root("Model")
    if root["version"] != SCHEMA_VERSION:
        raise ImportModelError(f"schema version {root['version']}, {SCHEMA_VERSION} is needed")
    if not root["subgraphs"]:
        raise ImportModelError("the file has no graph")
    codes = [_code(code, k) for k, code in enumerate(root["operator_codes"])]
    buffers = [_buffer(b, data, k) for k, b in enumerate(root["buffers"])]
    subgraphs = tuple(_subgraph(g, k, codes, buffers, limits) for k, g in enumerate(root["subgraphs"]))
    limits.check("nodes", sum(len(g.operators) for g in subgraphs), "operators of the file")
    names = tuple(name for name, _, _ in codes)
    return ModelDef(root["version"], root["description"], subgraphs, sha256(data).hexdigest(), names)


def _code(table: Table, k: int) -> tuple[str, bool, int]:
    """Name of an operator, whether it is a custom one, and its version."""
    # numbers beyond 127 came later, and older readers look at the old field
    number = max(table["builtin_code"], table["deprecated_builtin_code"])
    names = enumeration("BuiltinOperator")
    if number not in names:
        raise ImportModelError(
            f"OperatorCode {k}: there is no operator {number}", hint="the file is damaged, or newer than this program"
        )
    custom = names[number] == "CUSTOM"
    return (table["custom_code"] or "without a name") if custom else names[number], custom, table["version"]


def _buffer(table: Table, data: bytes, k: int) -> np.ndarray:
    """The bytes of a buffer, in the flatbuffer or, in large models, behind it."""
    inside: np.ndarray = table["data"]
    offset, size = table["offset"], table["size"]
    if offset <= 1:  # 0 and 1 are said to be no places
        return inside
    if offset + size > len(data):
        raise ImportModelError(f"Buffer {k}: {size} bytes at {offset}, the file has {len(data)}")
    return np.frombuffer(data, np.uint8, size, offset)


def _subgraph(
    table: Table, k: int, codes: Sequence[tuple[str, bool, int]], buffers: Sequence[np.ndarray], limits: Limits
) -> SubgraphDef:
    tensors = tuple(_tensor(t, n, buffers, limits) for n, t in enumerate(table["tensors"]))
    count = len(tensors)
    where = f"SubGraph {k}"
    inputs, outputs = (_indices(table[name], count, f"{where}: {name}") for name in ("inputs", "outputs"))
    limits.check("arguments", len(inputs) + len(outputs), f"{where}: inputs and outputs")
    operators = tuple(_operator(o, n, codes, count) for n, o in enumerate(table["operators"]))
    return SubgraphDef(table["name"], tensors, inputs, outputs, operators)


def _indices(vector: np.ndarray, count: int, where: str, *, optional: bool = False) -> tuple[int, ...]:
    least = -1 if optional else 0
    for index in vector.tolist():
        if not least <= index < count:
            raise ImportModelError(f"{where}: there is no tensor {index}, the graph has {count}")
    return tuple(vector.tolist())


def _operator(table: Table, position: int, codes: Sequence[tuple[str, bool, int]], count: int) -> OperatorDef:
    where = f"Operator {position}"
    index = table["opcode_index"]
    if index >= len(codes):
        raise ImportModelError(f"{where}: there is no operator code {index}, the file has {len(codes)}")
    name, custom, version = codes[index]
    where = f"{where} ({name})"
    options = table["builtin_options"] or table["builtin_options2"] or {}
    return OperatorDef(
        position,
        name,
        custom,
        version,
        _indices(table["inputs"], count, f"{where}: inputs", optional=True),
        _indices(table["outputs"], count, f"{where}: outputs"),
        {"raw": table["custom_options"]} if custom else options,
        _indices(table["intermediates"], count, f"{where}: intermediates"),
    )


def _tensor(table: Table, index: int, buffers: Sequence[np.ndarray], limits: Limits) -> TensorDef:
    name = table["name"] or f"tensor_{index}"
    where = f"tensor {index} ({name!r})"
    shape, signature = tuple(table["shape"].tolist()), tuple(table["shape_signature"].tolist())
    limits.check("rank", max(len(shape), len(signature)), f"{where}: rank")
    if signature and len(signature) != len(shape):
        raise ImportModelError(f"{where}: shape {list(shape)} and signature {list(signature)} differ in rank")
    if min(shape, default=0) < 0:
        raise ImportModelError(f"{where}: negative extent in shape {list(shape)}")
    # an extent of 0 must not hide a large one beside it: index arithmetic is done with all of them
    limits.check("tensor_bytes", max(stored_bytes(table["type"], tuple(n or 1 for n in shape)), prod(shape)), where)
    if table["buffer"] >= len(buffers):
        raise ImportModelError(f"{where}: there is no buffer {table['buffer']}, the file has {len(buffers)}")
    data = buffers[table["buffer"]]
    sparsity = table["sparsity"]
    needed = stored_bytes(table["type"], shape)
    if data.size and needed and sparsity is None and data.size != needed:
        raise ImportModelError(f"{where}: {list(shape)} takes {needed} bytes, {data.size} are stored")
    quantization = _quantization(table["quantization"], shape, where)
    return TensorDef(
        index, name, table["type"], shape, signature, data, quantization, bool(table["is_variable"]), sparsity
    )


def _quantization(table: Table | None, shape: tuple[int, ...], where: str) -> Quantization | None:
    if table is None or table["scale"].size == 0:
        return None
    scale, zero, axis = table["scale"], table["zero_point"], table["quantized_dimension"]
    if zero.size not in (0, 1, scale.size):
        raise ImportModelError(f"{where}: {scale.size} scales and {zero.size} zero points")
    if not (np.isfinite(scale).all() and (scale >= 0).all()):
        raise ImportModelError(f"{where}: a scale is {scale[~(np.isfinite(scale) & (scale >= 0))][0]}")
    if np.abs(zero).max(initial=0) >= 1 << 31:
        raise ImportModelError(f"{where}: a zero point takes more than 32 bits")
    if scale.size > 1 and not (0 <= axis < len(shape) and shape[axis] == scale.size):
        raise ImportModelError(f"{where}: {scale.size} scales along axis {axis} of {list(shape)}")
    zeros = np.broadcast_to(zero if zero.size else np.zeros(1, np.int64), scale.shape)
    return Quantization(scale.astype(np.float32), np.array(zeros, np.int64), axis if scale.size > 1 else 0)

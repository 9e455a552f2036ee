"""TFLite models built operator by operator, and what the LiteRT interpreter makes of them.

Models are dictionaries of plain values, written by the ``tflite`` package's builder functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
import pytest

from mlc.frontend.tflite.importer import import_tflite
from mlc.ir.graph import Graph, verify
from mlc.ir.interp import run_graph

tflite = pytest.importorskip("tflite", reason="the schema of TFLite models")

Array = np.ndarray
_TYPES = {
    "float32": "FLOAT32", "float16": "FLOAT16", "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
    "uint8": "UINT8", "bool": "BOOL",
}  # fmt: skip


@dataclass
class T:
    """A tensor.

    Args:
        shape: extents.
        dtype: numpy's name of its element type.
        data: stored values.
        scale: one, or one a channel; 0 for none.
        zero: one zero point, or several.
        axis: of several scales.
        name: of the tensor.
        signature: shape with -1 where it may vary.
        variable: whether it keeps its value.
        raw: bytes to store instead of ``data``.
        kind: element type by TFLite's name, where it is not numpy's.
        sparsity: traversal order, block map, and for each level its size, or its segments and indices.
    """

    shape: Sequence[int]
    dtype: str = "float32"
    data: Array | None = None
    scale: float | Sequence[float] = 0.0
    zero: int | Sequence[int] = 0
    axis: int = 0
    name: str | None = None
    signature: Sequence[int] | None = None
    variable: bool = False
    raw: bytes | None = None
    kind: str | None = None
    sparsity: tuple[Sequence[int], Sequence[int], Sequence[Any]] | None = None


@dataclass
class Op:
    """An operator: its name, tensors by index (-1 for none), and options as ``{"StrideW": 1}``."""

    name: str
    inputs: Sequence[int]
    outputs: Sequence[int]
    options: Mapping[str, Any] = field(default_factory=dict)
    table: str | None = None
    version: int = 1
    intermediates: Sequence[int] = ()


def const(array: Any, dtype: Any = None, **facts: Any) -> T:
    """A stored tensor."""
    a = np.asarray(array, dtype)
    return T(a.shape, a.dtype.name, a, **facts)


def write(
    tensors: Sequence[T],
    operators: Sequence[Op],
    inputs: Sequence[int],
    outputs: Sequence[int],
    *,
    custom: Sequence[str] = (),
    more: Sequence[tuple[Sequence[T], Sequence[Op]]] = (),
) -> bytes:
    """A model of one graph, and maybe ``more`` without inputs; operators in ``custom`` are custom ones."""
    b = flatbuffers.Builder(1024)
    buffers = [_buffer(b, None)]
    parts = [(tensors, operators, inputs, outputs, "main"), *((t, o, (), (), "more") for t, o in more)]
    names = list(dict.fromkeys((o.name, o.version) for _, those, *_ in parts for o in those))
    codes = [_code(b, name, name in custom, version) for name, version in names]
    graphs = []
    for own_tensors, own_operators, own_inputs, own_outputs, title in parts:
        made = []
        for k, t in enumerate(own_tensors):
            place = 0
            raw = t.raw if t.raw is not None else None if t.data is None else t.data.tobytes()
            if raw is not None:
                place = len(buffers)
                buffers.append(_buffer(b, raw))
            made.append(_tensor(b, t, t.name or f"t{k}", place))
        ops = [_operator(b, o, names.index((o.name, o.version)), o.name in custom) for o in own_operators]
        vectors = {
            "Tensors": _offsets(b, tflite.SubGraphStartTensorsVector, made),
            "Inputs": _ints(b, tflite.SubGraphStartInputsVector, own_inputs),
            "Outputs": _ints(b, tflite.SubGraphStartOutputsVector, own_outputs),
            "Operators": _offsets(b, tflite.SubGraphStartOperatorsVector, ops),
            "Name": b.CreateString(title),
        }
        graphs.append(_table(b, "SubGraph", vectors))
    fields = {
        "OperatorCodes": _offsets(b, tflite.ModelStartOperatorCodesVector, codes),
        "Subgraphs": _offsets(b, tflite.ModelStartSubgraphsVector, graphs),
        "Buffers": _offsets(b, tflite.ModelStartBuffersVector, buffers),
        "Description": b.CreateString("a test"),
    }
    b.Finish(_table(b, "Model", {"Version": 3, **fields}), file_identifier=b"TFL3")
    return bytes(b.Output())


def _table(b: Any, name: str, fields: Mapping[str, Any]) -> int:
    getattr(tflite, f"{name}Start")(b)
    for key, value in fields.items():
        getattr(tflite, f"{name}Add{key}")(b, value)
    end: int = getattr(tflite, f"{name}End")(b)
    return end


def _offsets(b: Any, start: Any, items: Sequence[int]) -> int:
    start(b, len(items))
    for item in reversed(items):
        b.PrependUOffsetTRelative(item)
    end: int = b.EndVector()
    return end


def _ints(b: Any, start: Any, items: Sequence[int]) -> int:
    start(b, len(items))
    for item in reversed(items):
        b.PrependInt32(item)
    end: int = b.EndVector()
    return end


def _buffer(b: Any, raw: bytes | None) -> int:
    return _table(b, "Buffer", {} if raw is None else {"Data": b.CreateByteVector(raw)})


def _tensor(b: Any, t: T, name: str, buffer: int) -> int:
    fields = {
        "Name": b.CreateString(name),
        "Shape": _ints(b, tflite.TensorStartShapeVector, t.shape),
        "Type": getattr(tflite.TensorType, t.kind or _TYPES[t.dtype]),
        "Buffer": buffer,
    }
    if t.signature is not None:
        fields["ShapeSignature"] = _ints(b, tflite.TensorStartShapeSignatureVector, t.signature)
    if np.any(t.scale):
        scales = np.atleast_1d(np.asarray(t.scale, np.float32))
        zeros = np.broadcast_to(np.asarray(t.zero, np.int64), scales.shape)
        parts = {
            "Scale": b.CreateNumpyVector(scales),
            "ZeroPoint": b.CreateNumpyVector(np.array(zeros)),
            "QuantizedDimension": t.axis,
        }
        fields["Quantization"] = _table(b, "QuantizationParameters", parts)
    if t.sparsity is not None:
        fields["Sparsity"] = _sparsity(b, *t.sparsity)
    if t.variable:
        fields["IsVariable"] = True
    return _table(b, "Tensor", fields)


def _sparsity(b: Any, order: Sequence[int], blocked: Sequence[int], levels: Sequence[Any]) -> int:
    made = []
    for level in levels:
        fields: dict[str, Any] = {"DenseSize": level, "Format": 0}
        if not isinstance(level, int):
            fields = {"Format": 1}
            for key, values in zip(("ArraySegments", "ArrayIndices"), level, strict=True):
                vector = {"Values": _ints(b, tflite.Int32VectorStartValuesVector, values)}
                fields |= {key: _table(b, "Int32Vector", vector), f"{key}Type": tflite.SparseIndexVector.Int32Vector}
        made.append(_table(b, "DimensionMetadata", fields))
    parts = {
        "TraversalOrder": _ints(b, tflite.SparsityParametersStartTraversalOrderVector, order),
        "BlockMap": _ints(b, tflite.SparsityParametersStartBlockMapVector, blocked),
        "DimMetadata": _offsets(b, tflite.SparsityParametersStartDimMetadataVector, made),
    }
    return _table(b, "SparsityParameters", parts)


def _code(b: Any, name: str, custom: bool, version: int) -> int:
    fields: dict[str, Any] = {"CustomCode": b.CreateString(name)} if custom else {}
    number = tflite.BuiltinOperator.CUSTOM if custom else getattr(tflite.BuiltinOperator, name)
    fields |= {"BuiltinCode": number, "DeprecatedBuiltinCode": min(number, 127), "Version": version}
    return _table(b, "OperatorCode", fields)


def _operator(b: Any, o: Op, code: int, custom: bool) -> int:
    fields = {
        "OpcodeIndex": code,
        "Inputs": _ints(b, tflite.OperatorStartInputsVector, o.inputs),
        "Outputs": _ints(b, tflite.OperatorStartOutputsVector, o.outputs),
    }
    if o.intermediates:
        fields["Intermediates"] = _ints(b, tflite.OperatorStartIntermediatesVector, o.intermediates)
    if o.table is not None:
        options = {
            key: _ints(b, getattr(tflite, f"{o.table}Start{key}Vector"), value)
            if isinstance(value, (list, tuple)) else b.CreateString(value) if isinstance(value, str) else value
            for key, value in o.options.items()
        }  # fmt: skip
        fields["BuiltinOptions"] = _table(b, o.table, options)
        fields["BuiltinOptionsType"] = getattr(tflite.BuiltinOptions, o.table)
    elif custom:
        fields["CustomOptions"] = b.CreateByteVector(bytes(o.options.get("raw", b"")))
    return _table(b, "Operator", fields)


# -- models of one operator ---------------------------------------------------------------------------------------
def one(
    name: str,
    operands: Sequence[T | Array | None],
    results: Sequence[T],
    table: str | None = None,
    *,
    version: int = 1,
    custom: bool = False,
    intermediates: Sequence[T] = (),
    **options: Any,
) -> tuple[bytes, dict[str, Array]]:
    """A model of one operator, and what to feed it: operands that are arrays, and tensors that are given data to feed.

    An operand of class ``T`` with data is stored; a pair ``(T, array)`` is an input of that type.
    """
    tensors: list[T] = []
    places, inputs, feeds = [], [], {}
    for operand in operands:
        if operand is None:
            places.append(-1)
            continue
        places.append(len(tensors))
        if isinstance(operand, tuple):
            tensor, array = operand
        elif isinstance(operand, T):
            tensor, array = operand, None
        else:
            array = np.asarray(operand)
            tensor = T(array.shape, array.dtype.name)
        if array is not None:
            feeds[f"t{len(tensors)}"] = array
            inputs.append(len(tensors))
        tensors.append(tensor)
    outs = list(range(len(tensors), len(tensors) + len(results)))
    within = list(range(len(tensors) + len(results), len(tensors) + len(results) + len(intermediates)))
    tensors += [*results, *intermediates]
    operator = Op(name, places, outs, options, table, version, within)
    model = write(tensors, [operator], inputs, outs, custom=[name] if custom else [])
    return model, feeds


def imported(model: bytes, **options: Any) -> Graph:
    """The checked graph of a model."""
    graph = import_tflite(model, **options).graph
    verify(graph)
    return graph


def ours(model: bytes, feeds: Mapping[str, Array]) -> list[Array]:
    """Outputs: imported, then interpreted."""
    return list(run_graph(imported(model), dict(feeds)).values())


def litert(model: bytes, feeds: Mapping[str, Array], *, reference: bool = True) -> list[Array]:
    """Outputs of LiteRT: of its reference kernels, or of the ones that it runs by default where there is none."""
    interpreter = pytest.importorskip("ai_edge_litert.interpreter", reason="LiteRT, the reference")
    kinds = interpreter.OpResolverType
    kind = kinds.BUILTIN_REF if reference else kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    try:
        made = interpreter.Interpreter(model_content=model, experimental_op_resolver_type=kind)
    except ValueError as error:
        if reference and "Didn't find op" in str(error):
            return litert(model, feeds, reference=False)
        raise
    made.allocate_tensors()
    for detail in made.get_input_details():
        made.set_tensor(detail["index"], feeds[detail["name"]])
    made.invoke()
    return [np.array(made.get_tensor(d["index"])) for d in made.get_output_details()]


def same(
    model: tuple[bytes, Mapping[str, Array]], *, steps: int = 0, rtol: float = 5e-6, reference: bool = True
) -> None:
    """Check that we and LiteRT agree: integers within ``steps``, floats within ``rtol`` of the largest magnitude."""
    got, want = ours(*model), litert(*model, reference=reference)
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        if a.dtype.kind == "f":
            np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * float(np.abs(b[np.isfinite(b)]).max(initial=1e-9)))
        elif a.dtype.kind == "b":
            np.testing.assert_array_equal(a, b)
        else:
            gap = np.abs(a.astype(np.int64) - b.astype(np.int64))
            assert gap.max(initial=0) <= steps, f"{(gap > steps).sum()} of {gap.size} differ, by {gap.max()} at most"

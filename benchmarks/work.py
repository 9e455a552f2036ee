"""How much a model computes and must move at least, counted from its ONNX graph; engines have no say in it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import ModelProto, NodeProto, TypeProto, helper

Shapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Work:
    """Operations, a multiply-add counted as two, and bytes of inputs, weights and outputs, each once.

    Args:
        bytes: of all.
        written: those of outputs.
    """

    flops: float
    bytes: float
    written: float


def count_work(model: ModelProto) -> Work:
    """Counts the multiply-adds of convolutions, matrix products and recurrent layers; the rest is next to nothing."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    values = [*graph.input, *graph.value_info, *graph.output]
    shapes = {value.name: _shape(value.type) for value in values}
    shapes |= {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    weights = {tensor.name for tensor in graph.initializer}
    flops = sum(2.0 * _multiplications(node, shapes) for node in graph.node)
    inputs, written = (
        sum(math.prod(shapes[v.name]) * _size(v.type.tensor_type.elem_type) for v in values if v.name not in weights)
        for values in (graph.input, graph.output)
    )
    stored = sum(math.prod(tensor.dims) * _size(tensor.data_type) for tensor in graph.initializer)
    return Work(flops, float(inputs + stored + written), float(written))


def _multiplications(node: NodeProto, shapes: Shapes) -> int:
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type == "Conv":
        weight = shapes[node.input[1]]
        return math.prod(shapes[node.output[0]]) * math.prod(weight[1:])
    if node.op_type == "ConvTranspose":
        weight = shapes[node.input[1]]
        return math.prod(shapes[node.input[0]]) * math.prod(weight[1:])
    if node.op_type == "MatMul":
        return math.prod(shapes[node.output[0]]) * shapes[node.input[0]][-1]
    if node.op_type == "Gemm":
        inner = shapes[node.input[0]][0 if attributes.get("transA", 0) else 1]
        return math.prod(shapes[node.output[0]]) * inner
    if node.op_type in ("LSTM", "GRU", "RNN"):
        steps, batch = shapes[node.input[0]][:2]
        return steps * batch * (math.prod(shapes[node.input[1]]) + math.prod(shapes[node.input[2]]))
    return 0


def _shape(kind: TypeProto) -> tuple[int, ...]:
    return tuple(dim.dim_value for dim in kind.tensor_type.shape.dim)


def _size(element_type: int) -> int:
    return int(helper.tensor_dtype_to_np_dtype(element_type).itemsize)

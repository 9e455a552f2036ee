"""One operator at a time: through the reference interpreter, and through onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from mlc.ir import te
from mlc.ir.graph import Builder, Graph, express, verify
from mlc.ir.interp import run_graph
from mlc.ir.types import TensorType, dtype_of
from mlc.ops import get


@dataclass(frozen=True)
class Evaluation:
    """An operator applied to arrays, and what the interpreter says."""

    op: str
    arrays: tuple[np.ndarray, ...]
    attrs: Mapping[str, Any]
    results: tuple[np.ndarray, ...]


watchers: list[Callable[[Evaluation], None]] = []  # are told of every evaluation


def one_node(op: str, *types: TensorType, **attrs: Any) -> Graph:
    """A graph of a single operator."""
    builder = Builder()
    values = [builder.input(f"x{k}", t) for k, t in enumerate(types)]
    return builder.finish(builder.add(get(op), values, attrs))


def evaluate(op: str, *arrays: np.ndarray, **attrs: Any) -> Any:
    """The operator's output (a list where there are several) by interpreting its checked expression or routine."""
    graph = one_node(op, *[TensorType(a.shape, dtype_of(a.dtype)) for a in arrays], **attrs)
    verify(graph)
    if graph.nodes[0].op.express is not None:
        te.verify(expression(graph))
    outs = list(run_graph(graph, {f"x{k}": a for k, a in enumerate(arrays)}).values())
    for out, value in zip(outs, graph.outputs, strict=True):
        assert out.shape == value.type.shape
        assert out.dtype == value.type.dtype.numpy
    for tell in watchers:
        tell(Evaluation(op, tuple(map(np.asarray, arrays)), attrs, tuple(outs)))
    return outs[0] if len(outs) == 1 else outs


def expression(graph: Graph) -> list[te.Tensor]:
    """Output tensors of the graph's only node."""
    (node,) = graph.nodes
    return list(express(node, [te.placeholder(v.type.shape, v.type.dtype, v.name) for v in node.inputs]))


def stages(op: str, *types: TensorType, **attrs: Any) -> list[te.Compute]:
    """The computes of one operator, producers first."""
    return te.topological(expression(one_node(op, *types, **attrs)))


def onnxruntime_output(
    op_type: str, *arrays: np.ndarray, opset: int = 21, outputs: int = 1, domain: str = "", **attrs: Any
) -> Any:
    """What onnxruntime computes for one ONNX node."""
    names = [f"x{k}" for k in range(len(arrays))]
    outs = [f"y{k}" for k in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(op_type, names, outs, domain=domain, **attrs)],
        "one",
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
         for n, a in zip(names, arrays, strict=True)],
        [helper.make_empty_tensor_value_info(n) for n in outs],
    )  # fmt: skip
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(onnx.ModelProto.SerializeToString(model), options)
    results = session.run(None, dict(zip(names, arrays, strict=True)))
    return results[0] if outputs == 1 else results

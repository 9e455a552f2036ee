"""Models that are float16 in the file, made of those in float32."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def halved(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every float32 tensor in float16: inputs, constants, results and what ``Cast`` makes.

    What ``Resize`` is told of sizes stays float32, as the standard has it.
    """
    found = onnx.ModelProto()
    found.CopyFrom(model)
    graph = found.graph
    stored = {t.name: t for t in graph.initializer}
    apart: dict[str, onnx.TensorProto] = {}
    for node in graph.node:
        for k, name in enumerate(node.input[1:3] if node.op_type == "Resize" else (), 1):
            if name in stored:
                node.input[k] = f"{name}_in_full"
                apart[node.input[k]] = numpy_helper.from_array(numpy_helper.to_array(stored[name]), node.input[k])
    for t in graph.initializer:
        t.CopyFrom(_halved(t))
    graph.initializer.extend(apart.values())
    del graph.value_info[:]
    for port in (*graph.input, *graph.output):
        if port.type.tensor_type.elem_type == TensorProto.FLOAT:
            port.type.tensor_type.elem_type = TensorProto.FLOAT16
    for node in graph.node:
        for a in node.attribute:
            if a.type == onnx.AttributeProto.TENSOR:
                a.t.CopyFrom(_halved(a.t))
            elif node.op_type == "Cast" and a.name == "to" and a.i == TensorProto.FLOAT:
                a.i = TensorProto.FLOAT16
            elif node.op_type == "Constant" and a.name == "value_float":
                a.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(np.float16(a.f))))
    return found


def _halved(t: TensorProto) -> TensorProto:
    if t.data_type != TensorProto.FLOAT:
        return t
    return numpy_helper.from_array(numpy_helper.to_array(t).astype(np.float16), t.name)


def as_halves(feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Inputs of such a model."""
    return {name: a.astype(np.float16) if a.dtype == np.float32 else a for name, a in feeds.items()}

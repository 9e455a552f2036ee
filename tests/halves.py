"""Models that are float16 in the file, made of those in float32."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def halved(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every float32 tensor in float16: inputs, constants, results and what ``Cast`` makes."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    graph = found.graph
    for t in graph.initializer:
        t.CopyFrom(_halved(t))
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

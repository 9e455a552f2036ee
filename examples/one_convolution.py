"""One convolution with batch norm and ReLU, as an ONNX file: the model that ``docs/one-convolution.md`` follows.

``python examples/one_convolution.py FILE.onnx`` writes it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CHANNELS, SIZE, TAPS = 32, 14, 3


def model() -> onnx.ModelProto:
    """``relu(batch_norm(conv(x)))`` on ``x: f32[1,32,14,14]``, 32 filters of 3x3, the border padded with zeros."""
    random = np.random.default_rng(0)
    weights = random.standard_normal((CHANNELS, CHANNELS, TAPS, TAPS)).astype(np.float32)
    stored = {"conv.weight": weights * np.float32(1 / np.sqrt(CHANNELS * TAPS * TAPS))}
    for name, low, high in (("scale", 0.5, 1.5), ("bias", -0.5, 0.5), ("mean", -0.1, 0.1), ("var", 0.5, 1.5)):
        stored[f"bn.{name}"] = random.uniform(low, high, CHANNELS).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "conv.weight"], ["c"], "conv", kernel_shape=[TAPS] * 2, pads=[1] * 4),
        helper.make_node("BatchNormalization", ["c", "bn.scale", "bn.bias", "bn.mean", "bn.var"], ["b"], "bn"),
        helper.make_node("Relu", ["b"], ["y"], "relu"),
    ]
    shape = [1, CHANNELS, SIZE, SIZE]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
    constants = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    graph = helper.make_graph(nodes, "one_convolution", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def main() -> None:
    """Write the model to the file named on the command line."""
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/one_convolution.py FILE.onnx")
    path = Path(sys.argv[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model(), path)


if __name__ == "__main__":
    main()

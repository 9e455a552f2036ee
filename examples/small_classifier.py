"""A small classifier of images and typical inputs, as files: what ``docs/quantising.md`` quantises.

``python examples/small_classifier.py FOLDER`` writes ``classifier.onnx`` and ``typical.npz``. Weights are drawn, not
trained, and one channel of ``wide`` is 100 times as loud as the others, as scales of batch norms sometimes leave it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CLASSES, CHANNELS, SIZE = 10, 32, 32
LOUD = 100.0  # what the loud channel is multiplied by, and its weights in the next layer divided


def model() -> onnx.ModelProto:
    """``input: f32[1,3,32,32]`` to ``logits: f32[1,10]`` by four convolutions, one of them residual, and a product."""
    random = np.random.default_rng(0)

    def drawn(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32) * np.float32(np.sqrt(2 / np.prod(shape[1:])))

    stored = {
        "stem.weight": drawn(CHANNELS, 3, 3, 3),
        "wide.weight": drawn(CHANNELS, CHANNELS, 3, 3),
        "next.weight": drawn(CHANNELS, CHANNELS, 3, 3),
        "last.weight": drawn(CHANNELS, CHANNELS, 1, 1),
        "head.weight": drawn(CLASSES, CHANNELS),
        "head.bias": np.linspace(-0.1, 0.1, CLASSES, dtype=np.float32),
    }
    stored["wide.weight"][3] *= np.float32(LOUD)
    stored["next.weight"][:, 3] /= np.float32(LOUD)
    nodes = []

    def conv(name: str, x: str, taps: int, stride: int = 1) -> str:
        window = {"kernel_shape": [taps] * 2, "pads": [taps // 2] * 4, "strides": [stride] * 2}
        nodes.append(helper.make_node("Conv", [x, f"{name}.weight"], [f"{name}.out"], name, **window))
        nodes.append(helper.make_node("Relu", [f"{name}.out"], [f"{name}.relu"], f"{name}.activation"))
        return f"{name}.relu"

    stem = conv("stem", "input", 3, stride=2)
    after = conv("next", conv("wide", stem, 3), 3)
    nodes.append(helper.make_node("Add", [after, stem], ["sum"], "residual"))
    pooled = conv("last", "sum", 1)
    nodes.append(helper.make_node("GlobalAveragePool", [pooled], ["pooled"], "pool"))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["flat"], "flatten"))
    nodes.append(helper.make_node("Gemm", ["flat", "head.weight", "head.bias"], ["logits"], "head", transB=1))
    x = helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, 3, SIZE, SIZE])
    y = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, CLASSES])
    constants = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    graph = helper.make_graph(nodes, "classifier", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def typical(count: int = 32) -> np.ndarray:
    """Images ``[count, 3, 32, 32]`` of soft patches and some noise, from 0 to 1."""
    random = np.random.default_rng(1)
    patches = random.uniform(0, 1, (count, 3, 4, 4)).repeat(SIZE // 4, 2).repeat(SIZE // 4, 3)
    return np.clip(patches + random.normal(0, 0.05, patches.shape), 0, 1).astype(np.float32)


def main() -> None:
    """Write both files to the folder named on the command line."""
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/small_classifier.py FOLDER")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model(), folder / "classifier.onnx")
    np.savez(folder / "typical.npz", input=typical())


if __name__ == "__main__":
    main()

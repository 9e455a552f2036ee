"""Other engines on one operator of ALT's figure 9: its graph as an ONNX model, and the times of a call.

Results and constants lie as an engine likes between its own kernels, inputs and outputs row-major. A call through an
engine's Python interface takes some microseconds by itself, which are in its time. TVM computes operators alone: it is
not tuned, and takes seconds for a call of the larger networks.
"""

from __future__ import annotations

import importlib
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from benchmarks.peers import PEERS, Session, aligned
from mlc.ir.graph import Graph, Node, Value
from mlc.tuning.measure.timing import Rule, Sample, take_in_turns

NAMES = ("onnxruntime", "openvino")  # of networks
OF_OPERATORS = (*NAMES, "tvm")
_OPSET = 17
_KINDS = {"conv": "Conv", "conv_transpose": "ConvTranspose", "matmul": "MatMul", "relu": "Relu"}


def model_of(graph: Graph) -> onnx.ModelProto:
    """A graph of convolutions, transposed ones, products and activations, all of f32, as an ONNX model."""
    nodes = [
        helper.make_node(_KINDS[n.op.name], [v.name for v in n.inputs], [v.name for v in n.outputs], **_attributes(n))
        for n in graph.nodes
    ]

    def ports(values: Sequence[Value]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(v.name, onnx.TensorProto.FLOAT, v.type.shape) for v in values]

    constants = [numpy_helper.from_array(array, v.name) for v, array in graph.constants.items()]
    made = helper.make_graph(nodes, graph.name, ports(graph.inputs), ports(graph.outputs), constants)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)


def _attributes(node: Node) -> dict[str, Any]:
    if not node.op.name.startswith("conv"):
        return {}
    names = {"strides": "strides", "pads": "pads", "dilations": "dilations", "groups": "group"}
    return {theirs: node.attrs[ours] for ours, theirs in names.items()}


def seconds(graph: Graph, folder: Path) -> dict[str, float]:
    """Seconds of a call by each engine, on one thread, in turns."""
    path = folder / "peer.onnx"
    path.write_bytes(model_of(graph).SerializeToString())
    rng = np.random.default_rng(0)
    feeds = {v.name: rng.standard_normal(v.type.shape).astype(np.float32) for v in graph.inputs}
    try:
        return seconds_of_model(path, feeds, OF_OPERATORS)
    finally:
        path.unlink()


def seconds_of_model(
    path: Path, feeds: Mapping[str, np.ndarray], names: Sequence[str] = NAMES
) -> dict[str, float]:  # fmt: skip
    """Seconds of a call of an ONNX model by each engine, on one thread, in turns."""
    inputs = {name: aligned(x) for name, x in feeds.items()}
    with tempfile.TemporaryDirectory() as work:
        sessions = [_session(name, path, Path(work), inputs) for name in names]
        timings = take_in_turns([_sample(s) for s in sessions], Rule())
    return {name: timing.seconds for name, timing in zip(names, timings, strict=True)}


def _session(name: str, path: Path, work: Path, inputs: Mapping[str, np.ndarray]) -> Session:
    engine = importlib.import_module(f"benchmarks.peers.{PEERS[name].module}")
    file = engine.compile(path, work, {}) if PEERS[name].ahead else path
    session: Session = engine.load(file, 1, inputs, {})
    return session


def _sample(session: Session) -> Sample:
    def sample(calls: int) -> int:
        begun = time.perf_counter_ns()
        for _ in range(calls):
            session.run()
        return time.perf_counter_ns() - begun

    return sample

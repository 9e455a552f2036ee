"""ONNX Runtime as an oracle: every node by itself, and exact on every processor."""

from __future__ import annotations

import onnx
import onnxruntime

_NO_PRODUCTS = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"}


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """A session on one thread, without optimisations, but for those that make products of bytes exact.

    On processors without VNNI onnxruntime adds up pairs of products in 16 bits, which saturates, unless it may make
    constant weights unsigned beforehand; that is one of its optimisations.
    """
    level = onnxruntime.GraphOptimizationLevel
    if _multiplies_bytes(model):
        try:
            return _session(model, level.ORT_ENABLE_EXTENDED)
        except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:
            pass  # with signed data there are only signed weights; those it adds up exactly
    return _session(model, level.ORT_DISABLE_ALL)


def _session(model: onnx.ModelProto, level: onnxruntime.GraphOptimizationLevel) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.x64quantprecision", "1")
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.graph_optimization_level = level
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _multiplies_bytes(model: onnx.ModelProto) -> bool:
    kinds = {node.op_type for node in model.graph.node} - _NO_PRODUCTS
    return any(kind.startswith("Q") or "Integer" in kind or "Quantize" in kind for kind in kinds)

"""Models of a single ONNX node: imported and interpreted, and run by onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from mlc.frontend.onnx.importer import import_onnx
from mlc.ir.graph import Graph, verify
from mlc.ir.interp import run_graph
from tests import ort

Operand = np.ndarray | None


def one_node_model(
    op_type: str,
    operands: Sequence[Operand],
    *,
    opset: int = 21,
    domain: str = "",
    outputs: int | Sequence[str] = 1,
    constants: Sequence[int] = (),
    **attrs: Any,
) -> bytes:
    """A model of one node.

    Args:
        op_type: its operator.
        operands: examples of the inputs, ``None`` where one is left out.
        opset: of the standard domain.
        domain: of the operator.
        outputs: how many, or their names with ``""`` for those left out.
        constants: positions of operands that are stored in the model.
        attrs: attributes; those that are ``None`` are left out.
    """
    names = ["" if a is None else f"x{k}" for k, a in enumerate(operands)]
    outs = [f"y{k}" for k in range(outputs)] if isinstance(outputs, int) else list(outputs)
    given = {k: v for k, v in attrs.items() if v is not None}
    stored = {k: operands[k] for k in constants}
    graph = helper.make_graph(
        [helper.make_node(op_type, names, outs, name="node", domain=domain, **given)],
        "one",
        [
            helper.make_tensor_value_info(names[k], helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for k, a in enumerate(operands)
            if a is not None and k not in stored
        ],
        [helper.make_empty_tensor_value_info(n) for n in outs if n],
        [numpy_helper.from_array(a, names[k]) for k, a in stored.items() if a is not None],
    )
    domains = {"": opset, domain: opset, "com.microsoft": 1}
    imports = [helper.make_opsetid(name, version) for name, version in domains.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()


def imported(op_type: str, operands: Sequence[Operand], **options: Any) -> Graph:
    """The checked graph of a one-node model."""
    graph = import_onnx(one_node_model(op_type, operands, **options)).graph
    verify(graph)
    return graph


def operators_of(graph: Graph) -> list[str]:
    """Names of the core operators in order."""
    return [node.op.name for node in graph.nodes]


def _feeds(operands: Sequence[Operand], constants: Sequence[int]) -> dict[str, np.ndarray]:
    return {f"x{k}": a for k, a in enumerate(operands) if a is not None and k not in constants}


def ours(op_type: str, operands: Sequence[Operand], **options: Any) -> list[np.ndarray]:
    """Outputs of the node: imported, then interpreted."""
    graph = imported(op_type, operands, **options)
    return list(run_graph(graph, _feeds(operands, options.get("constants", ()))).values())


def output_of(op_type: str, operands: Sequence[Operand], **options: Any) -> np.ndarray:
    """The node's only output: imported, then interpreted."""
    (out,) = ours(op_type, operands, **options)
    return out


def theirs(op_type: str, operands: Sequence[Operand], **options: Any) -> list[np.ndarray]:
    """Outputs of the node by onnxruntime."""
    session = ort.session(onnx.load_model_from_string(one_node_model(op_type, operands, **options)))
    return session.run(None, _feeds(operands, options.get("constants", ())))


def compare(
    op_type: str, operands: Sequence[Operand], *, rtol: float = 1e-4, atol: float = 1e-5, **options: Any
) -> None:
    """Assert that both agree on every output."""
    got, expected = ours(op_type, operands, **options), theirs(op_type, operands, **options)
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def normal(shape: Sequence[int], seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    """Seeded standard normal numbers."""
    return np.random.default_rng(seed).standard_normal(tuple(shape)).astype(dtype)


def model_of(*nodes: onnx.NodeProto, inputs: dict[str, np.ndarray], outputs: Sequence[str], opset: int = 21) -> bytes:
    """A model of several nodes."""
    infos = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for k, a in inputs.items()
    ]
    graph = helper.make_graph(list(nodes), "some", infos, [helper.make_empty_tensor_value_info(n) for n in outputs])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10).SerializeToString()

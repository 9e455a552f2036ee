"""Models built for the tests of the importer, and imports that say what they refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mlc.errors import MlcError
from mlc.frontend.onnx.importer import import_onnx
from mlc.ir.graph import Graph, verify
from mlc.ir.interp import run_graph

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node = helper.make_node


def info(name: str, shape: Sequence[int | str | None] | None = None, dtype: int = FLOAT) -> onnx.ValueInfoProto:
    """A declaration of a tensor; no shape means no rank either."""
    return helper.make_tensor_value_info(name, dtype, shape)


def untyped(name: str) -> onnx.ValueInfoProto:
    """A declaration that says nothing."""
    return helper.make_empty_tensor_value_info(name)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto] = (),
    outputs: Sequence[str] = (),
    stored: Mapping[str, np.ndarray] | None = None,
) -> onnx.GraphProto:
    """A graph whose outputs have no declared type."""
    tensors = [numpy_helper.from_array(a, name) for name, a in (stored or {}).items()]
    return helper.make_graph(list(nodes), "test", list(inputs), [untyped(n) for n in outputs], tensors)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto] = (),
    outputs: Sequence[str] = (),
    stored: Mapping[str, np.ndarray] | None = None,
    *,
    opset: int = 17,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """A model, unchecked."""
    imports = [helper.make_opsetid("", opset)] + [helper.make_opsetid(d, v) for d, v in (domains or {}).items()]
    whole = graph(nodes, inputs, outputs, stored)
    return helper.make_model(whole, opset_imports=imports, functions=list(functions), ir_version=10)


def relu_model(*dims: int | str | None) -> onnx.ModelProto:
    """``y = Relu(x)``."""
    return model([node("Relu", ["x"], ["y"], name="act")], [info("x", dims)], ["y"])


def imported(proto: onnx.ModelProto, **options: Any) -> Graph:
    """The graph of a model, checked."""
    found = import_onnx(proto.SerializeToString(), **options).graph
    verify(found)
    return found


def outputs_of(proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray], **options: Any) -> dict[str, np.ndarray]:
    """What a model gives, interpreted."""
    return run_graph(imported(proto, **options), feeds)


def refused(source: onnx.ModelProto | bytes | Any, error: type[MlcError], match: str, **options: Any) -> MlcError:
    """Assert that an import is refused with a message; gives the error."""
    data = source.SerializeToString() if isinstance(source, onnx.ModelProto) else source
    with pytest.raises(error, match=match) as caught:
        import_onnx(data, **options)
    assert type(caught.value) is error or issubclass(type(caught.value), error)
    return caught.value


def operators_of(found: Graph) -> list[str]:
    """Names of the core operators in order."""
    return [n.op.name for n in found.nodes]

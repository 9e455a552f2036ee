"""What is in an ONNX model: operators, parameters, types, read off without converting anything."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from math import prod

import onnx

from mlc.errors import MlcError
from mlc.frontend.common.importing import naming
from mlc.frontend.limits import Limits
from mlc.frontend.onnx.reader import read_model
from mlc.frontend.onnx.tensors import element_type_name, stored_bytes
from mlc.frontend.onnx.validate import check_model, normal_domain
from mlc.frontend.survey import Survey, by_count
from mlc.ir.types import dtype_of


def survey_onnx(path: str | os.PathLike[str], limits: Limits) -> Survey:
    """Survey a file.

    Raises:
        ImportModelError: it is no ONNX model, is damaged, or is beyond a limit.
        UnsupportedError: its format is newer than what is known.
    """
    with naming(os.fspath(path)):
        model = read_model(path, limits).proto
        opsets = check_model(model, limits)
    stored = [*model.graph.initializer, *(sparse.values for sparse in model.graph.sparse_initializer)]
    names = {tensor.name for tensor in stored}
    counts: Counter[str] = Counter()
    for node in _nodes(model):
        domain = normal_domain(node.domain)
        counts[f"{domain}.{node.op_type}" if domain else node.op_type] += 1
    return Survey(
        format="onnx",
        name=model.graph.name,
        producer=f"{model.producer_name} {model.producer_version}".strip(),
        inputs=tuple((v.name, _type_text(v)) for v in model.graph.input if v.name not in names),
        outputs=tuple((v.name, _type_text(v)) for v in model.graph.output),
        operators=by_count(counts),
        parameters=sum(prod(tensor.dims) for tensor in stored),
        parameter_bytes=sum(_nbytes(tensor) for tensor in stored),
        versions={domain or "ai.onnx": version for domain, version in opsets.items()},
    )


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Every node, those of subgraphs and functions included, without recursion."""
    bodies = [model.graph.node, *(function.node for function in model.functions)]
    while bodies:
        for node in bodies.pop():
            yield node
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    bodies.append(attribute.g.node)
                bodies.extend(graph.node for graph in attribute.graphs)


def _type_text(info: onnx.ValueInfoProto) -> str:
    """A declared type, e.g. ``f32[batch,3,?]``; element types that mlc lacks keep ONNX's name."""
    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        return kind.removesuffix("_type") if kind else "?"
    tensor = info.type.tensor_type
    name = _short_name(tensor.elem_type)
    if not tensor.HasField("shape"):
        return f"{name} of unknown rank"
    dims = (str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim)
    return f"{name}[{','.join(dims)}]"


def _short_name(elem_type: int) -> str:
    long = {"float": "float32", "double": "float64"}.get(element_type_name(elem_type), element_type_name(elem_type))
    try:
        return dtype_of(long).name
    except MlcError:
        return long


def _nbytes(tensor: onnx.TensorProto) -> int:
    name = element_type_name(tensor.data_type)
    if name == "string":
        return sum(map(len, tensor.string_data))
    if name == "float4e2m1":  # two of them share a byte
        return -(-prod(tensor.dims) // 2)
    known = stored_bytes(tensor)
    if known:
        return known
    try:
        return prod(tensor.dims) * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    except KeyError:  # an element type that does not exist; the import says so
        return 0

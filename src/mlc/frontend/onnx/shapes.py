"""Types of a model's inputs, as ONNX declares them."""

from __future__ import annotations

import onnx

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.shapes import Declared, Dim
from mlc.frontend.onnx.tensors import element_type


def declared_type(info: onnx.ValueInfoProto) -> Declared:
    """What a model says about an input.

    Raises:
        UnsupportedError: it is no tensor, or of a type that ``mlc`` does not compute with.
        ImportModelError: it has no type, or a negative extent.
    """
    where = f"input {info.name!r}"
    kind = info.type.WhichOneof("value")
    if kind is None:
        raise ImportModelError(f"{where}: has no type")
    if kind != "tensor_type":
        raise UnsupportedError(f"{where}: is a {kind.removesuffix('_type')}, only tensors are supported")
    tensor = info.type.tensor_type
    dtype = element_type(tensor.elem_type, where)
    if not tensor.HasField("shape"):
        return Declared(info.name, dtype, None)
    dims: list[Dim] = []
    for d in tensor.shape.dim:
        kind = d.WhichOneof("value")
        dims.append(int(d.dim_value) if kind == "dim_value" else d.dim_param or None if kind == "dim_param" else None)
    return Declared(info.name, dtype, tuple(dims))

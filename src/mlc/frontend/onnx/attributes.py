"""``AttributeProto`` to Python values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto

from mlc.errors import ImportModelError
from mlc.frontend.limits import Limits
from mlc.frontend.onnx.external import ExternalData
from mlc.frontend.onnx.tensors import decode_sparse, decode_tensor

# type -> field; the old models that leave the type out have exactly one of these filled
_FIELDS: dict[int, str] = {
    AttributeProto.FLOAT: "f",
    AttributeProto.INT: "i",
    AttributeProto.STRING: "s",
    AttributeProto.TENSOR: "t",
    AttributeProto.GRAPH: "g",
    AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    AttributeProto.TYPE_PROTO: "tp",
    AttributeProto.FLOATS: "floats",
    AttributeProto.INTS: "ints",
    AttributeProto.STRINGS: "strings",
    AttributeProto.TENSORS: "tensors",
    AttributeProto.GRAPHS: "graphs",
    AttributeProto.SPARSE_TENSORS: "sparse_tensors",
    AttributeProto.TYPE_PROTOS: "type_protos",
}
_REPEATED = {"floats", "ints", "strings", "tensors", "graphs", "sparse_tensors", "type_protos"}


def attribute_type(attr: AttributeProto) -> int:
    """The type of an attribute, also where the model leaves it out; ``UNDEFINED`` when it cannot be told."""
    if attr.type != AttributeProto.UNDEFINED or attr.ref_attr_name:
        return attr.type
    filled = [t for t, f in _FIELDS.items() if (len(getattr(attr, f)) if f in _REPEATED else attr.HasField(f))]
    return filled[0] if len(filled) == 1 else AttributeProto.UNDEFINED


def resolve_references(node: onnx.NodeProto, given: Mapping[str, AttributeProto] | None) -> dict[str, AttributeProto]:
    """The attributes of a node by name, references to a function's attributes replaced by what the call gave.

    Nothing is copied: a node may hold megabytes, and its function be called thousands of times.

    Args:
        node: from the model, or from a function's body.
        given: attributes of the call, ``None`` outside a function.
    Raises:
        ImportModelError: a reference outside a function.
    """
    attributes: dict[str, AttributeProto] = {}
    for attr in node.attribute:
        if not attr.ref_attr_name:
            attributes[attr.name] = attr
        elif given is None:
            raise ImportModelError("an attribute refers to a function's, but the node is in no function")
        elif attr.ref_attr_name in given:
            # a reference to an optional attribute that the call left out leaves this one out as well
            attributes[attr.name] = given[attr.ref_attr_name]
    return attributes


class AttributeReader:
    """Decodes attributes.

    Tensors are decoded once, however often a function or a loop comes by them.

    Args:
        external: reader of data beside the model.
        limits: budgets.
        note: told of every tensor that is decoded.
    """

    def __init__(self, external: ExternalData, limits: Limits, note: Callable[[np.ndarray], None]) -> None:
        self.external = external
        self.limits = limits
        self.note = note
        # the message is kept beside its array: as long as it lives, its identity is its own
        self._decoded: dict[int, tuple[Any, np.ndarray]] = {}

    def read(self, attributes: Mapping[str, AttributeProto]) -> dict[str, Any]:
        """The values of a node's attributes (see :func:`resolve_references`).

        Raises:
            ImportModelError: an attribute is malformed.
            UnsupportedError: a tensor of an element type that ``mlc`` does not compute with.
        """
        return {name: self.value(attr, f"attribute {name!r}") for name, attr in attributes.items()}

    def value(self, attr: AttributeProto, where: str) -> Any:
        """The value of one attribute; repeated ones are tuples, tensors are arrays (sparse ones made dense).

        Raises:
            ImportModelError: it has no type, or its value is damaged.
        """
        kind = attribute_type(attr)
        field = _FIELDS.get(kind)
        if field is None:
            raise ImportModelError(f"{where}: has no type")
        raw = getattr(attr, field)
        if field not in _REPEATED:
            return self._one(field, raw, where)
        return tuple(self._one(field.removesuffix("s"), item, where) for item in raw)

    def _one(self, field: str, raw: Any, where: str) -> Any:
        match field:
            case "s" | "string":
                return raw.decode("utf-8", "backslashreplace")
            case "t" | "tensor" | "sparse_tensor":
                return self._tensor(raw, where)
        return raw

    def _tensor(self, raw: onnx.TensorProto | onnx.SparseTensorProto, where: str) -> np.ndarray:
        if id(raw) not in self._decoded:
            decode = decode_tensor if isinstance(raw, onnx.TensorProto) else decode_sparse
            array = decode(raw, where, self.external, self.limits)
            self._decoded[id(raw)] = raw, array
            self.note(array)
        return self._decoded[id(raw)][1]

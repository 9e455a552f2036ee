"""Nodes of a graph that is divided between a host and a device beside it.

* ``offload``: a *region*, one program of the device. Its body is a graph of groups, one an operation of the device;
  like a group's, its meaning is that of the body. Inputs are values in device memory, and constants.
* ``copy_to`` and ``copy_from``: one value from the host's memory to the device's, and back, byte for byte.
* ``pack`` and ``unpack``: the host's work at the border: the same elements, in the device's layout and back. They are
  operators like any other, and fuse with their neighbours.

Values that ``copy_to`` and ``offload`` make lie in device memory; all others are the host's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mlc.errors import VerifyError
from mlc.ir import te
from mlc.ir.graph import Attrs, FusionKind, Graph, Node, Operator, Value
from mlc.ir.types import TensorType
from mlc.rewrite.group import GROUPS


def _same(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
    if len(types) != 1:
        raise VerifyError(f"{len(types)} operands, 1 is needed")
    return [TensorType(types[0].shape, types[0].dtype)]


def _identity(inputs: Sequence[te.Tensor], attrs: Attrs) -> Sequence[te.Tensor]:
    (x,) = inputs
    return [te.compute(x.shape, lambda *i: x[i], "moved")]


PACK = Operator("pack", FusionKind.INJECTIVE, _same, _identity)
UNPACK = Operator("unpack", FusionKind.INJECTIVE, _same, _identity)
COPY_TO = Operator("copy_to", FusionKind.OPAQUE, _same, _identity, attrs={"device": ...})
COPY_FROM = Operator("copy_from", FusionKind.OPAQUE, _same, _identity, attrs={"device": ...})

_BODY = GROUPS[FusionKind.COMPLEX]
OFFLOAD = Operator(
    "offload", FusionKind.OPAQUE, _BODY.infer, _BODY.express, attrs={"body": ..., "device": ..., "name": ...}
)


def is_region(node: Node) -> bool:
    """Whether a node is a program of the device."""
    return node.op is OFFLOAD


def is_copy(node: Node) -> bool:
    """Whether a node copies between the memories of host and device."""
    return node.op is COPY_TO or node.op is COPY_FROM


def on_device(node: Node) -> bool:
    """Whether a node is a step of the device's driver, not of the host's code."""
    return is_region(node) or is_copy(node)


def in_device_memory(node: Node) -> bool:
    """Whether what a node makes lies in device memory."""
    return is_region(node) or node.op is COPY_TO


def region_graph(node: Node, constants: Mapping[Value, np.ndarray]) -> Graph:
    """The body of a region as a graph of its own, with the arrays of its constants.

    Args:
        node: the region.
        constants: those of the graph that it stands in.
    """
    body: Graph = node.attrs["body"]
    outer = list(zip(body.inputs, node.inputs, strict=True))
    known = {v: constants[o] for v, o in outer if o in constants}
    inputs = tuple(v for v, _ in outer if v not in known)
    return Graph(body.name, inputs, body.outputs, body.nodes, {**body.constants, **known}, body.output_names)


def activations(node: Node, constants: Mapping[Value, np.ndarray]) -> list[Value]:
    """The inputs of a region that are no constants: those that lie in device memory."""
    return [v for v in node.inputs if v not in constants]

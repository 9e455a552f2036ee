"""Which products of a float model are computed in integers, and why the others are not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum

import numpy as np

from mlc.errors import UsageError
from mlc.ir.graph import Graph, Node, Value
from mlc.ir.types import f32
from mlc.ops import get
from mlc.rewrite.quantization.ranges import Calibration, Method
from mlc.rewrite.recurrence import body_of_scan, graphs, is_scan

_FEW_CHANNELS = 8
_GREATEST = 127 * 255  # product of two bytes
_I32_MAX = 2**31 - 1
_FOLLOWS = ("relu", "clip")  # what belongs to the layer of the product before it


class Precision(StrEnum):
    """What products are computed in: bytes, or weights (``w``) and data (``a``) of so many bits."""

    INT8 = "int8"
    W1A2 = "w1a2"
    W2A2 = "w2a2"

    @property
    def few(self) -> bool:
        """Whether numbers have so few bits that every other operation stays in floating point."""
        return self is not Precision.INT8

    @property
    def weight_bits(self) -> int:
        return {Precision.INT8: 8, Precision.W1A2: 1, Precision.W2A2: 2}[self]

    @property
    def data_bits(self) -> int:
        return 2 if self.few else 8

    @property
    def steps(self) -> int:
        """Of data."""
        return (1 << self.data_bits) - 1


@dataclass(frozen=True)
class QuantizeOptions:
    """What to quantise, and how finely.

    Args:
        precision: of products; the others need scales that are free.
        shifts: scales are powers of two, as arithmetic wants them that has no other multiplication than its products'.
        per_channel: a scale for every output channel of the weights, not one for all; unless given, where scales are
            free.
        ends: also a first convolution, that reads fewer than 8 channels, and a last product of matrices, which cost
            accuracy and seldom much time; unless given, of 8 bits where scales are free. Networks of fewer bits keep
            them, as the literature does (Zhou et al., DoReFa-Net, arXiv:1606.06160).
        keep: names of the model's nodes that stay in floating point.
        calibration: how the ranges of tensors are chosen; unless given, by all numbers seen, or by least squares where
            scales are powers of two and so a step finer is twice as fine, and where there are few steps.
        reduced: weights use 7 bits, not 8, where scales are free: for processors that multiply bytes exactly only then.
    """

    precision: Precision = Precision.INT8
    shifts: bool = False
    per_channel: bool | None = None
    ends: bool | None = None
    keep: tuple[str, ...] = ()
    calibration: Calibration | None = None
    reduced: bool = False

    @property
    def method(self) -> Calibration:
        coarse = self.shifts or self.precision.few
        return self.calibration or Calibration(Method.MSE if coarse else Method.MINMAX)

    @property
    def by_channel(self) -> bool:
        return not self.shifts if self.per_channel is None else self.per_channel

    @property
    def with_ends(self) -> bool:
        return not (self.shifts or self.precision.few) if self.ends is None else self.ends


@dataclass(frozen=True, eq=False)
class Layer:
    """A product of the model, with the bias and the limits that follow it.

    Args:
        name: the model's for the product; followed by the tensor's, where one node of the model makes several.
        operator: the core operator.
        result: what the layer gives.
        reason: why it stays in floating point; empty for one in integers.
    """

    name: str
    operator: str
    result: Value
    reason: str = ""


def layers_of(graph: Graph, reasons: Mapping[Node, str]) -> tuple[Layer, ...]:
    """All products, those in recurrences included, in order.

    Args:
        graph: the float model.
        reasons: why products stay in floating point, for each.
    """
    taken: set[str] = set()
    found = []
    for g, node in _products(graph):
        y = node.outputs[0]
        name = node.sources[0] if node.sources else y.name
        name = f"{name}/{y.name}" if name in taken else name
        taken.add(name)
        found.append(Layer(name, node.op.name, _result(g, y), reasons[node]))
    return tuple(found)


def reasons_for_floats(graph: Graph, options: QuantizeOptions) -> dict[Node, str]:
    """For every product why it stays in floating point; empty for those in integers.

    Raises:
        UsageError: a node to keep does not exist.
    """
    _check_kept(graph, options.keep)
    ends = {} if options.with_ends else _ends(graph)
    outermost = set(graph.nodes)
    reasons = {}
    for g, node in _products(graph):
        reason = "kept on demand" if set(node.sources) & set(options.keep) else ends.get(node) or _unfit(g, node)
        if not reason and options.precision.few and node.op is get("conv") and node.attrs["groups"] > 1:
            reason = "its channels are in groups, which have no products of bits"
        if not reason and options.shifts and node not in outermost:
            reason = "it is part of a recurrence"
        reasons[node] = reason
    return reasons


def _products(graph: Graph) -> Iterator[tuple[Graph, Node]]:
    kinds = [get(name) for name in ("conv", "matmul", "conv_transpose")]
    for node in graph.nodes:
        if is_scan(node):
            yield from _products(body_of_scan(node))
        elif node.op in kinds:
            yield graph, node


def _result(graph: Graph, y: Value) -> Value:
    """What a product becomes by its bias and limits, as long as nobody else reads it."""
    readers, outputs = graph.consumers(), set(graph.outputs)
    while len(after := list(readers.get(y, ()))) == 1 and y not in outputs:
        node = after[0]
        biased = node.op is get("add") and any(v in graph.constants for v in node.inputs)
        if not (biased or node.op in [get(name) for name in _FOLLOWS]) or node.outputs[0].type.shape != y.type.shape:
            break
        y = node.outputs[0]
    return y


def _unfit(graph: Graph, node: Node) -> str:
    if node.op is get("conv_transpose"):
        return "a transposed convolution"
    x, w, y = node.inputs[0], node.inputs[1], node.outputs[0]
    if any(v.type.dtype is not f32 for v in (x, w, y)):
        return f"it is in {next(v.type.dtype for v in (x, w, y) if v.type.dtype is not f32)}"
    if w not in graph.constants:
        return "its weights are computed"
    if x in graph.constants:
        return "its data are constant"
    if not np.isfinite(graph.constants[w]).all():
        return "its weights are not all finite"
    if node.op is get("matmul") and w.type.rank != 2:
        return "its weights are a batch of matrices"
    channels = w.type.shape[0 if node.op is get("conv") or node.attrs["transpose_b"] else 1]
    return "its sums may exceed 32 bits" if w.type.size // max(channels, 1) * _GREATEST > _I32_MAX else ""


def _ends(graph: Graph) -> dict[Node, str]:
    """First and last products, with what they are; none where there is only one."""
    products = [n for n in graph.nodes if n.op in (get("conv"), get("matmul"))]
    if len(products) < 2:
        return {}
    found: dict[Node, str] = {}
    leads: set[Value] = set()  # values that some product depends on
    for node in reversed(graph.nodes):
        feeds = not leads.isdisjoint(node.outputs)
        if feeds or node in products:
            leads.update(node.inputs)
        if node.op is get("matmul") and not feeds:
            found[node] = "the last product"
        elif node.op is get("conv") and node.inputs[0].type.shape[1] < _FEW_CHANNELS:
            found[node] = f"a first convolution, of {node.inputs[0].type.shape[1]} channels"
    return found


def _check_kept(graph: Graph, keep: Collection[str]) -> None:
    known = list(dict.fromkeys(s for g, _ in graphs(graph) for n in g.nodes for s in n.sources))
    for name in keep:
        if name not in known:
            raise UsageError(
                f"there is no node {name!r} to keep in floating point", hint=_near(name, known) or _some(known)
            )


def _near(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, known, n=3)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else ""


def _some(known: Collection[str]) -> str:
    return "mlc inspect lists the nodes" if known else "the model's nodes have no names"

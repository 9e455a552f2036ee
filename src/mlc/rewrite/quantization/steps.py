"""Quantisation to 8-bit integers with scales and zero points of any value, as processors compute with them.

In: an optimised float graph, before fusion. Out: the same with ``quantize`` and ``dequantize`` around its products, the
form in which ONNX stores quantised models, so that the same pass (:mod:`mlc.rewrite.integers`) makes the same integer
arithmetic of both::

    y = relu(conv(x, w) + b)    →    x' = dequantize(quantize(x, s, z), s, z)
                                     y = relu(conv(x', dequantize(w8, sw)) + dequantize(b32, s * sw))

A tensor is *stored* in bytes where a product in integers reads it, and then also

* what a stored tensor was moved from (reshaped, cut, pooled by maxima), which has its scale;
* the operand of a residual addition beside the sums that it joins, where the total is stored;
* a feature map that several read, one of them no elementwise operator, on its way through such operators.

Of fewer bits (:class:`~mlc.rewrite.quantization.choice.Precision`), data are stored for products alone, and whatever
else reads them reads floats. Weights are odd multiples of a scale, -1 and 1 or -3, -1, 1 and 3: their planes are
bipolar (:class:`mlc.ops.bits.Weights`). Biases stay in floats: a step of the sums would be too coarse for them.

What reads feature maps (tensors that convolutions read) reads their bytes; what else is stored is stored for products
alone, and whatever works on floats, a layer norm or a residual addition in a transformer, reads floats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mlc.ir.graph import Builder, FusionKind, Graph, Node, Value
from mlc.ir.types import f32, i7, u2, u8
from mlc.ops import get
from mlc.rewrite.quantization.choice import Precision
from mlc.rewrite.quantization.exponents import WEIGHT_MAX
from mlc.rewrite.recurrence import body_of_scan, is_scan

_MOVES = ("reshape", "transpose", "slice", "max_pool", "channel_shuffle")  # exact, whatever is moved
_LIMITS = ("relu", "clip")
_I32_MAX = 2**31 - 1
_BIAS_MAX = 2**30  # in sums; the other half is for products
_ROUNDS = 20  # of fitting scales to numbers and numbers to scales


@dataclass(frozen=True)
class Steps:
    """How a tensor of floats is stored: ``(q - zero) * scale`` with ``q`` from 0 to 255, or as far as its bits go."""

    scale: float
    zero: int


class Plan:
    """Which values of a graph are stored in bytes; decided by its operators alone.

    Args:
        graph: the float graph; recurrences in it have plans of their own.
        reasons: why products stay in floating point, by node; empty for one in integers.
        products_only: whether nothing but products reads what is stored.

    Attributes:
        stored: values that get a scale.
        moved: values that have that of what they were moved from.
    """

    def __init__(self, graph: Graph, reasons: Mapping[Node, str], *, products_only: bool = False) -> None:
        self.graph = graph
        self.products = {n for n in graph.nodes if reasons.get(n) == ""}
        self.readers = graph.consumers()
        self.made_by = {v: n for n in graph.nodes for v in n.outputs}
        self.stored: dict[Value, None] = {}
        self.moved: dict[Value, None] = {}
        self._maps: set[Value] = set()  # feature maps
        self._joined: set[Node] = set()  # additions and other elementwise work on stored operands
        self._todo: list[tuple[Value, bool]] = []
        for node in graph.nodes:
            if node in self.products:
                self._store(node.inputs[0], node.op is get("conv") and not products_only)
        while self._todo:
            self._look(*self._todo.pop())

    def reads_bytes(self, node: Node, v: Value) -> bool:
        """Whether a node reads a stored or moved value in steps of its scale."""
        if v in self._maps or (node in self.products and v is node.inputs[0]) or node in self._joined:
            return True
        return any(y in self.moved for y in node.outputs)

    def _store(self, v: Value, maps: bool) -> None:
        if v in self.graph.constants or v.type.dtype is not f32:
            return
        known = v in self.stored or v in self.moved
        if known and (v in self._maps or not maps):
            return
        if maps:
            self._maps.add(v)
        made = self.made_by.get(v)
        if made is not None and made.op in [get(name) for name in _MOVES] and len(made.outputs) == 1:
            self.moved[v] = None
            self._store(made.inputs[0], maps)
        else:
            self.stored[v] = None
            self._todo.append((v, maps))

    def _look(self, v: Value, maps: bool) -> None:
        """What a stored value is made of may be worth storing, too."""
        node = self.made_by.get(v)
        if node is None or not maps:
            return
        while node.op in [get(name) for name in _LIMITS]:
            inner = self.made_by.get(node.inputs[0])
            if inner is None or not self._alone(node.inputs[0]):
                return
            node = inner
        if node.op is get("add") and not self.graph.constants.keys() & set(node.inputs):
            self._total(node)
        else:
            self._shared(node)

    def _total(self, node: Node) -> None:
        a, b = node.inputs
        if a is b or a.type != b.type:
            return
        terms = {v: self._terms(v) for v in (a, b)}
        if not any(terms.values()) and not any(v in self.stored or v in self.moved for v in (a, b)):
            return
        # the longer sums take in the other operand: reading it costs them the least
        main = max((a, b), key=terms.__getitem__)
        self._joined.add(node)
        for v in (a, b):
            if v is not main or not terms[v]:
                self._store(v, True)

    def _terms(self, v: Value) -> int:
        """Products that are summed up for an element of sums that nobody else reads; 0 of what is none."""
        while self._alone(v) and (node := self.made_by.get(v)) is not None:
            if node in self.products:
                w = node.inputs[1]
                return w.type.size // w.type.shape[0 if node.op is get("conv") or node.attrs["transpose_b"] else 1]
            if node.op is not get("add") or not self.graph.constants.keys() & set(node.inputs):
                return 0
            v = next((x for x in node.inputs if x not in self.graph.constants), v)
        return 0

    def _shared(self, node: Node) -> None:
        """Back through elementwise operators to maps that others read as well, by windows or in whole."""
        shape, seen, todo = node.outputs[0].type.shape, set[Node](), [node]
        while todo:
            n = todo.pop()
            if n in seen or n in self.products or not (n.op.elementwise and n.op.kind is FusionKind.INJECTIVE):
                continue
            seen.add(n)
            for v in n.inputs:
                made = self.made_by.get(v)
                if made is None or v.type.shape != shape:
                    continue
                if any(not r.op.elementwise for r in self.readers.get(v, ())):
                    self._store(v, True)
                else:
                    todo.append(made)

    def _alone(self, v: Value) -> bool:
        return len(self.readers.get(v, ())) == 1 and v not in self.graph.outputs


class Converter:
    """Builds the graph with ``quantize`` and ``dequantize``, and those of its recurrences.

    Args:
        plans: of the graph and of every body, by graph.
        steps: of every stored value.
        per_channel: whether each output channel of the weights has a scale.
        reduced: whether weights use 7 bits, where processors without an instruction for bytes are faster with these.
        precision: how many bits data and weights have.

    Attributes:
        values: what stands for a value of the float graph to those who read it.
    """

    def __init__(
        self,
        plans: Mapping[Graph, Plan],
        steps: Mapping[Value, Steps],
        per_channel: bool,
        reduced: bool = False,
        precision: Precision = Precision.INT8,
    ) -> None:
        self.plans = plans
        self.steps = steps
        self.per_channel = per_channel
        self.reduced = reduced
        self.precision = precision
        self.values: dict[Value, Value] = {}

    def convert(self, graph: Graph, *, body: bool = False) -> Graph:
        """A graph, or the body of a recurrence, after its own inputs and results of its own names and types."""
        return _Walk(self, graph, self.reduced and not body).graph


class _Walk:
    def __init__(self, of: Converter, graph: Graph, reduced: bool) -> None:
        self.of = of
        self.reduced = reduced
        self.old = graph
        self.plan = of.plans[graph]
        self.builder = Builder(graph.name)
        self.floats: dict[Value, Value] = {}
        self.bytes: dict[Value, Value] = {}  # floats in steps of the scale
        self.known: dict[Value, Steps] = {}
        self.sums: dict[Value, np.ndarray] = {}  # scales of the sums of products, shaped like a number a channel
        for v in graph.inputs:
            self._is(v, self.builder.input(v.name, v.type), ())
        for node in graph.nodes:
            self._node(node)
        results = [self._float(v) for v in graph.outputs]
        self.graph = self.builder.finish(results, graph.output_names)

    def _node(self, node: Node) -> None:
        if node in self.plan.products:
            made: tuple[Value, ...] = (self._product(node),)
        elif is_scan(node):
            attrs = {**node.attrs, "body": self.of.convert(body_of_scan(node), body=True)}
            names = [v.name for v in node.outputs]
            inputs = [self._float(v) for v in node.inputs]
            made = self.builder.add(node.op, inputs, attrs, names=names, sources=node.sources)
        else:
            made = (b,) if (b := self._bias(node)) is not None else self._same(node)
        for v, new in zip(node.outputs, made, strict=True):
            self._is(v, new, node.sources)
            if v in self.plan.moved and node.inputs[0] in self.known:
                self.known[v], self.bytes[v] = self.known[node.inputs[0]], new

    def _is(self, v: Value, new: Value, sources: tuple[str, ...]) -> None:
        """Notes what a value has become, and stores it if that is planned."""
        self.floats[v] = self.of.values[v] = new
        if v in self.plan.stored:
            self.known[v] = steps = self.of.steps[v]
            scale = self._scalar(steps.scale, np.float32, f"{v.name}.scale")
            dtype = u2 if self.of.precision.few else u8
            zero = self.builder.constant(np.asarray(steps.zero).astype(dtype.numpy), f"{v.name}.zero")
            stored = self._emit("quantize", [new, scale, zero], f"{v.name}.{dtype}", sources)
            self.bytes[v] = self._emit("dequantize", [stored, scale, zero], f"{v.name}.steps", sources)
            self.of.values[v] = self.bytes[v]

    def _same(self, node: Node) -> tuple[Value, ...]:
        inputs = [self._read(node, v) for v in node.inputs]
        names = [v.name for v in node.outputs]
        return self.builder.add(node.op, inputs, node.attrs, names=names, sources=node.sources)

    def _read(self, node: Node, v: Value) -> Value:
        if v in self.bytes and self.plan.reads_bytes(node, v):
            return self.bytes[v]
        return self._float(v)

    def _float(self, v: Value) -> Value:
        if v not in self.floats:
            self.floats[v] = self.builder.constant(self.old.constants[v], v.name)
        return self.floats[v]

    def _product(self, node: Node) -> Value:
        (x, w), (y,) = node.inputs, node.outputs
        weights = self.old.constants[w]
        channel = 0 if node.op is get("conv") or node.attrs["transpose_b"] else 1
        steps = self.known[x]
        of = channel if self.of.per_channel else None
        if self.of.precision.few:
            scales, integers = odd_multiples(weights, of, self.of.precision.weight_bits)
        else:
            by_itself = node.op is get("conv") and node.attrs["groups"] == x.type.shape[1] > 1
            most = int(i7.max_value if self.reduced and not by_itself else WEIGHT_MAX)
            scales = weight_scales(weights, of, most)
            scales = np.maximum(scales, self._greatest_bias(y, channel, weights) / steps.scale / _BIAS_MAX)
            scales = scales.astype(np.float32)
            integers = np.clip(np.rint(weights / _along(scales, channel, weights.ndim)), -most, most).astype(np.int8)
        by_channel = _along(scales, channel, weights.ndim)
        q = self.builder.constant(integers, f"{w.name}.i8")
        scale = self.builder.constant(by_channel, f"{w.name}.scale")
        zero = self._scalar(0, np.int8, f"{w.name}.zero")
        floats = self._emit("dequantize", [q, scale, zero], f"{w.name}.steps", node.sources)
        along = (-1, *(1,) * (y.type.rank - 2)) if node.op is get("conv") else (-1,)
        if not self.of.precision.few:
            self.sums[y] = np.broadcast_to(np.float32(steps.scale) * scales, weights.shape[channel]).reshape(along)
        (made,) = self.builder.add(
            node.op, [self.bytes[x], floats], node.attrs, names=[y.name], sources=node.sources
        )  # fmt: skip
        return made

    def _greatest_bias(self, y: Value, channel: int, weights: np.ndarray) -> np.ndarray | float:
        """Of what is added to each channel's sums, or to all where they share a scale."""
        found = self._bias_of(y)
        if found is None:
            return 0.0
        most = np.abs(found[1]).astype(np.float64)
        return np.broadcast_to(most.reshape(-1), weights.shape[channel]) if self.of.per_channel else most.max()

    def _bias_of(self, y: Value) -> tuple[Node, np.ndarray] | None:
        """The addition of a number a channel to a product, and the numbers."""
        readers = self.plan.readers.get(y, ())
        if len(readers) != 1 or readers[0].op is not get("add") or y in self.old.outputs:
            return None
        c = next((v for v in readers[0].inputs if v in self.old.constants), None)
        if c is None or readers[0].outputs[0].type.shape != y.type.shape:
            return None
        array = self.old.constants[c]
        channels = y.type.shape[1 if self.plan.made_by[y].op is get("conv") else -1]
        along = (channels, *(1,) * (y.type.rank - 2)) if self.plan.made_by[y].op is get("conv") else (channels,)
        fits = array.size == 1 or (
            array.size == channels and np.broadcast_shapes(array.shape, along) in (along, (1, *along))
        )
        if not fits or not np.isfinite(array).all():
            return None
        return readers[0], np.broadcast_to(array.reshape(along if array.size == channels else ()), along)

    def _bias(self, node: Node) -> Value | None:
        """A bias at the scale of the sums that it joins."""
        y = next((v for v in node.inputs if v in self.sums), None)
        found = None if y is None else self._bias_of(y)
        if y is None or found is None or found[0] is not node:
            return None
        scales = self.sums[y]
        integers = np.rint(found[1] / scales.astype(np.float64))
        if np.abs(integers).max(initial=0) > _I32_MAX:
            return None
        name = node.outputs[0].name
        q = self.builder.constant(integers.astype(np.int32), f"{name}.i32")
        scale = self.builder.constant(np.array(scales), f"{name}.scale")
        zero = self._scalar(0, np.int32, f"{name}.zero")
        bias = self._emit("dequantize", [q, scale, zero], f"{name}.steps", node.sources)
        return self._emit("add", [self.floats[y], bias], name, node.sources)

    def _emit(self, op: str, inputs: list[Value], name: str, sources: tuple[str, ...]) -> Value:
        (made,) = self.builder.add(get(op), inputs, names=[name], sources=sources)
        return made

    def _scalar(self, number: float, dtype: type, name: str) -> Value:
        return self.builder.constant(np.asarray(number, dtype), name)


def weight_scales(weights: np.ndarray, channel: int | None, most: int = WEIGHT_MAX) -> np.ndarray:
    """Symmetric scales of weights, one an index of ``channel``, or one for all, at which the greatest is ``most``."""
    others = None if channel is None else tuple(d for d in range(weights.ndim) if d != channel)
    scales = np.abs(weights).max(axis=others, initial=0.0).astype(np.float64) / most
    return np.where(scales > float(np.finfo(np.float32).tiny), scales, 1.0)


def _along(scales: np.ndarray, channel: int, rank: int) -> np.ndarray:
    """Scales shaped to broadcast against weights: one for all, or one an index of a dimension."""
    return scales.reshape([-1 if d == channel else 1 for d in range(rank)]) if scales.ndim else scales


def odd_multiples(weights: np.ndarray, channel: int | None, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights of one or two bits: -1 and 1, or -3, -1, 1 and 3, at scales of least squared error.

    For one bit that is the mean magnitude (Rastegari et al., XNOR-Net, arXiv:1603.05279); for two, scales and numbers
    are fitted to each other in turns.

    Args:
        weights: in floats.
        channel: dimension of which every index has a scale; all share one unless given.
        bits: 1 or 2.
    Returns:
        the scales in f32, one an index of ``channel``, or one for all; and the numbers in i8.
    """
    rows = weights.reshape(1, -1) if channel is None else np.moveaxis(weights, channel, 0)
    shape, rows = rows.shape, rows.reshape(rows.shape[0], -1).astype(np.float64)
    signs = np.where(rows < 0, -1.0, 1.0)
    scales, numbers = np.abs(rows).mean(axis=1, keepdims=True), signs
    if bits == 2:
        scales = scales / 2
        for _ in range(_ROUNDS):
            numbers = signs * np.where(np.abs(rows) < 2 * scales, 1.0, 3.0)
            scales = (rows * numbers).sum(axis=1, keepdims=True) / np.square(numbers).sum(axis=1, keepdims=True)
    scales = np.maximum(scales[:, 0], np.finfo(np.float32).tiny).astype(np.float32)
    integers = numbers.reshape(shape).astype(np.int8)
    if channel is None:
        return scales.reshape(()), integers.reshape(weights.shape)
    return scales, np.moveaxis(integers, 0, channel)

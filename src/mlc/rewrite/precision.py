"""How precisely a tensor was computed: what a comparison with a reference has to allow for.

A tensor's own element type says too little. Floats of 32 bits that come out of a network in 16 bits are as good as 16
bits are; what went through 8-bit integers can be off by their steps; and a model that this compiler quantised differs
from its original by what quantising costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from mlc.ir.graph import Graph, Node, Value
from mlc.ir.types import DType, f32
from mlc.ops import get


class Precision(IntEnum):
    """From the finest to the coarsest; in small letters, the names under which packages record them.

    ``INT16`` and ``INT8`` are integers that stand for floats in the model itself. The last ones are what this compiler
    made of a model in floating point: ``BFLOAT16_PRODUCTS`` have operands that were rounded to bf16, ``INT8_WEIGHTS``
    and ``INT4_WEIGHTS`` one of 8 or 4 bits, and ``QUANTISED`` both in integers.
    """

    FLOAT64 = 0
    FLOAT32 = 1
    INT16 = 2
    FLOAT16 = 3
    BFLOAT16 = 4
    INT8 = 5
    BFLOAT16_PRODUCTS = 6
    INT8_WEIGHTS = 7
    INT4_WEIGHTS = 8
    QUANTISED = 9

    def __str__(self) -> str:
        return self.name.lower()


_FLOATS = {"f64": Precision.FLOAT64, "f32": Precision.FLOAT32, "f16": Precision.FLOAT16, "bf16": Precision.BFLOAT16}
# of products of f32 by what :mod:`mlc.rewrite.weights` stores; importers make none such
_WEIGHTS = {"f16": Precision.FLOAT16, "bf16": Precision.BFLOAT16_PRODUCTS, "i8": Precision.INT8_WEIGHTS}


@dataclass(frozen=True)
class _Fact:
    """Of a value: whether it depends on floating-point data, and the coarsest precision on the way to it."""

    floating: bool = False
    coarsest: Precision = Precision.FLOAT64


def precisions(graph: Graph, quantised: bool = False, *, tf32: bool = False) -> dict[str, Precision]:
    """The coarsest precision on the way from the inputs to each floating-point tensor, by name.

    Args:
        graph: operators, groups of them, or both. Constants are exact, whatever their type.
        quantised: whether the integers in it are this compiler's doing, and not the model's own.
        tf32: whether products of f32 take as many bits of their operands as f16 has.
    Returns:
        tensors whose precision is not that of their own type; the graph's results under their names as outputs.
    """
    made = Precision.QUANTISED if quantised else Precision.INT8
    facts: dict[Value, _Fact] = {v: _own(v, [_Fact()]) for v in graph.inputs}
    _walk(graph, facts, tf32)
    named = [*((v.name, v) for v in facts), *zip(graph.output_names, graph.outputs, strict=True)]
    found = {name: _as_made(facts[v].coarsest, made) for name, v in named if v in facts and v.type.dtype.kind == "f"}
    own = {name: _FLOATS.get(v.type.dtype.name) for name, v in named}
    return {name: precision for name, precision in found.items() if precision is not own[name]}


def _as_made(precision: Precision, made: Precision) -> Precision:
    """What integers of 8 bits stand for depends on who made them of floats."""
    return made if precision is Precision.INT8 else precision


def _walk(graph: Graph, facts: dict[Value, _Fact], tf32: bool) -> None:
    for node in graph.nodes:
        read = [facts[v] for v in node.inputs if v in facts]
        inner = _inside(node, facts, tf32)
        for k, v in enumerate(node.outputs):
            facts[v] = _own(v, [*read, *inner[k : k + 1]], _lost(node, tf32))


def _inside(node: Node, facts: Mapping[Value, _Fact], tf32: bool) -> list[_Fact]:
    """What the body of a group makes of its inputs, by output; nothing for an operator."""
    body = node.attrs.get("body")
    if not isinstance(body, Graph) or len(body.inputs) != len(node.inputs):
        return []
    within = {i: facts[v] for i, v in zip(body.inputs, node.inputs, strict=True) if v in facts}
    _walk(body, within, tf32)
    return [within.get(v, _Fact()) for v in body.outputs]


def _lost(node: Node, tf32: bool) -> Precision:
    """What this compiler has made coarser in an operator."""
    if node.op is get("round_shift"):
        return Precision.QUANTISED
    if tf32 and node.op in (get("matmul"), get("conv"), get("einsum")) and node.outputs[0].type.dtype is f32:
        return Precision.FLOAT16
    if node.op in (get("matmul_wide"), get("conv_wide")):
        return Precision.BFLOAT16_PRODUCTS
    if node.op is get("matmul_nibbles"):
        return Precision.INT4_WEIGHTS
    if node.op is get("matmul") and node.inputs[0].type.dtype is f32:
        return _WEIGHTS.get(node.inputs[1].type.dtype.name, Precision.FLOAT64)
    return Precision.FLOAT64


def _own(v: Value, read: Iterable[_Fact], lost: Precision = Precision.FLOAT64) -> _Fact:
    read = list(read)
    floating = any(f.floating for f in read)
    coarsest = max([lost, *(f.coarsest for f in read)])
    own = _precision_of(v.type.dtype, floating)
    if own is not None:
        coarsest = max(coarsest, own)
    return _Fact(floating or v.type.dtype.kind == "f", coarsest)


def _precision_of(dtype: DType, floating: bool) -> Precision | None:
    """That of numbers of a type; integers have one where they stand for floats."""
    if dtype.kind == "f":
        return _FLOATS.get(dtype.name)
    if not floating or dtype.kind not in "iu" or dtype.bits > 16:
        return None
    return Precision.INT16 if dtype.bits > 8 else Precision.INT8

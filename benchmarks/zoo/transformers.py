"""BERT encoders, node for node as PyTorch exports them at opset 17."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from onnx import ModelProto

from benchmarks.zoo.builder import ModelSpec, Net


@dataclass(frozen=True, slots=True)
class Sizes:
    """The numbers that tell one BERT from another (Devlin et al. 2018; Turc et al. 2019 for the tiny one)."""

    layers: int
    hidden: int
    heads: int
    sequence: int = 128
    vocabulary: int = 30522
    positions: int = 512

    @property
    def head(self) -> int:
        """Features of one attention head."""
        return self.hidden // self.heads


SMALL = Sizes(layers=1, hidden=18, heads=2, sequence=9, vocabulary=31, positions=11)


def _linear(net: Net, x: str, features: tuple[int, int], name: str) -> str:
    """MatMul and Add: what exporters write for a linear layer on a tensor of rank 3."""
    weight = net.constant(f"{name}.weight", net.normal(features, features[0] ** -0.5))
    bias = net.constant(f"{name}.bias", net.normal((features[1],), 0.02))
    return net.op("Add", bias, net.op("MatMul", x, weight, name=f"{name}.matmul"), name=f"{name}.add")


def _layer_norm(net: Net, x: str, hidden: int, name: str, result: str = "") -> str:
    scale = net.constant(f"{name}.weight", net.uniform((hidden,), 0.7, 1.3))
    shift = net.constant(f"{name}.bias", net.normal((hidden,), 0.1))
    return net.op("LayerNormalization", x, scale, shift, name=name, result=result, axis=-1, epsilon=1e-12)


def _gelu(net: Net, x: str, name: str) -> str:
    """``x / 2 * (1 + erf(x / sqrt 2))`` in the order of PyTorch's exporter."""
    y = net.op("Div", x, net.scalar("gelu.sqrt2", 2**0.5), name=f"{name}.div")
    y = net.op("Erf", y, name=f"{name}.erf")
    y = net.op("Add", y, net.scalar("gelu.one", 1.0), name=f"{name}.add")
    y = net.op("Mul", x, y, name=f"{name}.mul")
    return net.op("Mul", y, net.scalar("gelu.half", 0.5), name=f"{name}.half")


def _attention(net: Net, x: str, mask: str, sizes: Sizes, name: str) -> str:
    square = (sizes.hidden, sizes.hidden)

    def heads(role: str, perm: tuple[int, ...]) -> str:
        y = _linear(net, x, square, f"{name}.self.{role}")
        y = net.op("Reshape", y, "split_heads", name=f"{name}.self.{role}.reshape")
        return net.op("Transpose", y, name=f"{name}.self.{role}.transpose", perm=perm)

    query, value = heads("query", (0, 2, 1, 3)), heads("value", (0, 2, 1, 3))
    key = heads("key", (0, 2, 3, 1))
    y = net.op("MatMul", query, key, name=f"{name}.self.scores")
    y = net.op("Div", y, net.scalar("attention.sqrt_head", sizes.head**0.5), name=f"{name}.self.scale")
    y = net.op("Add", y, mask, name=f"{name}.self.mask")
    y = net.op("Softmax", y, name=f"{name}.self.softmax", axis=-1)
    y = net.op("MatMul", y, value, name=f"{name}.self.context")
    y = net.op("Transpose", y, name=f"{name}.self.transpose", perm=(0, 2, 1, 3))
    y = net.op("Reshape", y, "join_heads", name=f"{name}.self.reshape")
    y = _linear(net, y, square, f"{name}.output.dense")
    y = net.op("Add", y, x, name=f"{name}.output.residual")
    return _layer_norm(net, y, sizes.hidden, f"{name}.output.LayerNorm")


def _embeddings(net: Net, sizes: Sizes, batch: int) -> str:
    """Word, segment and position embeddings, summed and normalised."""
    shape = (batch, sizes.sequence)
    words = net.index_input("input_ids", shape, sizes.vocabulary)
    segments = net.index_input("token_type_ids", shape, 2)
    positions = net.constant("embeddings.position_ids", np.arange(sizes.sequence, dtype=np.int64)[None])
    x = ""
    for table, rows, indices in (
        ("word", sizes.vocabulary, words),
        ("token_type", 2, segments),
        ("position", sizes.positions, positions),
    ):
        name = f"embeddings.{table}_embeddings"
        weight = net.constant(f"{name}.weight", net.normal((rows, sizes.hidden), 0.05))
        y = net.op("Gather", weight, indices, name=name, axis=0)
        x = net.op("Add", x, y, name=f"{name}.add") if x else y
    return _layer_norm(net, x, sizes.hidden, "embeddings.LayerNorm")


def _mask(net: Net, sizes: Sizes, batch: int) -> str:
    """The 0/1 attention mask as an addend for the scores: 0 where a token counts, -10000 where it does not."""
    x = net.index_input("attention_mask", (batch, sizes.sequence), 2)
    axes = net.constant("mask.axes", np.array([1, 2], np.int64))
    x = net.op("Unsqueeze", x, axes, name="mask.unsqueeze")
    x = net.op("Cast", x, name="mask.cast", to=1)
    x = net.op("Sub", net.scalar("mask.one", 1.0), x, name="mask.sub")
    return net.op("Mul", x, net.scalar("mask.far", -10000.0), name="mask.mul")


def _bert(name: str, full: Sizes) -> Callable[[int, bool], ModelProto]:
    def build(batch: int, small: bool) -> ModelProto:
        sizes = replace(SMALL, sequence=min(SMALL.sequence, full.sequence)) if small else full
        hidden = sizes.hidden
        net = Net(name)
        net.constant("split_heads", np.array([batch, sizes.sequence, sizes.heads, sizes.head], np.int64))
        net.constant("join_heads", np.array([batch, sizes.sequence, hidden], np.int64))
        x = _embeddings(net, sizes, batch)
        mask = _mask(net, sizes, batch)
        for layer in range(sizes.layers):
            prefix = f"encoder.layer.{layer}"
            x = _attention(net, x, mask, sizes, f"{prefix}.attention")
            y = _linear(net, x, (hidden, 4 * hidden), f"{prefix}.intermediate.dense")
            y = _gelu(net, y, f"{prefix}.intermediate.gelu")
            y = _linear(net, y, (4 * hidden, hidden), f"{prefix}.output.dense")
            y = net.op("Add", y, x, name=f"{prefix}.output.residual")
            last = "last_hidden_state" if layer == sizes.layers - 1 else ""
            x = _layer_norm(net, y, hidden, f"{prefix}.output.LayerNorm", result=last)
        net.output(x, (batch, sizes.sequence, hidden))
        first = net.constant("pooler.first", np.array(0, np.int64))
        y = net.op("Gather", x, first, name="pooler.gather", axis=1)
        y = net.linear(y, (hidden, hidden), name="pooler.dense", gain=1.0)
        y = net.op("Tanh", y, name="pooler.tanh", result="pooler_output")
        net.output(y, (batch, hidden))
        return net.model()

    return build


SPECS = [
    ModelSpec(
        "bert_tiny",
        "network",
        "BERT, 2 layers of 128, 2 heads, 128 tokens (Turc et al. 2019)",
        _bert("bert_tiny", Sizes(layers=2, hidden=128, heads=2)),
    ),
    ModelSpec(
        "bert_base",
        "network",
        "BERT base, 12 layers of 768, 12 heads, 128 tokens (Devlin et al. 2018)",
        _bert("bert_base", Sizes(layers=12, hidden=768, heads=12)),
    ),
    ModelSpec(
        "bert_base_token",
        "single",
        "BERT base on one token",
        _bert("bert_base_token", Sizes(layers=12, hidden=768, heads=12, sequence=1)),
    ),
]

"""BERT's encoder, of base size: layers of attention and of products. Devlin et al., "BERT", 2018.

What it is given are vectors of tokens, not their numbers: tables of words are no part of the encoder.
"""

from __future__ import annotations

from math import sqrt

import mlc
from mlc import nn


def attention(x, heads, name):
    """Every token's values, weighted by how well its query meets the keys, for each head."""
    n, steps, features = x.shape
    each = features // heads

    def split(role):
        return nn.linear(x, features, f"{name}.{role}").reshape(n, steps, heads, each).transpose(0, 2, 1, 3)

    query, key, value = (split(role) for role in ("query", "key", "value"))
    weights = nn.softmax((query @ key.transpose(0, 1, 3, 2)) * (1.0 / sqrt(each)))
    mixed = (weights @ value).transpose(0, 2, 1, 3).reshape(n, steps, features)
    return nn.linear(mixed, features, f"{name}.out")


def layer(x, heads, name):
    """Attention, and two products around a GELU; each added to what it was given, and normalised."""
    features = x.shape[-1]
    x = nn.layer_norm(x + attention(x, heads, f"{name}.attention"), f"{name}.norm1")
    wide = nn.gelu(nn.linear(x, 4 * features, f"{name}.wide"))
    return nn.layer_norm(x + nn.linear(wide, features, f"{name}.narrow"), f"{name}.norm2")


def network(batch=16, steps=128, features=768, heads=12, layers=12, classes=2):
    """Tokens ``[batch, steps, features]`` to scores of classes, by the first token."""
    net = mlc.graph("bert_encoder")
    x = nn.layer_norm(net.input("x", (batch, steps, features)), "norm")
    for k in range(layers):
        x = layer(x, heads, f"layer{k}")
    pooled = nn.tanh(nn.linear(x[:, 0], features, "pool"))
    net.output("scores", nn.linear(pooled, classes, "head"))
    return net

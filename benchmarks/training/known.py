"""Networks that every library knows in PyTorch, over the parameters of ``examples/networks`` by their names.

Sizes are told from the parameters. Batch norms take the means and variances of the batch unless there are some among
the parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

import torch
from torch import Tensor
from torch.nn import functional as F

Parameters = Mapping[str, Tensor]
HEADS = 12


def _convolved(p: Parameters, x: Tensor, name: str, stride: int = 1, groups: int = 1) -> Tensor:
    """A convolution that keeps the image's size but for its stride, normalised."""
    weight = p[f"{name}.conv.weight"]
    y = F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2, groups=groups)
    return _batch_norm(p, y, f"{name}.norm")


def _batch_norm(p: Parameters, x: Tensor, name: str) -> Tensor:
    mean, variance = p.get(f"{name}.mean"), p.get(f"{name}.variance")
    return F.batch_norm(x, mean, variance, p[f"{name}.weight"], p[f"{name}.bias"], training=mean is None)


def _classified(p: Parameters, x: Tensor) -> Tensor:
    return x.mean((2, 3)) @ p["head.weight"] + p["head.bias"]


def _stem(p: Parameters, x: Tensor) -> Tensor:
    return F.max_pool2d(F.relu(_convolved(p, x, "stem", 2)), 3, 2, 1)


def resnet(p: Parameters, x: Tensor) -> Tensor:
    """Scores of classes."""
    x = _stem(p, x)
    for stage in range(4):
        k = 0
        while f"stage{stage}.{k}.0.conv.weight" in p:
            name, stride = f"stage{stage}.{k}", 2 if stage and not k else 1
            if f"{name}.2.conv.weight" in p:
                y = F.relu(_convolved(p, x, f"{name}.0"))
                y = F.relu(_convolved(p, y, f"{name}.1", stride))
                y = _convolved(p, y, f"{name}.2")
            else:
                y = F.relu(_convolved(p, x, f"{name}.0", stride))
                y = _convolved(p, y, f"{name}.1")
            shortcut = f"{name}.shortcut"
            x = F.relu(y + (_convolved(p, x, shortcut, stride) if f"{shortcut}.conv.weight" in p else x))
            k += 1
    return _classified(p, x)


def mobilenet(p: Parameters, x: Tensor) -> Tensor:
    """Scores of classes."""
    x = F.relu(_convolved(p, x, "stem", 2))
    k = 0
    while f"pair{k}.depthwise.conv.weight" in p:
        stride = 2 if k in (1, 3, 5, 11) else 1
        x = F.relu(_convolved(p, x, f"pair{k}.depthwise", stride, groups=x.shape[1]))
        x = F.relu(_convolved(p, x, f"pair{k}.pointwise"))
        k += 1
    return _classified(p, x)


def shufflenet(p: Parameters, x: Tensor) -> Tensor:
    """Scores of classes."""
    x, groups = _stem(p, x), 3
    for stage in (2, 3, 4):
        k = 0
        while f"stage{stage}.{k}.compress.conv.weight" in p:
            name, stride = f"stage{stage}.{k}", 1 if k else 2
            y = F.relu(_convolved(p, x, f"{name}.compress", groups=1 if stage == 2 and not k else groups))
            y = F.channel_shuffle(y, groups)
            y = _convolved(p, y, f"{name}.depthwise", stride, groups=y.shape[1])
            y = _convolved(p, y, f"{name}.expand", groups=groups)
            if stride > 1:
                x = F.relu(torch.cat([F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), y], 1))
            else:
                x = F.relu(x + y)
            k += 1
    return _classified(p, x)


def _linear(p: Parameters, x: Tensor, name: str) -> Tensor:
    return x @ p[f"{name}.weight"] + p[f"{name}.bias"]


def _layer_norm(p: Parameters, x: Tensor, name: str) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], p[f"{name}.weight"], p[f"{name}.bias"])


def bert_encoder(p: Parameters, x: Tensor) -> Tensor:
    """Scores of classes."""
    x = _layer_norm(p, x, "norm")
    n, steps, features = x.shape
    k = 0
    while f"layer{k}.wide.weight" in p:
        name, x_in = f"layer{k}", x
        query, key, value = (
            _linear(p, x_in, f"{name}.attention.{role}").reshape(n, steps, HEADS, -1).transpose(1, 2)
            for role in ("query", "key", "value")
        )
        mixed = F.scaled_dot_product_attention(query, key, value, scale=1.0 / sqrt(features // HEADS))
        mixed = mixed.transpose(1, 2).reshape(n, steps, features)
        x = _layer_norm(p, x + _linear(p, mixed, f"{name}.attention.out"), f"{name}.norm1")
        wide = F.gelu(_linear(p, x, f"{name}.wide"))
        x = _layer_norm(p, x + _linear(p, wide, f"{name}.narrow"), f"{name}.norm2")
        k += 1
    return _linear(p, torch.tanh(_linear(p, x[:, 0], "pool")), "head")

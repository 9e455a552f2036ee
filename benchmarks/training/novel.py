"""Networks with operators of their own in PyTorch, over the parameters of ``examples/networks`` by their names.

Written as users of PyTorch write them: a capsule convolution is one product of unfolded windows.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

Parameters = Mapping[str, Tensor]

SLOW = 0.95


def _squash(x: Tensor) -> Tensor:
    square = (x * x).sum((-2, -1), keepdim=True)
    return x * torch.sqrt(square + 1e-7) / (1.0 + square)


def capsule_net(p: Parameters, x: Tensor, routings: int = 3) -> Tensor:
    """Lengths of the classes' capsules."""
    side, kinds = 4, p["stem.weight"].shape[0] // 16
    first = F.relu(F.conv2d(x, p["stem.weight"], p["stem.bias"].reshape(-1), stride=2 if x.shape[-1] > 16 else 1))
    n, _, height, width = first.shape
    capsules = first.reshape(n, kinds, side, side, height, width).permute(0, 1, 4, 5, 2, 3)
    windows = capsules.unfold(2, 3, 2).unfold(3, 3, 2)  # [b, c, p, q, i, k, r, s]
    hidden = _squash(torch.einsum("bcpqikrs,ocrskj->bopqij", windows, p["conv1.weight"]))
    u = torch.einsum("bcpqik,ocpqkj->bcoij", hidden, p["conv2.weight"])
    logits = x.new_zeros(u.shape[:3])
    v = u
    for k in range(routings):
        v = _squash(torch.einsum("bco,bcoij->boij", logits.softmax(2), u))
        if k + 1 < routings:
            logits = logits + torch.einsum("bcoij,boij->bco", u, v)
    return torch.sqrt((v * v).sum((-2, -1)) + 1e-7)


def mi_lstm(p: Parameters, x: Tensor) -> Tensor:
    """Scores of classes."""
    hidden = p["u"].shape[0]
    alpha, beta1, beta2, bias = (p[name].reshape(-1) for name in ("alpha", "beta1", "beta2", "bias"))
    h = c = x.new_zeros(x.shape[0], hidden)
    for row in (x.transpose(0, 1) @ p["w"]).unbind(0):
        uh = h @ p["u"]
        i, f, o, z = (alpha * row * uh + beta1 * uh + beta2 * row + bias).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(z)
        h = torch.sigmoid(o) * torch.tanh(c)
    return h @ p["head.weight"] + p["head.bias"]


def sc_rnn(p: Parameters, x: Tensor) -> Tensor:
    """Scores of classes."""
    h, s = x.new_zeros(x.shape[0], p["r"].shape[0]), x.new_zeros(x.shape[0], p["p"].shape[0])
    x = x.transpose(0, 1)
    for bx, ax in zip((x @ p["b"]).unbind(0), (x @ p["a.weight"] + p["a.bias"]).unbind(0), strict=True):
        s = (1.0 - SLOW) * bx + SLOW * s
        h = torch.sigmoid(s @ p["p"] + ax + h @ p["r"])
    return h @ p["head.weight"] + p["head.bias"] + s @ p["slow.weight"]


def sub_lstm(p: Parameters, x: Tensor) -> Tensor:
    """Scores of classes."""
    h = c = x.new_zeros(x.shape[0], p["u"].shape[0])
    for row in (x.transpose(0, 1) @ p["w.weight"] + p["w.bias"]).unbind(0):
        f, i, o, z = torch.sigmoid(row + h @ p["u"]).chunk(4, 1)
        c = f * c + z - i
        h = torch.sigmoid(c) - o
    return h @ p["head.weight"] + p["head.bias"]


def lltm(p: Parameters, x: Tensor) -> Tensor:
    """Scores of classes."""
    h = c = x.new_zeros(x.shape[0], p["u"].shape[0])
    for row in (x.transpose(0, 1) @ p["w.weight"] + p["w.bias"]).unbind(0):
        i, o, z = (row + h @ p["u"]).chunk(3, 1)
        c = c + F.elu(z) * torch.sigmoid(i)
        h = torch.tanh(c) * torch.sigmoid(o)
    return h @ p["head.weight"] + p["head.bias"]

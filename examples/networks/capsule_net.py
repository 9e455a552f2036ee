"""CapsuleNet: two capsule convolutions of 4 by 4 matrices, and three rounds of dynamic routing between them.

Sabour et al., "Dynamic Routing Between Capsules", 2017; capsules that are matrices, as in NeoFlow, section 2.3:

    C[b, o, p, q, i, j] = sum(A[b, c, p*2 + r, q*2 + s, i, k] * B[o, c, r, s, k, j])

Scores are the lengths of the classes' capsules: ``mlc train capsule_net.py --loss margin``.
"""

from __future__ import annotations

import mlc
from mlc import nn, te


@mlc.operator
def capsule_conv(x, w, *, stride=1):
    """Every pixel's matrices of a window times those of the weights, summed over the window and the capsules."""
    n, c, height, width, rows, inner = x.shape
    o, _, taps_h, taps_w, _, columns = w.shape
    ch, r, s, k = [te.reduce_axis(e, name) for e, name in ((c, "c"), (taps_h, "r"), (taps_w, "s"), (inner, "k"))]
    shape = (n, o, (height - taps_h) // stride + 1, (width - taps_w) // stride + 1, rows, columns)
    return te.compute(
        shape,
        lambda b, v, p, q, i, j: te.sum(
            x[b, ch, p * stride + r, q * stride + s, i, k] * w[v, ch, r, s, k, j], (ch, r, s, k)
        ),
        "capsules",
    )


@mlc.operator
def squash(x):
    """Matrices of the last two axes, shortened to lengths below 1 (equation 1)."""
    *outer, rows, columns = x.shape
    i, j = te.reduce_axis(rows, "i"), te.reduce_axis(columns, "j")
    length = te.compute(outer, lambda *at: te.sum(x[(*at, i, j)] * x[(*at, i, j)], (i, j)), "length")
    scale = te.compute(outer, lambda *at: te.sqrt(length[at] + 1e-7) / (1.0 + length[at]), "scale")
    return te.compute(x.shape, lambda *at: x[at] * scale[at[:-2]], "squashed")


@mlc.operator
def votes(x, w):
    """What each kind of capsules says of every class: the second capsule convolution, before its sum over kinds."""
    n, c, height, width, rows, inner = x.shape
    o, columns = w.shape[0], w.shape[-1]
    p, q, k = te.reduce_axis(height, "p"), te.reduce_axis(width, "q"), te.reduce_axis(inner, "k")
    return te.compute(
        (n, c, o, rows, columns),
        lambda b, ch, v, i, j: te.sum(x[b, ch, p, q, i, k] * w[v, ch, p, q, k, j], (p, q, k)),
        "votes",
    )


@mlc.operator
def weighted(shares, u):
    """Votes of all kinds, summed by the shares that routing gives them."""
    n, kinds, o, rows, columns = u.shape
    c = te.reduce_axis(kinds, "c")
    return te.compute(
        (n, o, rows, columns), lambda b, v, i, j: te.sum(shares[b, c, v] * u[b, c, v, i, j], c), "weighted"
    )


@mlc.operator
def agreement(u, v):
    """How far each vote goes the way of the class's capsule."""
    n, kinds, o, rows, columns = u.shape
    i, j = te.reduce_axis(rows, "i"), te.reduce_axis(columns, "j")
    return te.compute((n, kinds, o), lambda b, c, k: te.sum(u[b, c, k, i, j] * v[b, k, i, j], (i, j)), "agreement")


@mlc.operator
def lengths(v):
    """The length of each class's capsule."""
    n, o, rows, columns = v.shape
    i, j = te.reduce_axis(rows, "i"), te.reduce_axis(columns, "j")
    square = te.compute((n, o), lambda b, k: te.sum(v[b, k, i, j] * v[b, k, i, j], (i, j)), "square")
    return te.compute((n, o), lambda b, k: te.sqrt(square[b, k] + 1e-7), "lengths")


def network(batch=64, size=28, kinds=8, classes=10, routings=3):
    """Images ``[batch, 1, size, size]`` to the lengths of the classes' capsules."""
    net = mlc.graph("capsule_net")
    x = net.input("x", (batch, 1, size, size))
    side = 4
    first = nn.relu(nn.conv2d(x, kinds * side * side, 5, "stem", stride=2 if size > 16 else 1))
    n, _, height, width = first.shape
    capsules = first.reshape(n, kinds, side, side, height, width).transpose(0, 1, 4, 5, 2, 3)
    shape = (2 * kinds, kinds, 3, 3, side, side)
    hidden = squash(capsule_conv(capsules, nn.uniform(net, "conv1.weight", shape, kinds * 9 * side), stride=2))
    rows, columns = hidden.shape[2:4]
    shape = (classes, 2 * kinds, rows, columns, side, side)
    u = votes(hidden, nn.uniform(net, "conv2.weight", shape, rows * columns * side))
    logits = net.constant("logits", [[[0.0] * classes] * (2 * kinds)] * batch)
    v = None
    for k in range(routings):
        v = squash(weighted(nn.softmax(logits, 2), u))
        if k + 1 < routings:
            logits = logits + agreement(u, v)
    net.output("scores", lengths(v))
    return net

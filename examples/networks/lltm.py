"""LLTM: an LSTM without a forget gate, with an ELU for its candidate: the cell of PyTorch's tutorial on extensions."""

from __future__ import annotations

import mlc
from mlc import nn, te


@mlc.operator
def cell(wx, uh, c):
    """The new state: gates are input, output and candidate."""

    def pre(g, n, j):
        return wx[n, g, j] + uh[n, g, j]

    def elu(x):
        return te.where(te.less(0.0, x), x, te.exp(te.minimum(x, 0.0)) - 1.0)

    after = te.compute(c.shape, lambda n, j: c[n, j] + elu(pre(2, n, j)) * te.sigmoid(pre(0, n, j)), "c")
    return te.compute(c.shape, lambda n, j: te.tanh(after[n, j]) * te.sigmoid(pre(1, n, j)), "h"), after


def network(batch=64, steps=28, features=28, hidden=128, classes=10):
    """Rows ``[batch, steps, features]``, one a step, to scores of classes."""
    net = mlc.graph("lltm")
    x = net.input("x", (batch, steps, features)).transpose(1, 0, 2)
    wx = nn.linear(x, 3 * hidden, "w").reshape(steps, batch, 3, hidden)
    u = nn.uniform(net, "u", (hidden, 3 * hidden), hidden)

    def step(h, c, row):
        return cell(row, (h @ u).reshape(batch, 3, hidden), c), []

    (h, _), _ = net.scan(step, [nn.zeros(net, name, (batch, hidden)) for name in "hc"], [wx])
    net.output("scores", nn.linear(h, classes, "head"))
    return net

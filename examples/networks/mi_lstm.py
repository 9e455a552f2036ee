"""MI-LSTM: an LSTM whose gates multiply what comes from the input by what comes from the state.

Wu et al., "On Multiplicative Integration with Recurrent Neural Networks", 2016, equation 3 and appendix A.
"""

from __future__ import annotations

import numpy as np

import mlc
from mlc import nn, te


@mlc.operator
def gates(wx, uh, alpha, beta1, beta2, bias):
    """``alpha * Wx * Uh + beta1 * Uh + beta2 * Wx + bias`` for the four gates of every unit."""

    def element(n, g, j):
        x, h = wx[n, g, j], uh[n, g, j]
        return alpha[g, j] * x * h + beta1[g, j] * h + beta2[g, j] * x + bias[g, j]

    return te.compute(wx.shape, element, "gates")


@mlc.operator
def cell(z, c):
    """The new state from the gates (input, forget, output, candidate) and the old one."""

    def carried(n, j):
        return te.sigmoid(z[n, 1, j]) * c[n, j] + te.sigmoid(z[n, 0, j]) * te.tanh(z[n, 3, j])

    after = te.compute(c.shape, carried, "c")
    return te.compute(c.shape, lambda n, j: te.sigmoid(z[n, 2, j]) * te.tanh(after[n, j]), "h"), after


def network(batch=64, steps=28, features=28, hidden=128, classes=10):
    """Rows ``[batch, steps, features]``, one a step, to scores of classes."""
    net = mlc.graph("mi_lstm")
    x = net.input("x", (batch, steps, features)).transpose(1, 0, 2)
    wx = (x @ nn.uniform(net, "w", (features, 4 * hidden), hidden)).reshape(steps, batch, 4, hidden)
    u = nn.uniform(net, "u", (hidden, 4 * hidden), hidden)
    alpha = net.parameter("alpha", np.ones((4, hidden)))
    beta1, beta2 = (net.parameter(name, np.full((4, hidden), 0.5)) for name in ("beta1", "beta2"))
    bias = net.parameter("bias", np.zeros((4, hidden)))

    def step(h, c, row):
        uh = (h @ u).reshape(batch, 4, hidden)
        return cell(gates(row, uh, alpha, beta1, beta2, bias), c), []

    (h, _), _ = net.scan(step, [nn.zeros(net, name, (batch, hidden)) for name in "hc"], [wx])
    net.output("scores", nn.linear(h, classes, "head"))
    return net

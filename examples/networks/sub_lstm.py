"""subLSTM: an LSTM whose gates subtract instead of multiply.

Costa et al., "Cortical microcircuits as gated-recurrent neural networks", 2017, equations 9 to 11.
"""

from __future__ import annotations

import mlc
from mlc import nn, te


@mlc.operator
def cell(wx, uh, c):
    """The new state: gates are forget, input, output and candidate; all of them are sigmoids."""

    def gate(g, n, j):
        return te.sigmoid(wx[n, g, j] + uh[n, g, j])

    after = te.compute(c.shape, lambda n, j: gate(0, n, j) * c[n, j] + gate(3, n, j) - gate(1, n, j), "c")
    return te.compute(c.shape, lambda n, j: te.sigmoid(after[n, j]) - gate(2, n, j), "h"), after


def network(batch=64, steps=28, features=28, hidden=128, classes=10):
    """Rows ``[batch, steps, features]``, one a step, to scores of classes."""
    net = mlc.graph("sub_lstm")
    x = net.input("x", (batch, steps, features)).transpose(1, 0, 2)
    wx = nn.linear(x, 4 * hidden, "w").reshape(steps, batch, 4, hidden)
    u = nn.uniform(net, "u", (hidden, 4 * hidden), hidden)

    def step(h, c, row):
        return cell(row, (h @ u).reshape(batch, 4, hidden), c), []

    (h, _), _ = net.scan(step, [nn.zeros(net, name, (batch, hidden)) for name in "hc"], [wx])
    net.output("scores", nn.linear(h, classes, "head"))
    return net

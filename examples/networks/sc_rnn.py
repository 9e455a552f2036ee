"""SC-RNN: a recurrent network with a slow context of its own.

Mikolov et al., "Learning Longer Memory in Recurrent Neural Networks", 2015, equations 2 to 4.
"""

from __future__ import annotations

import mlc
from mlc import nn, te

SLOW = 0.95


@mlc.operator
def context(bx, s):
    """The context follows its input slowly."""
    return te.compute(s.shape, lambda n, j: (1.0 - SLOW) * bx[n, j] + SLOW * s[n, j], "context")


@mlc.operator
def state(ps, ax, rh):
    """The fast state, from context, input and itself."""
    return te.compute(ax.shape, lambda n, j: te.sigmoid(ps[n, j] + ax[n, j] + rh[n, j]), "state")


def network(batch=64, steps=28, features=28, hidden=128, slow=64, classes=10):
    """Rows ``[batch, steps, features]``, one a step, to scores of classes."""
    net = mlc.graph("sc_rnn")
    x = net.input("x", (batch, steps, features)).transpose(1, 0, 2)
    bx = x @ nn.uniform(net, "b", (features, slow), hidden)
    ax = nn.linear(x, hidden, "a")
    p, r = nn.uniform(net, "p", (slow, hidden), hidden), nn.uniform(net, "r", (hidden, hidden), hidden)

    def step(h, s, to_context, to_state):
        after = context(to_context, s)
        return [state(after @ p, to_state, h @ r), after], []

    starts = [nn.zeros(net, "h", (batch, hidden)), nn.zeros(net, "s", (batch, slow))]
    (h, s), _ = net.scan(step, starts, [bx, ax])
    net.output("scores", nn.linear(h, classes, "head") + nn.linear(s, classes, "slow", bias=False))
    return net

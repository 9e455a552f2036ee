"""ShuffleNet: convolutions in groups, between which channels are shuffled. Zhang et al., "ShuffleNet", 2018."""

from __future__ import annotations

import mlc
from mlc import nn

GROUPS = 3


def convolved(x, channels, kernel, name, stride=1, groups=1):
    """A convolution that keeps the image's size but for its stride, normalised."""
    pad = kernel // 2
    y = nn.conv2d(x, channels, kernel, f"{name}.conv", stride=stride, pad=pad, groups=groups, bias=False)
    return nn.batch_norm(y, f"{name}.norm")


def shuffled(x):
    """Channels of all groups in turn (figure 1c)."""
    n, c, height, width = x.shape
    return x.reshape(n, GROUPS, c // GROUPS, height, width).transpose(0, 2, 1, 3, 4).reshape(n, c, height, width)


def unit(x, channels, name, *, stride, groups):
    """Figures 2b and 2c: what was given is added to the result, or after a stride put before it."""
    given = x.shape[1]
    middle = channels // 4
    y = shuffled(nn.relu(convolved(x, middle, 1, f"{name}.compress", groups=groups)))
    y = convolved(y, middle, 3, f"{name}.depthwise", stride, groups=middle)
    y = convolved(y, channels - given if stride > 1 else channels, 1, f"{name}.expand", groups=GROUPS)
    if stride > 1:
        (joined,) = x.network.apply("concat", nn.avg_pool(x, 3, stride, 1), y, axis=1)
        return nn.relu(joined)
    return nn.relu(x + y)


def network(batch=64, size=224, stem=24, width=240, units=4, classes=1000):
    """Images ``[batch, 3, size, size]`` to scores of classes; ``width`` is that of stage 2 (table 1, 3 groups)."""
    net = mlc.graph("shufflenet")
    x = net.input("x", (batch, 3, size, size))
    x = nn.max_pool(nn.relu(convolved(x, stem, 3, "stem", 2)), 3, 2, 1)
    for stage, count in enumerate((units, 2 * units, units)):
        for k in range(count):
            groups = GROUPS if stage or k else 1  # "we do not apply group convolution on the first pointwise layer"
            x = unit(x, width << stage, f"stage{stage + 2}.{k}", stride=1 if k else 2, groups=groups)
    net.output("scores", nn.linear(x.mean(2, 3), classes, "head"))
    return net

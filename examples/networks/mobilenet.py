"""MobileNet: convolutions of single channels and of single pixels in turn. Howard et al., "MobileNets", 2017."""

from __future__ import annotations

import mlc
from mlc import nn

# channels (as multiples of the first convolution's) and stride of each pair of convolutions (table 1)
PAIRS = ((2, 1), (4, 2), (4, 1), (8, 2), (8, 1), (16, 2), *[(16, 1)] * 5, (32, 2), (32, 1))


def convolved(x, channels, kernel, name, stride=1, groups=1):
    """A convolution that keeps the image's size but for its stride, normalised and rectified."""
    pad = kernel // 2
    y = nn.conv2d(x, channels, kernel, f"{name}.conv", stride=stride, pad=pad, groups=groups, bias=False)
    return nn.relu(nn.batch_norm(y, f"{name}.norm"))


def network(batch=64, size=224, width=32, pairs=13, classes=1000):
    """Images ``[batch, 3, size, size]`` to scores of classes."""
    net = mlc.graph("mobilenet")
    x = convolved(net.input("x", (batch, 3, size, size)), width, 3, "stem", 2)
    for k, (wider, stride) in enumerate(PAIRS[:pairs]):
        inner = x.shape[1]
        x = convolved(x, inner, 3, f"pair{k}.depthwise", stride, groups=inner)
        x = convolved(x, width * wider, 1, f"pair{k}.pointwise")
    net.output("scores", nn.linear(x.mean(2, 3), classes, "head"))
    return net

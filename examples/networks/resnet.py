"""ResNet: blocks whose result is added to what they were given. He et al., "Deep Residual Learning", 2016.

``--dim depth=18`` (or 34) has blocks of two convolutions, ``--dim depth=50`` of three with a narrow one in the middle.
"""

from __future__ import annotations

import mlc
from mlc import nn

# blocks of each stage (table 1), and how many times as wide as its middle a block's result is
DEPTHS = {10: ((1, 1, 1, 1), 1), 18: ((2, 2, 2, 2), 1), 34: ((3, 4, 6, 3), 1), 50: ((3, 4, 6, 3), 4)}


def convolved(x, channels, kernel, name, stride=1):
    """A convolution that keeps the image's size but for its stride, normalised."""
    y = nn.conv2d(x, channels, kernel, f"{name}.conv", stride=stride, pad=kernel // 2, bias=False)
    return nn.batch_norm(y, f"{name}.norm")


def block(x, middle, wider, stride, name):
    """Two convolutions of 3 by 3, or one between two of 1 by 1; what was given is projected where shapes differ."""
    kernels = (1, 3, 1) if wider > 1 else (3, 3)
    widths = (middle, middle, middle * wider) if wider > 1 else (middle, middle)
    strided = kernels.index(3)
    y = x
    for k, (kernel, width) in enumerate(zip(kernels, widths, strict=True)):
        y = convolved(y, width, kernel, f"{name}.{k}", stride if k == strided else 1)
        y = nn.relu(y) if k + 1 < len(kernels) else y
    if x.shape != y.shape:
        x = convolved(x, widths[-1], 1, f"{name}.shortcut", stride)
    return nn.relu(x + y)


def network(batch=64, depth=18, size=224, width=64, classes=1000):
    """Images ``[batch, 3, size, size]`` to scores of classes."""
    net = mlc.graph(f"resnet{depth}")
    x = net.input("x", (batch, 3, size, size))
    x = nn.max_pool(nn.relu(convolved(x, width, 7, "stem", 2)), 3, 2, 1)
    blocks, wider = DEPTHS[depth]
    for stage, count in enumerate(blocks):
        for k in range(count):
            x = block(x, width << stage, wider, 2 if stage and not k else 1, f"stage{stage}.{k}")
    net.output("scores", nn.linear(x.mean(2, 3), classes, "head"))
    return net

"""A small convolutional network: two convolutions, a pool and a product."""

from __future__ import annotations

import mlc
from mlc import nn


def network(batch=64, size=28, channels=16, classes=10):
    """Images ``[batch, 1, size, size]`` to scores of classes."""
    net = mlc.graph("convnet")
    x = net.input("x", (batch, 1, size, size))
    x = nn.relu(nn.conv2d(x, channels, 3, "conv1", pad=1))
    x = nn.relu(nn.conv2d(x, 2 * channels, 3, "conv2", pad=1))
    net.output("scores", nn.linear(nn.flatten(nn.max_pool(x, 2)), classes, "head"))
    return net

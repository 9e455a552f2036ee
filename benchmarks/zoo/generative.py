"""The generator of DCGAN."""

from __future__ import annotations

from itertools import pairwise

from onnx import ModelProto

from benchmarks.zoo.builder import ModelSpec, Net


def _dcgan(batch: int, small: bool) -> ModelProto:
    latent, widths = (7, [12, 9, 5]) if small else (100, [1024, 512, 256, 128])
    net = Net("dcgan")
    x = net.input("z", (batch, latent))
    x = net.linear(x, (latent, widths[0] * 4 * 4), name="project", gain=1.0)
    x = net.reshape_channels(x, (batch, widths[0], 4, 4), name="reshape")
    x = net.relu(net.batch_norm(x, name="bn0"), name="relu0")
    edge = 4
    for index, channels in enumerate(pairwise(widths), start=1):
        x = net.conv_transpose(x, channels, 4, stride=2, pad=1, name=f"deconv{index}")
        x = net.relu(net.batch_norm(x, name=f"bn{index}"), name=f"relu{index}")
        edge *= 2
    x = net.conv_transpose(x, (widths[-1], 3), 4, stride=2, pad=1, bias=True, name=f"deconv{len(widths)}")
    x = net.op("Tanh", x, name="tanh", result="image")
    net.output(x, (batch, 3, 2 * edge, 2 * edge))
    return net.model()


SPECS = [
    ModelSpec(
        "dcgan", "network", "DCGAN generator, 100 -> 3x64x64 (Radford et al. 2016; 4x4 kernels as in TVM)", _dcgan
    )
]

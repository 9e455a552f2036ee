"""Convolutional networks of the server class: ResNet in two and three dimensions, SqueezeNet, the deep Q network."""

from __future__ import annotations

from collections.abc import Callable

from onnx import ModelProto

from benchmarks.zoo.builder import ModelSpec, Net

# Appends a residual block: (net, input, (channels in, channels out), stride, name) -> result.
Block = Callable[[Net, str, tuple[int, int], int, str], str]


def _basic_block(net: Net, x: str, channels: tuple[int, int], stride: int, name: str, rank: int = 2) -> str:
    """Two 3x3 convolutions (He et al. 2016, figure 5 left)."""
    inner, outer = channels
    y = net.conv(x, (inner, outer), 3, stride=stride, rank=rank, name=f"{name}.conv1")
    y = net.relu(net.batch_norm(y, name=f"{name}.bn1"), name=f"{name}.relu1")
    y = net.conv(y, (outer, outer), 3, rank=rank, name=f"{name}.conv2")
    y = net.batch_norm(y, name=f"{name}.bn2")
    return _join(net, x, y, channels, stride, name, rank)


def _basic_block_3d(net: Net, x: str, channels: tuple[int, int], stride: int, name: str) -> str:
    """The same with 3x3x3 convolutions (Tran et al. 2018, R3D)."""
    return _basic_block(net, x, channels, stride, name, rank=3)


def _bottleneck(net: Net, x: str, channels: tuple[int, int], stride: int, name: str) -> str:
    """1x1, 3x3, 1x1 with a quarter of the channels inside; the 3x3 strides, as torchvision has it."""
    inner, outer = channels
    middle = outer // 4
    y = net.conv(x, (inner, middle), 1, name=f"{name}.conv1")
    y = net.relu(net.batch_norm(y, name=f"{name}.bn1"), name=f"{name}.relu1")
    y = net.conv(y, (middle, middle), 3, stride=stride, name=f"{name}.conv2")
    y = net.relu(net.batch_norm(y, name=f"{name}.bn2"), name=f"{name}.relu2")
    y = net.conv(y, (middle, outer), 1, name=f"{name}.conv3")
    y = net.batch_norm(y, name=f"{name}.bn3")
    return _join(net, x, y, channels, stride, name)


def _join(net: Net, x: str, y: str, channels: tuple[int, int], stride: int, name: str, rank: int = 2) -> str:
    """Adds the shortcut, projected where the shape changes."""
    if stride != 1 or channels[0] != channels[1]:
        x = net.conv(x, channels, 1, stride=stride, rank=rank, name=f"{name}.downsample.0")
        x = net.batch_norm(x, name=f"{name}.downsample.1")
    return net.relu(net.add(y, x, name=f"{name}.add"), name=f"{name}.relu")


def _stages(net: Net, x: str, block: Block, stem: int, widths: list[int], depths: list[int]) -> str:
    """The stages of a residual network; all but the first halve the image in their first block."""
    inner = stem
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True), start=1):
        for index in range(depth):
            stride = 2 if stage > 1 and index == 0 else 1
            x = block(net, x, (inner, width), stride, f"layer{stage}.{index}")
            inner = width
    return x


def _resnet8(batch: int, small: bool) -> ModelProto:
    """Three basic blocks without a pool before them (Banbury et al. 2021, MLPerf Tiny, image classification)."""
    image, widths = (9, [5, 6, 7]) if small else (32, [16, 32, 64])
    net = Net("resnet8")
    x = net.input("input", (batch, 3, image, image))
    x = net.conv(x, (3, widths[0]), 3, name="conv1")
    x = net.relu(net.batch_norm(x, name="bn1"), name="relu")
    x = _stages(net, x, _basic_block, widths[0], widths, [1, 1, 1])
    net.classifier(x, (widths[-1], 10), batch=batch)
    return net.model()


def _resnet(name: str, block: Block, widths: list[int], depths: list[int]) -> Callable[[int, bool], ModelProto]:
    def build(batch: int, small: bool) -> ModelProto:
        stem, image, classes = (5, 33, 10) if small else (64, 224, 1000)
        last = [width // 32 + 4 for width in widths] if small else widths
        counts = [1, 2, 1, 1] if small else depths
        net = Net(name)
        x = net.input("input", (batch, 3, image, image))
        x = net.conv(x, (3, stem), 7, stride=2, name="conv1")
        x = net.relu(net.batch_norm(x, name="bn1"), name="relu")
        x = net.max_pool(x, 3, stride=2, pad=1, name="maxpool")
        x = _stages(net, x, block, stem, last, counts)
        net.classifier(x, (last[-1], classes), batch=batch)
        return net.model()

    return build


def _resnet3d18(batch: int, small: bool) -> ModelProto:
    stem, frames, image, classes = (5, 5, 17, 10) if small else (64, 16, 112, 400)
    widths, depths = ([5, 7], [1, 1]) if small else ([64, 128, 256, 512], [2, 2, 2, 2])
    net = Net("resnet3d18")
    x = net.input("input", (batch, 3, frames, image, image))
    x = net.conv(x, (3, stem), (3, 7, 7), stride=(1, 2, 2), rank=3, name="stem.0")
    x = net.relu(net.batch_norm(x, name="stem.1"), name="stem.2")
    x = _stages(net, x, _basic_block_3d, stem, widths, depths)
    net.classifier(x, (widths[-1], classes), batch=batch)
    return net.model()


def _fire(net: Net, x: str, channels: tuple[int, int, int], name: str) -> str:
    """Squeeze to few channels, then expand by 1x1 and 3x3 side by side: (in, squeezed, each expansion)."""
    inner, squeezed, wide = channels
    x = net.conv(x, (inner, squeezed), 1, bias=True, name=f"{name}.squeeze")
    x = net.relu(x, name=f"{name}.squeeze_activation")
    sides = []
    for kernel in (1, 3):
        y = net.conv(x, (squeezed, wide), kernel, bias=True, name=f"{name}.expand{kernel}x{kernel}")
        sides.append(net.relu(y, name=f"{name}.expand{kernel}x{kernel}_activation"))
    return net.concat(*sides, name=f"{name}.cat")


def _squeezenet(batch: int, small: bool) -> ModelProto:
    stem, image, classes = (8, 37, 10) if small else (64, 224, 1000)
    # (squeezed, each expansion) of the fire modules; a pooling stands before each group.
    groups = [[(3, 5)], [(4, 7), (4, 7)], [(5, 9)]] if small else None
    groups = groups or [[(16, 64)] * 2, [(32, 128)] * 2, [(48, 192)] * 2 + [(64, 256)] * 2]
    net = Net("squeezenet")
    x = net.input("input", (batch, 3, image, image))
    x = net.relu(net.conv(x, (3, stem), 3, stride=2, pad=0, bias=True, name="features.0"), name="features.1")
    inner, index = stem, 2
    for group in groups:
        x = net.max_pool(x, 3, stride=2, ceil=True, name=f"features.{index}")
        for position, (squeezed, wide) in enumerate(group, start=index + 1):
            x = _fire(net, x, (inner, squeezed, wide), f"features.{position}")
            inner = 2 * wide
        index += len(group) + 1
    x = net.relu(net.conv(x, (inner, classes), 1, bias=True, name="classifier.1"), name="classifier.2")
    x = net.op("GlobalAveragePool", x, name="classifier.3")
    x = net.op("Flatten", x, name="flatten", result="logits", axis=1)
    net.output(x, (batch, classes))
    return net.model()


def _dqn(batch: int, small: bool) -> ModelProto:
    image, widths, hidden, actions = (36, (6, 9, 9), 17, 5) if small else (84, (32, 64, 64), 512, 18)
    net = Net("dqn")
    x = net.input("frames", (batch, 4, image, image))
    inner = 4
    for index, (width, kernel, stride) in enumerate(zip(widths, (8, 4, 3), (4, 2, 1), strict=True), start=1):
        x = net.conv(x, (inner, width), kernel, stride=stride, pad=0, bias=True, name=f"conv{index}")
        x = net.relu(x, name=f"relu{index}")
        inner, image = width, (image - kernel) // stride + 1
    x = net.op("Flatten", x, name="flatten", axis=1)
    x = net.op("Relu", net.linear(x, (inner * image * image, hidden), name="fc1"), name="relu4")
    x = net.linear(x, (hidden, actions), name="fc2", result="q_values")
    net.output(x, (batch, actions))
    return net.model()


SPECS = [
    ModelSpec(
        "resnet18",
        "network",
        "ResNet-18, 3x224x224 (He et al. 2016; torchvision)",
        _resnet("resnet18", _basic_block, [64, 128, 256, 512], [2, 2, 2, 2]),
    ),
    ModelSpec(
        "resnet50",
        "network",
        "ResNet-50, 3x224x224, striding in the 3x3 (He et al. 2016; torchvision)",
        _resnet("resnet50", _bottleneck, [256, 512, 1024, 2048], [3, 4, 6, 3]),
    ),
    ModelSpec("resnet8", "network", "ResNet-8 for CIFAR-10, 3x32x32 (MLPerf Tiny)", _resnet8),
    ModelSpec("squeezenet", "network", "SqueezeNet 1.1, 3x224x224 (Iandola et al. 2016; torchvision)", _squeezenet),
    ModelSpec("dqn", "network", "Deep Q network, 4x84x84 frames, 18 actions (Mnih et al. 2015)", _dqn),
    ModelSpec("resnet3d18", "network", "R3D-18, 3x16x112x112 clips (Tran et al. 2018; torchvision)", _resnet3d18),
]

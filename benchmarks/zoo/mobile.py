"""Networks for phones: MobileNet v1 and v2, ShuffleNet v1."""

from __future__ import annotations

from onnx import ModelProto

from benchmarks.zoo.builder import ModelSpec, Net

# (output channels, stride) of the depthwise-separable blocks (Howard et al. 2017, table 1).
V1_BLOCKS = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
V1_SMALL_BLOCKS = [(9, 1), (17, 2), (17, 1), (24, 2)]

# (expansion, output channels, repeats, stride of the first) of the bottlenecks (Sandler et al. 2018, table 2).
V2_BLOCKS = [
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
]
V2_SMALL_BLOCKS = [(1, 5, 1, 1), (3, 7, 2, 2), (3, 9, 1, 1)]


def _mobilenet_v1(batch: int, small: bool) -> ModelProto:
    if small:
        return _separable("mobilenet_v1", batch, 8, 31, V1_SMALL_BLOCKS, 10)
    return _separable("mobilenet_v1", batch, 32, 224, V1_BLOCKS, 1000)


def _vww96(batch: int, small: bool) -> ModelProto:
    if small:
        return _separable("vww96", batch, 3, 23, [(5, 1), (7, 2)], 2)
    return _separable("vww96", batch, 8, 96, [(outer // 4, stride) for outer, stride in V1_BLOCKS], 2)


def _separable(name: str, batch: int, stem: int, image: int, blocks: list[tuple[int, int]], classes: int) -> ModelProto:
    """A convolution of ``stem`` channels, then depthwise and pointwise ones in turn."""
    net = Net(name)
    x = net.input("input", (batch, 3, image, image))
    x = net.conv(x, (3, stem), 3, stride=2, name="conv1")
    x = net.relu(net.batch_norm(x, name="bn1"), name="relu1")
    inner = stem
    for index, (outer, stride) in enumerate(blocks, start=1):
        block = f"block{index}"
        x = net.conv(x, (inner, inner), 3, stride=stride, groups=inner, name=f"{block}.depthwise")
        x = net.relu(net.batch_norm(x, name=f"{block}.bn1"), name=f"{block}.relu1")
        x = net.conv(x, (inner, outer), 1, name=f"{block}.pointwise")
        x = net.relu(net.batch_norm(x, name=f"{block}.bn2"), name=f"{block}.relu2")
        inner = outer
    net.classifier(x, (inner, classes), batch=batch)
    return net.model()


def _inverted_residual(net: Net, x: str, channels: tuple[int, int], expansion: int, stride: int, name: str) -> str:
    inner, outer = channels
    wide = inner * expansion
    y = x
    if expansion != 1:
        y = net.conv(y, (inner, wide), 1, name=f"{name}.expand")
        y = net.relu6(net.batch_norm(y, name=f"{name}.expand_bn"), name=f"{name}.expand_relu6")
    y = net.conv(y, (wide, wide), 3, stride=stride, groups=wide, name=f"{name}.depthwise")
    y = net.relu6(net.batch_norm(y, name=f"{name}.depthwise_bn"), name=f"{name}.depthwise_relu6")
    y = net.conv(y, (wide, outer), 1, name=f"{name}.project")
    y = net.batch_norm(y, name=f"{name}.project_bn")
    return net.add(x, y, name=f"{name}.add") if stride == 1 and inner == outer else y


def _mobilenet_v2(batch: int, small: bool) -> ModelProto:
    stem, last, image, classes = (6, 17, 29, 10) if small else (32, 1280, 224, 1000)
    net = Net("mobilenet_v2")
    x = net.input("input", (batch, 3, image, image))
    x = net.conv(x, (3, stem), 3, stride=2, name="features.0.0")
    x = net.relu6(net.batch_norm(x, name="features.0.1"), name="features.0.2")
    inner, index = stem, 1
    for expansion, outer, repeats, first_stride in V2_SMALL_BLOCKS if small else V2_BLOCKS:
        for repeat in range(repeats):
            stride = first_stride if repeat == 0 else 1
            x = _inverted_residual(net, x, (inner, outer), expansion, stride, f"features.{index}")
            inner, index = outer, index + 1
    x = net.conv(x, (inner, last), 1, name=f"features.{index}.0")
    x = net.relu6(net.batch_norm(x, name=f"features.{index}.1"), name=f"features.{index}.2")
    net.classifier(x, (last, classes), batch=batch)
    return net.model()


def _shuffle_unit(
    net: Net,
    x: str,
    channels: tuple[int, int],
    shape: tuple[int, int],
    stride: int,
    name: str,
    *,
    groups: tuple[int, int],
) -> str:
    """One unit (Zhang et al. 2018, figure 2 b and c).

    Args:
        shape: batch and edge of the input image.
        groups: of the first 1x1 convolution, and of the shuffle and the last convolution.
    """
    inner, outer = channels
    batch, edge = shape
    middle = outer // 4
    # With stride 2 the shortcut is concatenated, so the branch only makes up the difference.
    branch = outer - inner if stride == 2 else outer
    y = net.conv(x, (inner, middle), 1, groups=groups[0], name=f"{name}.compress")
    y = net.relu(net.batch_norm(y, name=f"{name}.compress_bn"), name=f"{name}.compress_relu")
    y = net.channel_shuffle(y, (batch, middle, edge, edge), groups[1], name=f"{name}.shuffle")
    y = net.conv(y, (middle, middle), 3, stride=stride, groups=middle, name=f"{name}.depthwise")
    y = net.batch_norm(y, name=f"{name}.depthwise_bn")
    y = net.conv(y, (middle, branch), 1, groups=groups[1], name=f"{name}.expand")
    y = net.batch_norm(y, name=f"{name}.expand_bn")
    if stride == 2:
        x = net.average_pool(x, 3, stride=2, pad=1, name=f"{name}.shortcut")
        return net.relu(net.concat(x, y, name=f"{name}.cat"), name=f"{name}.relu")
    return net.relu(net.add(x, y, name=f"{name}.add"), name=f"{name}.relu")


def _shufflenet_v1(batch: int, small: bool) -> ModelProto:
    stem, image, classes, groups = (12, 33, 10, 3) if small else (24, 224, 1000, 3)
    stages = [(24, 2), (48, 2)] if small else [(240, 4), (480, 8), (960, 4)]
    net = Net("shufflenet_v1")
    x = net.input("input", (batch, 3, image, image))
    x = net.conv(x, (3, stem), 3, stride=2, name="conv1")
    x = net.relu(net.batch_norm(x, name="bn1"), name="relu1")
    x = net.max_pool(x, 3, stride=2, pad=1, name="maxpool")
    edge = (((image + 1) // 2) + 1) // 2
    inner = stem
    for stage, (outer, repeats) in enumerate(stages, start=2):
        for unit in range(repeats):
            stride = 2 if unit == 0 else 1
            # "We do not apply group convolution on the first pointwise layer because the number of channels is small."
            first = 1 if stage == 2 and unit == 0 else groups
            name = f"stage{stage}.{unit}"
            x = _shuffle_unit(net, x, (inner, outer), (batch, edge), stride, name, groups=(first, groups))
            inner, edge = outer, (edge + stride - 1) // stride
    net.classifier(x, (inner, classes), batch=batch)
    return net.model()


SPECS = [
    ModelSpec("mobilenet_v1", "network", "MobileNet 1.0, 3x224x224 (Howard et al. 2017)", _mobilenet_v1),
    ModelSpec(
        "mobilenet_v2", "network", "MobileNet v2 1.0, 3x224x224 (Sandler et al. 2018; torchvision)", _mobilenet_v2
    ),
    ModelSpec(
        "vww96",
        "network",
        "Visual wake words: MobileNet 0.25, 3x96x96, 2 classes (MLPerf Tiny; Howard et al. 2017)",
        _vww96,
    ),
    ModelSpec("shufflenet_v1", "network", "ShuffleNet v1 1x, 3 groups, 3x224x224 (Zhang et al. 2018)", _shufflenet_v1),
]

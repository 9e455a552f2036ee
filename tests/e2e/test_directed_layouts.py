"""Whatever reads a tensor that lies in blocks of channels reads the right elements: producers × consumers.

Every producer of blocked tensors feeds every consumer in a chain of its own, so that each pair can fuse as it likes,
and once all of them together, so that one tensor has many readers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.e2e.compiled import assert_same, compiled, network, reference

F = np.float32


@dataclass
class Net:
    """A model that grows."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    feeds: dict[str, np.ndarray] = field(default_factory=dict)
    stored: dict[str, np.ndarray] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)

    def normal(self, *shape: int) -> np.ndarray:
        rng = np.random.default_rng(len(self.stored) + 100 * len(self.feeds))
        return rng.standard_normal(shape).astype(F)

    def const(self, value: np.ndarray) -> str:
        name = f"c{len(self.stored)}"
        self.stored[name] = value
        return name

    def ints(self, *values: int) -> str:
        return self.const(np.array(values, np.int64))

    def add(self, op: str, *operands: str, outputs: int = 1, **attrs: object) -> str:
        name = f"t{len(self.nodes)}"
        names = [name, *[f"{name}_{k}" for k in range(1, outputs)]]
        self.nodes.append(helper.make_node(op, list(operands), names, **attrs))
        return name

    def image(self, channels: int, extent: int = 7) -> str:
        name = f"x{len(self.feeds)}"
        self.feeds[name] = self.normal(2, channels, extent, extent + 1)
        return name

    def give(self, name: str) -> None:
        self.outputs.append(name)


def conv(net: Net, x: str, cin: int, cout: int, kernel: int = 3, groups: int = 1, **attrs: object) -> str:
    w = net.normal(cout, cin // groups, kernel, kernel) / F(np.sqrt(cin // groups) * kernel)
    return net.add("Conv", x, net.const(w), net.const(net.normal(cout)), group=groups, pads=[kernel // 2] * 4, **attrs)


# -- producers: batch 2, `channels` channels, 7 × 8 pixels -----------------------------------------------------------
def after_conv(net: Net, channels: int) -> str:
    return conv(net, net.image(5), 5, channels)


def after_pointwise(net: Net, channels: int) -> str:
    return net.add("Relu", conv(net, net.image(16), 16, channels, 1))


def after_depthwise(net: Net, channels: int) -> str:
    return conv(net, net.image(channels), channels, channels, groups=channels)


def after_max_pool(net: Net, channels: int) -> str:
    return net.add("MaxPool", conv(net, net.image(3), 3, channels), kernel_shape=[3, 3], pads=[1, 1, 1, 1])


def after_average_pool(net: Net, channels: int) -> str:
    y = conv(net, net.image(3), 3, channels)
    return net.add("AveragePool", y, kernel_shape=[2, 2], pads=[0, 0, 1, 1], count_include_pad=1)


def after_resize(net: Net, channels: int) -> str:
    y = conv(net, net.image(3), 3, channels)
    return net.add("Resize", y, "", "", net.ints(2, channels, 7, 8), mode="nearest")


def after_linear_resize(net: Net, channels: int) -> str:
    y = conv(net, net.image(3, 4), 3, channels)
    return net.add("Resize", y, "", "", net.ints(2, channels, 7, 8), mode="linear")


def after_conv_transpose(net: Net, channels: int) -> str:
    w = net.const(net.normal(4, channels, 3, 3))
    return net.add("ConvTranspose", net.image(4), w, pads=[1, 1, 1, 1])


PRODUCERS: dict[str, Callable[[Net, int], str]] = {
    f.__name__: f
    for f in (
        after_conv, after_pointwise, after_depthwise, after_max_pool, after_average_pool, after_resize,
        after_linear_resize, after_conv_transpose,
    )
}  # fmt: skip


# -- consumers --------------------------------------------------------------------------------------------------------
def arg_max(net: Net, y: str, channels: int) -> list[str]:
    return [net.add("ArgMax", y, axis=1), net.add("ArgMin", y, axis=-1, keepdims=0)]


def reduce(net: Net, y: str, channels: int) -> list[str]:
    over = [net.add("ReduceMean", y, net.ints(*axes), keepdims=k) for axes, k in (((2, 3), 1), ((1,), 1), ((0, 3), 0))]
    return [*over, net.add("ReduceMax", y, net.ints(0, 1, 2, 3), keepdims=0)]


def squeeze(net: Net, y: str, channels: int) -> list[str]:
    pooled = net.add("GlobalAveragePool", y)
    return [net.add("Squeeze", pooled, net.ints(2, 3)), net.add("Squeeze", net.add("GlobalMaxPool", y))]


def reshape(net: Net, y: str, channels: int) -> list[str]:
    return [net.add("Reshape", y, net.ints(2, -1)), net.add("Flatten", y), net.add("Reshape", y, net.ints(0, 0, -1))]


def cut(net: Net, y: str, channels: int) -> list[str]:
    spatial = net.add("Slice", y, net.ints(1, -1), net.ints(6, -9), net.ints(2, 3), net.ints(2, -1))
    middle = net.add("Slice", y, net.ints(1), net.ints(channels - 1), net.ints(1))
    backwards = net.add("Slice", y, net.ints(-1), net.ints(-channels - 1), net.ints(1), net.ints(-1))
    return [spatial, middle, backwards]


def split(net: Net, y: str, channels: int) -> list[str]:
    first = net.add("Split", y, net.ints(3, channels - 3), outputs=2, axis=1)
    return [net.add("Relu", first), net.add("Neg", f"{first}_1")]


def concat(net: Net, y: str, channels: int) -> list[str]:
    other = conv(net, net.image(3), 3, 16)
    return [
        net.add("Concat", y, other, axis=1),
        net.add("Concat", other, y, net.image(3), axis=1),
        net.add("Concat", y, y, axis=2),
    ]


def broadcast_add(net: Net, y: str, channels: int) -> list[str]:
    given = [net.normal(channels, 1, 1), net.normal(8), net.normal(1, channels, 7, 8), net.normal(1)]
    row = net.add("ReduceMean", y, net.ints(3), keepdims=1)
    return [*[net.add("Add", y, net.const(c)) for c in given], net.add("Add", row, y)]


def gate(net: Net, y: str, channels: int) -> list[str]:
    """Squeeze and excitation."""
    inner = net.add("Relu", conv(net, net.add("GlobalAveragePool", y), channels, 8, 1))
    return [net.add("Mul", y, net.add("Sigmoid", conv(net, inner, 8, channels, 1)))]


def residual(net: Net, y: str, channels: int) -> list[str]:
    x = conv(net, net.image(3), 3, channels)
    return [net.add("Relu", net.add("Add", conv(net, y, channels, channels), x)), net.add("Mul", y, x)]


def softmax(net: Net, y: str, channels: int) -> list[str]:
    return [net.add("Softmax", y, axis=axis) for axis in (1, 3)]


def transpose(net: Net, y: str, channels: int) -> list[str]:
    tokens = net.add("Transpose", net.add("Reshape", y, net.ints(0, 0, -1)), perm=[0, 2, 1])
    product = net.add("MatMul", tokens, net.const(net.normal(channels, 9)))
    return [net.add("Transpose", y, perm=[0, 2, 3, 1]), tokens, product]


def normalise(net: Net, y: str, channels: int) -> list[str]:
    scale, bias = net.const(net.normal(channels)), net.const(net.normal(channels))
    instance = net.add("InstanceNormalization", y, scale, bias)
    # a global response norm: squares summed up over space, their mean over all channels
    length = net.add("ReduceL2", y, net.ints(2, 3), keepdims=1)
    mean = net.add("ReduceMean", length, net.ints(1), keepdims=1)
    response = net.add("Mul", y, net.add("Div", length, net.add("Add", mean, net.const(np.array(1e-6, F)))))
    nodes = [instance, net.add("LRN", y, size=3), net.add("Add", y, response)]
    if channels % 2 == 0:
        nodes.append(net.add("GroupNormalization", y, scale, bias, num_groups=2))
    if channels % 4 == 0:
        nodes.append(net.add("GroupNormalization", y, scale, bias, num_groups=channels // 4))
        nodes.append(net.add("LayerNormalization", y, net.const(net.normal(channels, 7, 8)), axis=1))
    return nodes


def shuffle(net: Net, y: str, channels: int) -> list[str]:
    """Depth to space, and channel shuffle."""
    if channels % 4:
        return [net.add("SpaceToDepth", net.add("Pad", y, net.ints(0, 0, 0, 0, 0, 0, 1, 0)), blocksize=2)]
    parts = net.add("Reshape", y, net.ints(2, 4, channels // 4, 7, 8))
    turned = net.add("Transpose", parts, perm=[0, 2, 1, 3, 4])
    return [net.add("Reshape", turned, net.ints(2, channels, 7, 8)), net.add("DepthToSpace", y, blocksize=2)]


def pad(net: Net, y: str, channels: int) -> list[str]:
    return [
        net.add("Pad", y, net.ints(0, 1, 0, 2, 0, 0, 1, -1), net.const(np.array(3, F))),
        net.add("Pad", y, net.ints(0, 0, 1, 1, 0, 0, 2, 2), mode="reflect"),
    ]


def window(net: Net, y: str, channels: int) -> list[str]:
    return [
        net.add("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
        net.add("AveragePool", y, kernel_shape=[1, 3], pads=[0, 1, 0, 1]),
        conv(net, y, channels, channels, groups=channels, strides=[2, 1]),
        conv(net, y, channels, 3),
    ]


def opaque(net: Net, y: str, channels: int) -> list[str]:
    """Routines that know nothing of layouts."""
    top = net.add("TopK", y, net.ints(2), outputs=2, axis=1)
    return [top, f"{top}_1", net.add("CumSum", y, net.const(np.array(1, np.int64)))]


def gather(net: Net, y: str, channels: int) -> list[str]:
    order = net.const(np.array([channels - 1, 0, -2], np.int64))
    return [net.add("Gather", y, order, axis=1), net.add("Gather", y, net.const(np.array(1, np.int64)), axis=0)]


CONSUMERS: dict[str, Callable[[Net, str, int], list[str]]] = {
    f.__name__: f
    for f in (
        arg_max, reduce, squeeze, reshape, cut, split, concat, broadcast_add, gate, residual, softmax, transpose,
        normalise, shuffle, pad, window, opaque, gather,
    )
}  # fmt: skip
CHANNELS = (16, 17, 32, 9)


def assert_agrees(net: Net, **options: object) -> None:
    model = network(net.nodes, net.feeds, net.outputs, net.stored)
    want = reference(model, net.feeds)
    assert_same(compiled(model, net.feeds, **options), want, tolerance=1e-5)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("producer", PRODUCERS)
def test_one_tensor_with_every_reader(producer: str) -> None:
    net = Net()
    channels = CHANNELS[list(PRODUCERS).index(producer) % len(CHANNELS)]
    y = PRODUCERS[producer](net, channels)
    for consumer in CONSUMERS.values():
        net.outputs += consumer(net, y, channels)
    net.give(y)
    assert_agrees(net)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("producer", PRODUCERS)
def test_every_reader_with_a_chain_of_its_own(producer: str) -> None:
    net = Net()
    for k, consumer in enumerate(CONSUMERS.values()):
        channels = CHANNELS[(k + list(PRODUCERS).index(producer)) % len(CHANNELS)]
        net.outputs += consumer(net, PRODUCERS[producer](net, channels), channels)
    assert_agrees(net)


@pytest.mark.slow
@pytest.mark.parametrize("cpu", ["haswell", "x86-64"])
@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("producer", PRODUCERS)
def test_every_reader_and_width_and_processor(producer: str, channels: int, cpu: str) -> None:
    net = Net()
    for consumer in CONSUMERS.values():
        net.outputs += consumer(net, PRODUCERS[producer](net, channels), channels)
    assert_agrees(net, target=f"x86 -mcpu={cpu}")


@pytest.mark.parametrize("spatial", [1, 3])
def test_blocked_chains_in_one_and_three_dimensions(spatial: int) -> None:
    """Convolutions, pools, a residual sum and a concatenation, along one axis and over three."""
    net = Net()
    extents = (13,) if spatial == 1 else (4, 5, 3)
    net.feeds["x"] = net.normal(2, 6, *extents)

    def layer(x: str, cin: int, cout: int, **attrs: object) -> str:
        w = net.const(net.normal(cout, cin, *[3] * spatial) / F(4))
        return net.add("Conv", x, w, pads=[1] * (2 * spatial), **attrs)

    a = net.add("Relu", layer("x", 6, 17))
    b = net.add("MaxPool", a, kernel_shape=[3] * spatial, pads=[1] * (2 * spatial))
    c = net.add("Add", layer(b, 17, 17), a)
    d = net.add("Concat", c, layer(a, 17, 16), axis=1)
    net.outputs += [net.add("GlobalAveragePool", d), layer(d, 33, 8, strides=[2] * spatial), c]
    assert_agrees(net)


def test_runtime_weights() -> None:
    """Weights that are inputs cannot be packed: the same shapes, unpacked."""
    net = Net()
    x = net.image(9)
    net.feeds |= {"w": net.normal(32, 9, 3, 3), "v": net.normal(32, 32, 1, 1), "m": net.normal(8, 16)}
    y = net.add("Relu", net.add("Conv", x, "w", pads=[1, 1, 1, 1]))
    z = net.add("Add", net.add("Conv", y, "v"), y)
    net.outputs += [z, net.add("MatMul", z, "m")]
    assert_agrees(net)


def test_weights_that_are_shared_computed_and_given_back() -> None:
    """One constant as the weights of two layers, as an operand, as an output, and as an input to a computation."""
    net = Net()
    x = net.image(16)
    w = net.const(net.normal(16, 16, 3, 3))
    y = net.add("Conv", net.add("Conv", x, w, pads=[1, 1, 1, 1]), w, pads=[1, 1, 1, 1], dilations=[1, 1])
    doubled = net.add("Mul", w, net.const(np.array(2, F)))
    net.outputs += [y, net.add("Conv", x, doubled), net.add("ReduceSum", w, net.ints(1)), doubled]
    net.give(net.add("Identity", w))
    assert_agrees(net)


def test_convolution_of_a_tensor_with_itself() -> None:
    net = Net()
    net.feeds["x"] = net.normal(9, 9, 3, 3)
    net.outputs += [net.add("Conv", "x", "x", pads=[1, 1, 1, 1]), net.add("ConvTranspose", "x", "x")]
    assert_agrees(net)


def test_weights_of_one_element() -> None:
    """A constant of one element becomes a literal, and the layer has one operand."""
    net = Net()
    x = net.image(1)
    w = net.const(np.full((1, 1, 1, 1), 2.5, F))
    net.outputs += [
        net.add("Conv", x, w),
        net.add("ConvTranspose", x, w, strides=[2, 2]),
        net.add("Conv", x, w, group=1),
    ]
    net.feeds["m"] = net.normal(5, 1)
    matrix, vector = net.const(np.full((1, 1), 3, F)), net.const(np.full((1,), 3, F))
    net.outputs += [net.add("MatMul", "m", matrix), net.add("MatMul", vector, net.add("Transpose", "m"))]
    assert_agrees(net)


@pytest.mark.parametrize(
    "options", [{}, {"opt_level": 0}, {"disabled_passes": ("fold",)}], ids=["O3", "O0", "unfolded"]
)
def test_product_of_a_matrix_with_itself(options: dict[str, object]) -> None:
    """Gram matrices: the operand is read along rows and along columns; a square; a constant one."""
    net = Net()
    net.feeds |= {"a": net.normal(5, 33), "s": net.normal(17, 17), "b": net.normal(3, 4, 6), "one": net.normal(1, 1)}
    c = net.const(net.normal(33, 33))
    for x, perm in (("a", [1, 0]), ("b", [0, 2, 1]), ("one", [1, 0]), (c, [1, 0])):
        turned = net.add("Transpose", x, perm=perm)
        net.outputs += [net.add("MatMul", x, turned), net.add("MatMul", turned, x)]
    net.outputs += [net.add("MatMul", "s", "s"), net.add("Gemm", "s", "s", transA=1, transB=1), net.add("MatMul", c, c)]
    assert_agrees(net, **options)

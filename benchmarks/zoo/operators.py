"""Single operators that the papers measure: convolutions of TVM's table 2, matrix products of OpEvo's appendix B."""

from __future__ import annotations

from onnx import ModelProto

from benchmarks.zoo.builder import ModelSpec, Net

# TVM (Chen et al. 2018), table 2: name, height and width, input channels, output channels, kernel, stride.
CONVOLUTIONS = [
    ("C1", 224, 3, 64, 7, 2),
    ("C2", 56, 64, 64, 3, 1),
    ("C3", 56, 64, 64, 1, 1),
    ("C4", 56, 64, 128, 3, 2),
    ("C5", 56, 64, 128, 1, 2),
    ("C6", 28, 128, 128, 3, 1),
    ("C7", 28, 128, 256, 3, 2),
    ("C8", 28, 128, 256, 1, 2),
    ("C9", 14, 256, 256, 3, 1),
    ("C10", 14, 256, 512, 3, 2),
    ("C11", 14, 256, 512, 1, 2),
    ("C12", 7, 512, 512, 3, 1),
]
# The same table: name, height and width, channels, stride; the kernel is 3x3.
DEPTHWISE = [
    ("D1", 112, 32, 1),
    ("D2", 112, 64, 2),
    ("D3", 56, 128, 1),
    ("D4", 56, 128, 2),
    ("D5", 28, 256, 1),
    ("D6", 28, 256, 2),
    ("D7", 14, 512, 1),
    ("D8", 14, 512, 2),
    ("D9", 7, 1024, 1),
]
# OpEvo (Gao et al. 2021), appendix B.1: name, rows, inner, columns.
MATMULS = [("MM1", 512, 1024, 1024), ("MM2", 512, 1024, 4096), ("MM3", 512, 4096, 1024)]
# Appendix B.2: name, shape of x, shape of y, and which of them is transposed; BMM3 is the scores of an attention.
BATCH_SIZE = 960
BATCH_MATMULS = [
    ("BMM1", (128, 128), (128, 64), ""),
    ("BMM2", (128, 128), (128, 64), "x"),
    ("BMM3", (128, 64), (128, 64), "y"),
]


def _few(size: int) -> int:
    """An odd stand-in for a number of channels or rows, mostly a little more than a vector of 16; it grows with it."""
    return size if size < 8 else 2 * size.bit_length() + 3


def _narrow(edge: int) -> int:
    """A small odd stand-in for the edge of an image."""
    return max(edge // 8, 5) | 1


def _conv(name: str, edge: int, inner: int, outer: int, kernel: int, stride: int, *, depthwise: bool) -> ModelSpec:
    def build(batch: int, small: bool) -> ModelProto:
        n, i, o = (_narrow(edge), _few(inner), _few(outer)) if small else (edge, inner, outer)
        net = Net(name)
        x = net.input("x", (batch, i, n, n))
        groups = i if depthwise else 1
        y = net.conv(x, (i, o), kernel, stride=stride, groups=groups, name="conv", result="y")
        # The "SAME" padding of the table: as many rows out as steps fit into the image.
        m = (n + stride - 1) // stride
        net.output(y, (batch, o, m, m))
        return net.model()

    what = "depthwise convolution" if depthwise else "convolution"
    text = f"{what} {edge}x{edge}, {inner} -> {outer}, {kernel}x{kernel}, stride {stride} (TVM, table 2)"
    return ModelSpec(name, "operator", text, build)


def _matmul(name: str, rows: int, inner: int, columns: int) -> ModelSpec:
    def build(batch: int, small: bool) -> ModelProto:
        n, k, m = (_few(rows), _few(inner), _few(columns)) if small else (rows, inner, columns)
        net = Net(name)
        x = net.input("x", (batch * n, k))
        weight = net.constant("weight", net.normal((k, m), k**-0.5))
        net.output(net.op("MatMul", x, weight, name="matmul", result="y"), (batch * n, m))
        return net.model()

    return ModelSpec(name, "operator", f"matrix product {rows}x{inner}x{columns}, constant weight (OpEvo, B.1)", build)


def _batch_matmul(name: str, left: tuple[int, int], right: tuple[int, int], transposed: str) -> ModelSpec:
    def build(batch: int, small: bool) -> ModelProto:
        count = batch * (3 if small else BATCH_SIZE)
        shapes = {
            operand: tuple(_few(size) if small else size for size in shape)
            for operand, shape in (("x", left), ("y", right))
        }
        net = Net(name)
        operands = {operand: net.input(operand, (count, *shape)) for operand, shape in shapes.items()}
        if transposed:
            operands[transposed] = net.op("Transpose", transposed, name=f"transpose_{transposed}", perm=(0, 2, 1))
            shapes[transposed] = shapes[transposed][::-1]
        z = net.op("MatMul", operands["x"], operands["y"], name="matmul", result="z")
        net.output(z, (count, shapes["x"][0], shapes["y"][1]))
        return net.model()

    size = " times ".join(
        f"{shape[0]}x{shape[1]}{' transposed' if operand == transposed else ''}"
        for operand, shape in (("x", left), ("y", right))
    )
    return ModelSpec(name, "operator", f"{BATCH_SIZE} products {size} (OpEvo, B.2)", build)


SPECS = [
    *(_conv(*row, depthwise=False) for row in CONVOLUTIONS),
    *(_conv(name, edge, channels, channels, 3, stride, depthwise=True) for name, edge, channels, stride in DEPTHWISE),
    *(_matmul(*row) for row in MATMULS),
    *(_batch_matmul(*row) for row in BATCH_MATMULS),
]

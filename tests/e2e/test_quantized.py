"""Quantised models compiled: integers as numpy computes them, bit by bit, by every instruction that there is here."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import mlc
from mlc.cli.main import run
from mlc.errors import DeviceError
from mlc.ir.interp import run_graph
from mlc.targets.base import get_target
from tests.e2e import integers
from tests.e2e.compiled import compiled, load, network, run_here

# processors by the instruction that they sum up products of bytes with
CPUS = ("sapphirerapids", "znver4", "skylake-avx512", "alderlake", "haswell", "x86-64")


@dataclass(frozen=True)
class Case:
    """A convolution ``[n, c, h, w]`` by ``[o, c / groups, k, k]`` of quantised numbers."""

    c: int
    o: int
    k: int = 3
    size: tuple[int, int] = (6, 7)
    n: int = 1
    stride: int = 1
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)
    groups: int = 1
    zero: int = 0
    out_zero: int = 0
    dtype: type = np.uint8
    relu: bool = False
    small: bool = False  # weights, of i7


CASES = {
    "one channel": Case(1, 16),
    "one channel, zero point": Case(1, 17, zero=255),
    "three": Case(3, 16, k=7, size=(17, 15), stride=2, pads=(3, 3, 3, 3), zero=114),
    "five, row-major": Case(5, 7, zero=3),
    "seventeen": Case(17, 24, out_zero=128),
    "twenty of a block": Case(20, 20, size=(2, 2)),
    "blocks": Case(32, 48, size=(9, 5), n=2, relu=True),
    "blocks, zero point": Case(32, 33, zero=1, pads=(0, 2, 1, 0)),
    "pixels": Case(32, 64, k=1, pads=(0, 0, 0, 0), zero=77),
    "pixels of five": Case(5, 16, k=1, pads=(0, 0, 0, 0)),
    "pixels, stride": Case(24, 32, k=1, stride=2, pads=(0, 0, 0, 0), zero=9),
    "groups": Case(32, 64, groups=2, n=2, zero=200),
    "groups of three": Case(9, 18, groups=3),
    "groups read in whole instructions": Case(60, 96, k=1, pads=(0, 0, 0, 0), groups=3, zero=3),
    "zeros between groups": Case(42, 60, size=(5, 4), groups=3, zero=200),
    "half a block": Case(24, 32, k=1, pads=(0, 0, 0, 0)),
    "depthwise": Case(20, 20, groups=20, stride=2, zero=5),
    "signed": Case(16, 16, zero=-128, dtype=np.int8, out_zero=127),
    "signed, zero point": Case(7, 16, zero=-3, dtype=np.int8, out_zero=-128, relu=True),
}


def convolution(case: Case) -> tuple[onnx.ModelProto, np.ndarray, np.ndarray]:
    """A model in QDQ form, what it is fed, and what integers say that it gives."""
    rng = np.random.default_rng(case.c * 100 + case.o)
    info = np.iinfo(case.dtype)
    shapes = (case.n, case.c, *case.size), (case.o, case.c // case.groups, case.k, case.k)
    if case.small:  # with sums of two products that are as great as possible among them
        x = rng.choice(np.array([info.min, info.max - 1, info.max], case.dtype), shapes[0])
        w = np.clip(rng.integers(-90, 90, shapes[1]), -64, 64).astype(np.int8)
    else:
        x = rng.integers(info.min, info.max, shapes[0], case.dtype, endpoint=True)
        w = rng.integers(-128, 127, shapes[1], np.int8, endpoint=True)
    bias = rng.integers(-5000, 5000, case.o, np.int32)
    ws = rng.uniform(0.001, 0.002, case.o).astype(np.float32)
    xs, ys = np.float32(0.02), np.float32(0.02 * 0.0015 * 40 * np.sqrt(w[0].size))
    bs = xs * ws
    window = {"strides": [case.stride] * 2, "pads": list(case.pads), "group": case.groups}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], axis=0),
        helper.make_node("DequantizeLinear", ["b", "bs", "bz"], ["bf"], axis=0),
        helper.make_node("Conv", ["xf", "wf", "bf"], ["yf"], **window),
        *([helper.make_node("Relu", ["yf"], ["rf"])] if case.relu else []),
        helper.make_node("QuantizeLinear", ["rf" if case.relu else "yf", "ys", "yz"], ["y"]),
    ]
    stored = {
        "xs": xs, "xz": case.dtype(case.zero), "w": w, "ws": ws, "wz": np.zeros(case.o, np.int8), "b": bias, "bs": bs,
        "bz": np.zeros(case.o, np.int32), "ys": ys, "yz": case.dtype(case.out_zero),
    }  # fmt: skip
    attrs = {"pads": case.pads, "strides": (case.stride,) * 2, "dilations": (1, 1), "groups": case.groups}
    sums = integers.conv(x.astype(np.int32) - case.zero, w, attrs) + bias.reshape(-1, 1, 1)
    factor = (bs / ys).astype(np.float32).reshape(-1, 1, 1)
    steps = np.rint(sums.astype(np.float32) * factor)
    steps = np.maximum(steps, 0) if case.relu else steps
    y = np.clip(steps + case.out_zero, info.min, info.max).astype(case.dtype)
    return network(nodes, {"x": x}, ["y"], stored), x, y


@pytest.mark.sweep(8)
@pytest.mark.parametrize("name", CASES)
def test_convolutions(name):
    model, x, expected = convolution(CASES[name])
    assert len(np.unique(expected)) > 10
    np.testing.assert_array_equal(compiled(model, {"x": x})["y"], expected)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", ["three", "groups", "seventeen", "pixels, stride", "signed, zero point"])
def test_convolutions_by_other_instructions(name, cpu):
    model, x, expected = convolution(CASES[name])
    try:
        got = compiled(model, {"x": x}, target=f"x86 -mcpu={cpu}")["y"]
    except DeviceError as error:
        pytest.skip(error.message)
    np.testing.assert_array_equal(got, expected)


# by a unit for whole matrices, by what these are read from
MATRICES = {
    "image": Case(64, 64, size=(14, 14), zero=3),
    "image, channels that fill no matrix": Case(100, 40, size=(9, 10), n=2, zero=200, relu=True),
    "image, pixels": Case(64, 96, k=1, size=(14, 14), pads=(0, 0, 0, 0), n=2),
    "image, stride": Case(64, 64, size=(27, 28), stride=2, zero=9),
    "image, signed": Case(128, 32, size=(12, 12), zero=-5, dtype=np.int8, out_zero=4),
    "gathered": Case(256, 128, size=(7, 7), n=2, zero=77),
    "gathered, stride": Case(64, 40, size=(14, 13), stride=2, zero=9, relu=True),
    "gathered, pixels": Case(72, 64, k=1, size=(7, 7), pads=(0, 0, 0, 0)),
    "gathered, 5x5": Case(64, 64, k=5, size=(9, 17), pads=(2, 2, 2, 2), zero=1),
    "runs": Case(3, 64, k=7, size=(64, 64), stride=2, pads=(3, 3, 3, 3), zero=114),
    "runs of five": Case(5, 32, size=(32, 33), n=2, zero=114),
}


AMX = {"ldtilecfg": 1, "tilezero": 4, "tileloadd": 4, "tdpbusd": 4, "tilestored": 4}  # instructions of a kernel


@pytest.mark.parametrize("name", MATRICES)
def test_convolutions_by_matrices(name):
    model, x, expected = convolution(MATRICES[name])
    package = mlc.compile(load(model), "x86 -mcpu=sapphirerapids", verify_passes=True)
    text = package.members["src/kernels.txt"].decode()
    assert "tdpbusd." in text
    assert ("gathered" in text) == name.startswith("gathered")
    assert ("rows: u8" in text) == name.startswith("runs")
    try:
        got = run_here(package, {"x": x})["y"]
    except DeviceError as error:
        pytest.skip(error.message)
    np.testing.assert_array_equal(got, expected)


def test_registers_of_matrices_are_configured_once_and_stay_where_they_are():
    """Two by two sums, two matrices of data and two of weights: eight registers, and none is moved."""
    model, _, _ = convolution(MATRICES["image"])
    target = get_target("x86 -mcpu=sapphirerapids")
    package = mlc.compile(load(model), "x86 -mcpu=sapphirerapids")
    text = target.assembly({"model.ll": package.members["src/model.ll"].decode()})
    counts = {what: len(re.findall(rf"\b{what}\b", text)) for what in AMX}
    assert counts == AMX


@pytest.mark.sweep(8)
@pytest.mark.parametrize("cpu", ["skylake-avx512", "haswell", "nehalem"])
@pytest.mark.parametrize(
    "name", ["one channel", "three", "seventeen", "blocks", "pixels, stride", "pixels of five", "groups", "signed"]
)
def test_small_weights_are_multiplied_by_bytes(name, cpu):
    """Exactly: no sum of two products saturates."""
    model, x, expected = convolution(replace(CASES[name], small=True))
    assert len(np.unique(expected)) > 10
    package = mlc.compile(load(model), f"x86 -mcpu={cpu}", verify_passes=True)
    assert b"vpmaddubsw." in package.members["src/kernels.txt"]
    np.testing.assert_array_equal(run_here(package, {"x": x})["y"], expected)


@pytest.mark.parametrize("cpu", ["skylake-avx512", "haswell", "x86-64"])
def test_winograd_in_words_is_exact(cpu, tmp_path):
    """Of processors that multiply pairs of words; those that multiply bytes by fours have no need of it."""
    model, x, expected = convolution(Case(32, 32, size=(13, 15), zero=0, relu=True))
    onnx.save(model, tmp_path / "m.onnx")
    package = mlc.compile(mlc.load(tmp_path / "m.onnx"), f"x86 -mcpu={cpu}")
    assert any("conv_winograd" in step.kernel for step in package.manifest.steps if step.kernel)
    np.testing.assert_array_equal(run_here(package, {"x": x})["y"], expected)


@pytest.mark.parametrize(("cpu", "batch"), [("znver4", 1), ("haswell", 9)])
def test_recurrences_in_bytes(cpu, batch, tmp_path):
    """What every step multiplies is in bytes, or in words where rows are many, like all around it."""
    steps, size, cells = 3, 6, 7
    rng = np.random.default_rng(5)
    w, r = (rng.standard_normal((1, 4 * cells, k)).astype(np.float32) / 2 for k in (size, cells))
    nodes = [helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=cells)]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (steps, batch, size))
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    stored = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(r, "r")]
    graph = helper.make_graph(nodes, "net", [x], [y], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), tmp_path / "m.onnx")
    samples = rng.standard_normal((5, steps, batch, size)).astype(np.float32)
    target = f"x86 -mcpu={cpu}"
    found = mlc.quantize(mlc.load(tmp_path / "m.onnx"), {"x": samples}, target)
    assert found.products == 2
    package = mlc.compile(found.model, target)
    narrow = "i16" if cpu == "haswell" else "u8"
    text = package.members["graph.txt"].decode()
    assert narrow in re.search(r"@graph round.*?= matmul\((%\S+),", text, re.S)[0].rsplit("group(", 1)[1]
    (wanted,) = run_graph(found.model.graph, {"x": samples[0]}).values()
    try:
        with package.load(1) as module:
            (got,) = module.run({"x": samples[0]}).values()
    except DeviceError as error:
        pytest.skip(error.message)
    np.testing.assert_allclose(got, wanted, atol=1e-5)


# kernel, stride, padding before and behind, size, channels, zero point in between
WINDOWS = {
    "3x3": ((3, 3), 1, 1, 1, (9, 7), 32, 0),
    "stride, ends within a window": ((3, 3), 2, 0, 1, (8, 12), 20, 0),
    "no border": ((3, 3), 1, 0, 0, (13, 6), 17, 0),
    "border of a zero point": ((3, 3), 1, 1, 1, (6, 8), 32, 13),
    "one row": ((1, 3), 1, 0, 1, (3, 11), 16, 0),
    "two taps": ((2, 2), 2, 0, 0, (6, 6), 16, 0),
    "5x5": ((5, 5), 1, 2, 2, (7, 10), 24, 0),
    "7x7": ((7, 7), 2, 3, 3, (15, 14), 16, 0),
    "one pixel": ((3, 3), 1, 1, 1, (1, 1), 16, 0),
}


@pytest.mark.sweep(6)
@pytest.mark.parametrize("cpu", ["native", "haswell"])
@pytest.mark.parametrize("name", WINDOWS)
def test_depthwise_windows_behind_blocks(name, cpu):
    kernel, stride, before, behind, size, channels, zero = WINDOWS[name]
    rng = np.random.default_rng(channels)
    x = rng.integers(0, 256, (1, 16, *size), np.uint8)
    a = rng.integers(-128, 128, (channels, 16, 1, 1), np.int8)
    d = rng.integers(-128, 128, (channels, 1, *kernel), np.int8)
    stored = {
        "s": np.float32(1), "z": np.uint8(0), "a": a, "as": np.full(channels, 2**-9, np.float32), "d": d,
        "ds": np.full(channels, 2**-6, np.float32), "az": np.zeros(channels, np.int8), "m": np.uint8(zero),
    }  # fmt: skip
    pads = [min(before, kernel[0] // 2), before, min(behind, kernel[0] // 2), behind]
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["xf"]),
        helper.make_node("DequantizeLinear", ["a", "as", "az"], ["af"], axis=0),
        helper.make_node("DequantizeLinear", ["d", "ds", "az"], ["df"], axis=0),
        helper.make_node("Conv", ["xf", "af"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "s", "m"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "m"], ["qf"]),
        helper.make_node("Conv", ["qf", "df"], ["v"], group=channels, strides=[stride] * 2, pads=pads),
        helper.make_node("QuantizeLinear", ["v", "s", "m"], ["y"]),
    ]
    # scales are powers of two, so nothing is rounded before the two steps that round
    inner = integers.conv(x, a, {"pads": (0,) * 4, "strides": (1, 1), "dilations": (1, 1), "groups": 1})
    q = np.clip(np.rint(inner * 2.0**-9) + zero, 0, 255).astype(np.int32) - zero
    sums = integers.conv(q, d, {"pads": pads, "strides": (stride,) * 2, "dilations": (1, 1), "groups": channels})
    expected = np.clip(np.rint(sums * 2.0**-6) + zero, 0, 255).astype(np.uint8)
    model = network(nodes, {"x": x}, ["y"], stored)
    try:
        got = compiled(model, {"x": x}, target=f"x86 -mcpu={cpu}")["y"]
    except DeviceError as error:
        pytest.skip(error.message)
    assert len(np.unique(expected)) > 1
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("parts", [(24, 40), (20, 44), (16, 32), (3, 30)])
def test_bytes_are_joined_wherever_channels_end(parts):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (1, 16, 5, 6), np.uint8)
    weights = [rng.integers(-128, 128, (n, 16, 1, 1), np.int8) for n in parts]
    stored = {"s": np.float32(1), "z": np.uint8(0), "ws": np.float32(2**-9), "wz": np.int8(0)}
    nodes = [helper.make_node("DequantizeLinear", ["x", "s", "z"], ["xf"])]
    for k, w in enumerate(weights):
        stored[f"w{k}"] = w
        nodes += [
            helper.make_node("DequantizeLinear", [f"w{k}", "ws", "wz"], [f"wf{k}"]),
            helper.make_node("Conv", ["xf", f"wf{k}"], [f"c{k}"]),
            helper.make_node("QuantizeLinear", [f"c{k}", "s", "z"], [f"q{k}"]),
            helper.make_node("DequantizeLinear", [f"q{k}", "s", "z"], [f"f{k}"]),
        ]
    nodes += [
        helper.make_node("Concat", ["f0", "f1"], ["joined"], axis=1),
        helper.make_node("QuantizeLinear", ["joined", "s", "z"], ["y"]),
    ]
    window = {"pads": (0,) * 4, "strides": (1, 1), "dilations": (1, 1), "groups": 1}
    expected = [np.clip(np.rint(integers.conv(x, w, window) * 2.0**-9), 0, 255) for w in weights]
    got = compiled(network(nodes, {"x": x}, ["y"], stored), {"x": x})["y"]
    np.testing.assert_array_equal(got, np.concatenate(expected, 1).astype(np.uint8))


def test_threads_share_them():
    model, x, expected = convolution(replace(CASES["blocks"], size=(20, 20)))
    np.testing.assert_array_equal(compiled(model, {"x": x}, threads=2)["y"], expected)


@pytest.mark.parametrize("cpu", ["native", "haswell"])
@pytest.mark.parametrize(
    ("m", "k", "n"), [(1, 5, 17), (3, 64, 10), (20, 33, 64), (7, 3, 1), (33, 48, 100), (1, 16, 1000)]
)
def test_matrix_products(m, k, n, cpu):
    rng = np.random.default_rng(m)
    x = rng.integers(0, 256, (m, k), np.uint8)
    w = rng.integers(-128, 128, (k, n), np.int8)
    ws, ys = rng.uniform(0.01, 0.02, n).astype(np.float32), np.float32(np.sqrt(k) * 1.5)
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "ws"], ["wf"], axis=1),
        helper.make_node("MatMul", ["xf", "wf"], ["yf"]),
        helper.make_node("QuantizeLinear", ["yf", "ys", "yz"], ["y"]),
    ]
    stored = {"xs": np.float32(0.5), "xz": np.uint8(130), "w": w, "ws": ws, "ys": ys, "yz": np.int8(-3)}
    model = network(nodes, {"x": x}, ["y"], stored)
    sums = (x.astype(np.int32) - 130) @ w.astype(np.int32)
    steps = np.rint(sums.astype(np.float32) * ((np.float32(0.5) * ws) / ys).astype(np.float32))
    expected = np.clip(steps - 3, -128, 127).astype(np.int8)
    got = compiled(model, {"x": x}, target=f"x86 -mcpu={cpu}")["y"]
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("cpu", "case", "said"),
    [
        ("znver4", "three", False),
        ("haswell", "three", False),
        ("znver4", "one channel", True),  # an instruction sums up four, three of them padding
        ("znver4", "five, row-major", True),
        ("znver4", "depthwise", False),
        ("haswell", "one channel", True),
        ("haswell", "depthwise", True),  # every tap takes as long as one of floats
    ],
)
def test_compile_says_where_bytes_do_not_pay(cpu, case, said, tmp_path, capsys):
    model, *_ = convolution(CASES[case])
    onnx.save(model, tmp_path / "m.onnx")
    arguments = ["compile", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.tar"), "--target", f"x86 -mcpu={cpu}"]
    assert run(arguments) == 0
    told = capsys.readouterr().err
    assert (f"1 of 1 products of 8-bit integers may be slower than in floats on {cpu}: " in told) == said


def test_floats_get_no_notice(tmp_path):
    x = np.ones((2, 16), np.float32)
    model = network(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": x}, ["y"], {"w": np.ones((16, 8), np.float32)}
    )
    onnx.save(model, tmp_path / "m.onnx")
    assert mlc.compile(mlc.load(tmp_path / "m.onnx"), "x86 -mcpu=haswell").notices == ()

"""Weights in small types, compiled for vectors of several widths, against onnxruntime with the same numbers in f32."""

from __future__ import annotations

import llvmlite.binding as llvm
import numpy as np
import pytest
from onnx import helper

import mlc
from mlc.api.losses import losses, losses_by_layer
from mlc.ir.types import bf16
from tests.e2e.compiled import assert_same, compiled, load, network, reference, run_here

HAS_AVX2, HAS_BF16 = (llvm.get_host_cpu_features().get(name, False) for name in ("avx2", "avx512bf16"))
TARGETS = ["x86", "x86 -mcpu=x86-64", *(["x86 -mcpu=haswell"] if HAS_AVX2 else [])]
SHAPES = [(17, 33, 97), (1, 38, 131), (1, 1, 1), (3, 64, 48), (1, 257, 640)]  # rows, terms, columns
CASES = [(target, *shape) for target in TARGETS for shape in SHAPES[: None if target == "x86" else 2]]
LAYERS = [("LSTM", 4, 37), ("LSTM", 4, 64), ("GRU", 3, 19)]  # operator, gates, hidden units
KINDS = {"f16": 127, "bf16": 127, "int8": 127, "int4": 7}  # and how far whole numbers of theirs reach


def exact(rng: np.random.Generator, *shape: int, most: int = 127) -> np.ndarray:
    """Weights that a small type holds: whole numbers up to ``most``, which every column has, times powers of two."""
    w = rng.integers(-most, most + 1, shape)
    w[..., 0, :] = most
    return (w * 2.0 ** rng.integers(-10, -6, shape[-1])).astype(np.float32)


@pytest.mark.sweep(10)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target, m, k, n", CASES)
def test_products(kind, m, k, n, target):
    rng = np.random.default_rng(k)
    stored = {"w": exact(rng, k, n, most=KINDS[kind]), "b": rng.normal(size=n).astype(np.float32)}
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["g"]), helper.make_node("Tanh", ["g"], ["y"])]
    feeds = {"x": rng.normal(size=(m, k)).astype(np.float32) / 16}
    model = network(nodes, feeds, ["y"], stored)
    for threads in (1, 2) if target == "x86" and m > 1 else (1,):
        got = compiled(model, feeds, target=target, weights=kind, threads=threads)
        assert_same(got, reference(model, feeds), tolerance=1e-5)


@pytest.mark.sweep(7)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "target, op, gates, hidden", [(t, *layer) for t in TARGETS for layer in LAYERS[: None if t == "x86" else 1]]
)
def test_recurrent_layers(op, gates, hidden, kind, target):
    rng = np.random.default_rng(1)
    # a column of the transposed matrix is a row here
    stored = {
        "w": exact(rng, 1, 11, gates * hidden, most=KINDS[kind]).swapaxes(1, 2).copy() / 8,
        "r": exact(rng, 1, hidden, gates * hidden, most=KINDS[kind]).swapaxes(1, 2).copy() / 8,
    }
    feeds = {"x": rng.normal(size=(4, 1, 11)).astype(np.float32)}
    model = network([helper.make_node(op, ["x", "w", "r"], ["y"], hidden_size=hidden)], feeds, ["y"], stored)
    assert_same(compiled(model, feeds, target=target, weights=kind), reference(model, feeds), tolerance=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_as_it_stands(kind):
    rng = np.random.default_rng(2)
    stored = {"table": exact(rng, 13, 8), "w": exact(rng, 8, 9, most=KINDS[kind]).T.copy()}
    nodes = [helper.make_node("Gather", ["table", "i"], ["x"]), helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)]
    feeds = {"i": np.array([12, 0, -1], np.int64)}
    model = network(nodes, feeds, ["y"], stored)
    assert_same(compiled(model, feeds, weights=kind, opt_level=0), reference(model, feeds), tolerance=1e-5)


@pytest.mark.parametrize("target, m, k, n", [*CASES, ("x86", 35, 128, 250), ("x86", 5, 2, 16)])
def test_products_in_bf16(m, k, n, target):
    rng = np.random.default_rng(k)
    stored = {"w": exact(rng, k, n), "b": rng.normal(size=n).astype(np.float32)}
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["g"]), helper.make_node("Tanh", ["g"], ["y"])]
    feeds = {"x": (rng.integers(-127, 128, (m, k)) / 1024).astype(np.float32)}
    model = network(nodes, feeds, ["y"], stored)
    for threads in (1, 2) if target == "x86" and m > 1 else (1,):
        got = compiled(model, feeds, target=target, bf16=True, allow_emulation=True, threads=threads)
        assert_same(got, reference(model, feeds), tolerance=1e-5)


@pytest.mark.parametrize(
    "m, k, n, gelu",
    [(32, 256, 64, False), (20, 100, 48, False), (128, 768, 96, True), (197, 64, 32, False), (53, 100, 48, True)],
)
def test_products_in_bf16_by_matrices(m, k, n, gelu):
    """With what follows them in registers, or in memory; terms that fill no matrix, a row that is infinite."""
    rng = np.random.default_rng(k)
    stored = {"w": exact(rng, k, n)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["g"]), helper.make_node("Tanh" if gelu else "Neg", ["g"], ["y"])]
    x = (rng.integers(-127, 128, (m, k)) / 1024).astype(np.float32)
    x[0] = np.inf
    model = network(nodes, {"x": x}, ["y"], stored)
    package = mlc.compile(load(model), "x86 -mcpu=sapphirerapids", bf16=True, verify_passes=True)
    assert "tdpbf16ps." in package.members["src/kernels.txt"].decode()
    got, want = run_here(package, {"x": x}), reference(model, {"x": x})
    assert_same({"y": got["y"][1:]}, {"y": want["y"][1:]}, tolerance=1e-5)
    np.testing.assert_array_equal(got["y"][0], want["y"][0])


# channels, filters, extent of the window, stride, size
CONVOLUTIONS_IN_BF16 = {
    "image": (64, 48, 3, 1, (14, 14)),
    "channels that fill no matrix": (40, 32, 3, 2, (13, 28)),
    "gathered": (256, 64, 3, 1, (7, 7)),
    "pixels": (32, 64, 1, 1, (14, 14)),
    "few filters": (32, 17, 5, 1, (12, 12)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS_IN_BF16)
def test_convolutions_in_bf16_by_matrices(name):
    """Where there is AMX, convolutions have operands in bf16 as well; one that is infinite stays with its windows."""
    c, o, k, stride, size = CONVOLUTIONS_IN_BF16[name]
    rng = np.random.default_rng(c)
    stored = {"w": (rng.integers(-127, 128, (o, c, k, k)) / 1024).astype(np.float32)}
    window = {"strides": [stride] * 2, "pads": [k // 2] * 4}
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], **window), helper.make_node("Relu", ["c"], ["r"])]
    nodes += [helper.make_node("Conv", ["r", "v"], ["s"]), helper.make_node("Add", ["r", "s"], ["y"])]  # a residual
    stored["v"] = (rng.integers(-3, 4, (o, o, 1, 1)) / 8).astype(np.float32)
    x = (rng.integers(-127, 128, (2, c, *size)) / 1024).astype(np.float32)
    x[1, 0, 0, 0] = np.inf
    model = network(nodes, {"x": x}, ["r", "y"], stored)
    package = mlc.compile(load(model), "x86 -mcpu=sapphirerapids", bf16=True, verify_passes=True)
    assert "tdpbf16ps." in package.members["src/kernels.txt"].decode()
    got, want = run_here(package, {"x": x}), reference(model, {"x": x})
    assert_same({"r": got["r"][:1]}, {"r": want["r"][:1]}, tolerance=1e-5)
    assert_same({"y": got["y"][:1]}, {"y": want["y"][:1]}, tolerance=0.02)  # what is between is rounded to bf16
    np.testing.assert_array_equal(np.isfinite(got["r"]), np.isfinite(want["r"]))


@pytest.mark.skipif(not HAS_BF16, reason="this machine has no AVX-512 BF16")
def test_sums_of_bf16_are_bit_by_bit_what_they_are_said_to_be():
    """Of two terms the second is added first, each with one rounding; what is denormal counts as zero."""
    rng = np.random.default_rng(4)
    w = rng.normal(size=(6, 64)).astype(bf16.numpy).astype(np.float32)
    feeds = {"x": rng.normal(size=(3, 6)).astype(bf16.numpy).astype(np.float32)}
    feeds["x"][0] *= 2.0**-133
    model = network([helper.make_node("MatMul", ["x", "w"], ["y"])], feeds, ["y"], {"w": w})
    sums = np.zeros((3, 64), np.float32)
    x = np.where(np.abs(feeds["x"]) < np.finfo(np.float32).tiny, 0, feeds["x"]).astype(np.float64)
    for k in (1, 0, 3, 2, 5, 4):
        sums = (sums + x[:, k, None] * w[k].astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(compiled(model, feeds, bf16=True)["y"], sums)


@pytest.mark.parametrize("batch, hidden", [(1, 37), (1, 64), (3, 37), (2, 16), (1, 650)])
def test_recurrent_layers_in_bf16(batch, hidden):
    rng = np.random.default_rng(1)
    shapes = {"w": (1, 4 * hidden, 12), "r": (1, 4 * hidden, hidden)}
    stored = {name: (rng.normal(size=shape) / shape[-1] ** 0.5).astype(np.float32) for name, shape in shapes.items()}
    feeds = {"x": rng.normal(size=(4, batch, 12)).astype(np.float32)}
    model = network([helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=hidden)], feeds, ["y"], stored)
    got = compiled(model, feeds, bf16=True, allow_emulation=True)
    assert_same(got, reference(model, feeds), tolerance=0.03)
    # a sum that is rounded differently may round a state differently
    assert_same(
        got, compiled(model, feeds, bf16=True, allow_emulation=True, target="x86 -mcpu=x86-64"), tolerance=0.005
    )


def test_the_error_is_told_by_layer():
    """Of each product with its bias and limits, those in a recurrence over all rounds."""
    rng = np.random.default_rng(4)
    shapes = {"w": (1, 64, 12), "r": (1, 64, 16), "v": (16, 32), "b": (32,)}
    stored = {name: (rng.normal(size=shape) / shape[-1] ** 0.5).astype(np.float32) for name, shape in shapes.items()}
    feeds = {"x": rng.normal(size=(4, 1, 12)).astype(np.float32)}
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r"], ["", "h"], hidden_size=16, name="lstm"),
        helper.make_node("Squeeze", ["h"], ["s"]),
        helper.make_node("MatMul", ["s", "v"], ["p"], name="head"),
        helper.make_node("Add", ["p", "b"], ["a"]),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    model = load(network(nodes, feeds, ["y"], stored))
    found = losses_by_layer(model, lambda m: mlc.compile(m, weights="int8", records=()), "x86")
    assert [layer.name.split("/")[0] for layer in found] == ["lstm", "lstm", "head"]
    assert all(20 < layer.accuracy.snr_db < 60 for layer in found)
    (whole,) = losses(model, mlc.compile(model, weights="int8", records=()))
    assert found[-1].accuracy.snr_db == pytest.approx(whole.snr_db, abs=0.5)
    same = losses_by_layer(model, lambda m: mlc.compile(m, records=()), "x86")
    assert all(layer.accuracy.largest == 0 for layer in same)


def test_a_quarter_is_stored_and_the_error_is_told():
    rng = np.random.default_rng(3)
    feeds = {"x": rng.normal(size=(1, 64)).astype(np.float32)}
    stored = {"w": rng.normal(size=(64, 256)).astype(np.float32)}
    model = load(network([helper.make_node("MatMul", ["x", "w"], ["y"])], feeds, ["y"], stored))
    small, plain = mlc.compile(model, weights="int8"), mlc.compile(model)
    assert small.manifest.memory.params_bytes < plain.manifest.memory.params_bytes * 0.27
    assert small.manifest.precision == {"y": "int8_weights"}
    (found,) = losses(model, small)
    assert 1e-4 < found.error < 1e-2
    tiny = mlc.compile(model, weights="int4")
    assert tiny.manifest.memory.params_bytes < plain.manifest.memory.params_bytes * 0.15
    assert found.error < losses(model, tiny)[0].error < 0.2
    (same,) = losses(model, plain)
    assert same.error == 0
    (given,) = losses(model, small, {"x": np.zeros((3, 64), np.float32)})
    assert given.error == 0

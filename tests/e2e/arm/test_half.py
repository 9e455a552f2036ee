"""Half precision with sums in it, on ARM processors under an emulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import mlc
from benchmarks.zoo import build, sample_inputs
from mlc.cli.main import run
from tests.e2e.compiled import interpreted, load, network
from tests.e2e.test_zoo import NETWORKS, reference
from tests.emulated import emulated, needs_emulator
from tests.sums_in_half import SumsInHalf

pytestmark = needs_emulator

PROCESSORS = ("cortex-a55", "cortex-a76", "neoverse-v1")
QUICK = {("bert_tiny", "cortex-a55")}
LOST, REORDERED = (
    0.05,
    0.01,
)  # of the largest output: by sums in half, of which 0.033 is the most; by another order of terms
RNG = np.random.default_rng(5)


@pytest.mark.parametrize(
    ("name", "cpu"),
    [
        pytest.param(name, cpu, marks=() if (name, cpu) in QUICK else pytest.mark.slow)
        for name in NETWORKS
        for cpu in PROCESSORS
    ],
)
def test_small_model_loses_what_rounding_takes(name: str, cpu: str) -> None:
    """Against float32 by ONNX Runtime, and, closer, against numpy that adds with one rounding as ``fmla`` does."""
    model = build(name, small=True)
    inputs = sample_inputs(model, 1)
    seen = SumsInHalf()
    options = {"fp16": True, "records": [], "verify_passes": True}
    package = mlc.compile(load(model), f"arm -mcpu={cpu} -sums=f16", **options, observer=seen)
    got, want, rounded = emulated(package, inputs, threads=2), reference(model, inputs), seen.run(inputs)
    for output, expected in want.items():
        largest = np.abs(expected).max()
        assert 0 < np.abs(got[output] - expected).max() < LOST * largest, output
        assert np.abs(got[output] - rounded[output]).max() < REORDERED * largest, output


def halves(*shape: int) -> np.ndarray:
    """Whole numbers, so few that all their sums are halves: what comes out is exact in any order."""
    return RNG.integers(-2, 3, shape).astype(np.float16)


CONVOLUTIONS = {
    "one block": ((1, 8, 5, 7), (8, 8, 3, 3), {"pads": [1] * 4}),
    "ragged": ((2, 13, 9, 11), (21, 13, 3, 3), {"pads": [1, 0, 0, 1]}),
    "first": ((1, 3, 17, 19), (16, 3, 5, 5), {"strides": [2, 2], "pads": [2] * 4}),
    "single pixels": ((1, 24, 14, 14), (40, 24, 1, 1), {}),
    "single pixels apart": ((1, 16, 15, 15), (24, 16, 1, 1), {"strides": [2, 2]}),
    "dilated": ((1, 16, 14, 14), (32, 16, 3, 3), {"dilations": [2, 2], "pads": [2] * 4}),
    "groups": ((1, 24, 9, 9), (48, 8, 3, 3), {"group": 3, "pads": [1] * 4}),
    "few groups": ((1, 6, 9, 9), (10, 3, 3, 3), {"group": 2}),
    "depthwise": ((1, 20, 13, 13), (20, 1, 3, 3), {"group": 20, "pads": [1] * 4, "strides": [2, 2]}),
    "volume": ((1, 8, 4, 5, 6), (16, 8, 3, 3, 3), {"pads": [1] * 6}),
    "row": ((1, 16, 31), (8, 16, 5), {"pads": [2, 2]}),
}


@pytest.mark.parametrize("cpu", ["cortex-a76", pytest.param("cortex-a55", marks=pytest.mark.slow)])
def test_sums_of_odd_shapes(cpu: str) -> None:
    """Convolutions, products of matrices, pools behind them: exact where no sum is rounded."""
    feeds, stored, nodes, outputs = {}, {}, [], []
    for k, (x, w, attrs) in enumerate(CONVOLUTIONS.values()):
        feeds[f"x{k}"], stored[f"w{k}"] = halves(*x), halves(*w)
        nodes += [helper.make_node("Conv", [f"x{k}", f"w{k}"], [f"c{k}"], **attrs)]
        nodes += [helper.make_node("Relu", [f"c{k}"], [f"y{k}"])]
        outputs.append(f"y{k}")
    nodes.append(helper.make_node("MaxPool", ["y1"], ["pooled"], kernel_shape=[2, 2]))
    for k, (m, depth, n) in enumerate([(1, 5, 3), (7, 64, 33), (19, 36, 8), (6, 31, 50)]):
        feeds[f"a{k}"], stored[f"b{k}"] = halves(m, depth), halves(depth, n)
        nodes.append(helper.make_node("MatMul", [f"a{k}", f"b{k}"], [f"m{k}"]))
        outputs.append(f"m{k}")
    feeds["t"], stored["u"] = halves(12, 9), halves(12, 24)
    nodes.append(helper.make_node("Gemm", ["t", "u"], ["turned"], transA=1))
    stored["v"] = (halves(9, 8, 3, 1) > 1).astype(np.float16)
    nodes.append(helper.make_node("Conv", ["y0", "v"], ["behind"], pads=[1, 0, 1, 0]))
    feeds["p"], feeds["q"] = halves(3, 9, 20), halves(3, 20, 17)
    nodes.append(helper.make_node("MatMul", ["p", "q"], ["batch"]))
    model = network(nodes, feeds, [*outputs, "pooled", "turned", "behind", "batch"], stored)
    package = mlc.compile(load(model), f"arm -mcpu={cpu} -sums=f16", records=[], verify_passes=True)
    assert "conv_half" in package.members["graph.txt"].decode()
    got = emulated(package, feeds, threads=2)
    for name, want in interpreted(model, feeds).items():
        np.testing.assert_array_equal(got[name], want, err_msg=name)


def test_without_the_option_sums_are_in_single_precision() -> None:
    """1 is lost beside 2048 in half precision."""
    x = np.ones((1, 16), np.float16)
    x[0, 0] = 2048
    stored = {"w": np.ones((16, 8), np.float16)}
    model = network([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": x}, ["y"], stored)
    wide, narrow = (
        emulated(mlc.compile(load(model), f"arm -mcpu=cortex-a76{more}", records=[]), {"x": x})["y"]
        for more in ("", " -sums=f16")
    )
    assert (wide == 2064).all()
    assert (narrow < 2064).all()


def test_the_accuracy_is_told_of_foreign_modules_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(build("dqn", small=True), "m.onnx")
    target = "arm -mcpu=cortex-a76 -sums=f16"
    assert run(["compile", "m.onnx", "--target", target, "--fp16", "--accuracy-report", "-o", "m.tar"]) == 0
    said = capsys.readouterr()
    assert "warning" not in said.err
    rows = [line.split() for line in said.out.splitlines() if line.startswith(("conv", "fc", "q_values"))]
    assert rows
    assert all(float(row[2]) > 40 for row in rows), said.out


def test_sums_in_single_precision_gain_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(build("dqn", small=True), tmp_path / "m.onnx")
    command = ["compile", str(tmp_path / "m.onnx"), "--target", "arm -mcpu=cortex-a76", "--fp16"]
    assert run([*command, "-o", str(tmp_path / "m.tar")]) == 4
    said = capsys.readouterr().err
    assert "computes no faster in half precision" in said
    assert "-sums=f16" in said

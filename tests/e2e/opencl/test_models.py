"""Whole models on an OpenCL device: from a file to results, and what goes wrong on the way."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.compose import add_prefix

import mlc
from benchmarks.zoo import build, sample_inputs
from mlc.cli.main import run
from mlc.errors import DeviceError, PackageError, UsageError
from mlc.targets.base import get_target
from mlc.targets.opencl.driver import OpenClDevice, open_device
from tests.e2e.compiled import assert_same, load, network, reference
from tests.e2e.test_zoo import NETWORKS, OPERATORS
from tests.e2e.test_zoo import reference as zoo_reference
from tests.halves import as_halves, halved

TARGET, MALI = "opencl -device=pocl", "opencl -device=mali -driver=pocl"
SHORT = "lstm_lm"  # the one that PoCL's compiler optimises in no time
QUICK = ("resnet8", SHORT)
HALF = 1e-2  # of the output's largest magnitude; networks lose a few bits of the 11


@pytest.mark.sweep(7)
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_of_the_zoo_agree_with_onnxruntime(quick_pocl: OpenClDevice, name: str, tmp_path: Path) -> None:
    check(build(name, small=True), tmp_path)


def test_operators_of_the_zoo_agree_with_onnxruntime(quick_pocl: OpenClDevice, tmp_path: Path) -> None:
    """All in one model, which is one program: PoCL takes most of a second for each, however small."""
    check(all_operators(), tmp_path)


def all_operators() -> onnx.ModelProto:
    parts = [add_prefix(build(name, small=True), f"{name}/") for name in OPERATORS]
    graphs = [part.graph for part in parts]
    graph = helper.make_graph(
        [n for g in graphs for n in g.node], "zoo",
        [v for g in graphs for v in g.input], [v for g in graphs for v in g.output],
        [t for g in graphs for t in g.initializer],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=parts[0].opset_import, ir_version=parts[0].ir_version)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("fp16", [False, True], ids=["f32", "f16"])
@pytest.mark.parametrize("name", ["operators", *NETWORKS])
def test_schedules_for_mali_agree_with_onnxruntime(
    quick_pocl: OpenClDevice, name: str, fp16: bool, tmp_path: Path
) -> None:
    """Networks of the zoo, and its operators in one model, by what a Mali would run."""
    model = all_operators() if name == "operators" else build(name, small=True)
    check(model, tmp_path, MALI, fp16=fp16)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_of_the_zoo_alone_agrees_with_onnxruntime(
    quick_pocl: OpenClDevice, name: str, tmp_path: Path
) -> None:
    check(build(name, small=True), tmp_path)


@pytest.mark.parametrize("name", [n if n == SHORT else pytest.param(n, marks=pytest.mark.slow) for n in NETWORKS])
def test_small_network_agrees_with_kernels_optimised(pocl: OpenClDevice, name: str, tmp_path: Path) -> None:
    check(build(name, small=True), tmp_path)


def check(model: onnx.ModelProto, tmp_path: Path, target: str = TARGET, *, fp16: bool = False) -> None:
    """The device runs all of a model, and gives what onnxruntime gives."""
    inputs = sample_inputs(model, 1)
    onnx.save(model, tmp_path / "model.onnx")
    package = mlc.compile(mlc.load(tmp_path / "model.onnx"), target, verify_passes=True, fp16=fp16)
    assert {d.region for d in package.offloads} == {"region0"}
    with package.load(1) as module:
        assert_same(module.run(inputs), zoo_reference(model, inputs), tolerance=HALF if fp16 else 1e-4)


@pytest.mark.parametrize("name", [n if n == "resnet8" else pytest.param(n, marks=pytest.mark.slow) for n in NETWORKS])
def test_small_network_in_half_precision_agrees_with_onnxruntime(
    quick_pocl: OpenClDevice, name: str, tmp_path: Path
) -> None:
    """Made so from float32, and as it is in the file."""
    model = build(name, small=True)
    inputs = sample_inputs(model, 1)
    want = zoo_reference(model, inputs)
    onnx.save(model, tmp_path / "model.onnx")
    onnx.save(halved(model), tmp_path / "halved.onnx")
    for file, feeds, options in (("model", inputs, {"fp16": True}), ("halved", as_halves(inputs), {})):
        package = mlc.compile(mlc.load(tmp_path / f"{file}.onnx"), TARGET, verify_passes=True, **options)
        assert {d.region for d in package.offloads} == {"region0"}
        with package.load(1) as module:
            got = {k: a.astype(np.float32) if a.dtype == np.float16 else a for k, a in module.run(feeds).items()}
        assert_same(got, want, tolerance=HALF)


def mixed() -> onnx.ModelProto:
    """A product, numbers of 4 bits, of which the device knows nothing, and a product again."""
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Round", ["a"], ["r"]),
        node("Cast", ["r"], ["h"], to=onnx.TensorProto.INT4),
        node("Cast", ["h"], ["f"], to=onnx.TensorProto.FLOAT),
        node("MatMul", ["f", "w"], ["y"]),
    ]
    rng = np.random.default_rng(0)
    return network(nodes, {"x": FEEDS["x"]}, ["y", "x", "a"], {"w": rng.standard_normal((6, 6)).astype(np.float32)})


FEEDS = {"x": np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32)}


def test_host_and_device_take_turns(pocl: OpenClDevice) -> None:
    model = mixed()
    package = mlc.compile(load(model), TARGET, verify_passes=True, check_regions=True)
    reasons = {d.reason for d in package.offloads if not d.region}
    assert reasons == {"works on i4, of which the device knows nothing"}
    assert len({d.region for d in package.offloads if d.region}) == 2
    assert ("round", "cast", "cast", "cast") in {d.operators for d in package.offloads if not d.region}
    with package.load(1) as module:
        assert_same(module.run(FEEDS), reference(model, FEEDS), tolerance=1e-2)
        assert [set(r.report) for r in module.device_runs] == [{"seconds"}] * 2


def test_from_a_file_to_results(
    pocl: OpenClDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(mixed(), "m.onnx")
    assert run(["compile", "m.onnx", "--target", TARGET, "-o", "m.tar"]) == 0
    np.savez("in.npz", **FEEDS)
    assert run(["run", "m.tar", "--inputs", "in.npz", "--outputs", "out.npz"]) == 0
    capsys.readouterr()
    with np.load("out.npz") as got:
        assert_same(dict(got), reference(mixed(), FEEDS), tolerance=1e-2)


def test_views_and_routines_in_a_region(pocl: OpenClDevice) -> None:
    """A view is no step, be it of an input, a result or in between; a running sum is one thread's."""
    node = helper.make_node
    nodes = [
        node("Reshape", ["x", "rows"], ["r"]),
        node("CumSum", ["r", "axis"], ["c"]),
        node("Reshape", ["c", "flat"], ["f"]),
        node("Relu", ["f"], ["y"]),
        node("Reshape", ["y", "rows"], ["z"]),
    ]
    stored = {"rows": np.array([8, 3]), "flat": np.array([24]), "axis": np.array(1)}
    model = network(nodes, FEEDS, ["r", "z"], stored)
    package = mlc.compile(load(model), TARGET, verify_passes=True, check_regions=True)
    assert not [d for d in package.offloads if not d.region]
    (facts,) = package.programs.values()
    assert facts["kernels"] == 2
    with package.load(1) as module:
        assert_same(module.run(FEEDS), reference(model, FEEDS), tolerance=1e-5)


def test_tensors_without_elements(pocl: OpenClDevice) -> None:
    feeds = {"x": np.empty((0, 6), np.float32)}
    nodes = [helper.make_node("Reshape", ["x", "s"], ["r"], allowzero=1), helper.make_node("Relu", ["x"], ["y"])]
    model = network(nodes, feeds, ["r", "y"], {"s": np.array([3, 0])})
    with mlc.compile(load(model), TARGET).load(1) as module:
        assert_same(module.run(feeds), reference(model, feeds))


def test_compiling_takes_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlc.runtime.device.entry_points", lambda group: [])
    for device in ("generic", "mali", "pocl"):
        package = mlc.compile(load(mixed()), f"opencl -device={device}")
        assert any(name.endswith(".opencl") for name in package.members)
        assert f"-device={device}" in json.dumps(package.manifest.target.to_json())


# -- refusals ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "target, message",
    [
        ("opencl -device=h200", "unknown device 'h200'"),
        ("opencl -device=mali -driver=h200", "unknown driver 'h200'"),
        ("opencl -host=opencl", "the host is opencl itself"),
        ("opencl -mcpu=z80", "target opencl: .*z80"),
    ],
)
def test_bad_options_are_refused(target: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        get_target(target)


def opencl_with(*devices: object) -> SimpleNamespace:
    """A pyopencl that finds these devices."""
    platform = SimpleNamespace(get_devices=lambda: list(devices))
    return SimpleNamespace(get_platforms=lambda: [platform], device_type=SimpleNamespace(CPU=2), Error=RuntimeError)


@pytest.mark.parametrize("wanted", ["generic", "mali", "pocl"])
def test_a_missing_device_is_named(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    others = [SimpleNamespace(name="Radeon", type=4)] if wanted != "generic" else []
    monkeypatch.setitem(sys.modules, "pyopencl", opencl_with(*others))
    with pytest.raises(
        DeviceError, match=f"needs the OpenCL device '{wanted}'; devices here: {'Radeon' if others else 'none'}"
    ):
        open_device({"device": wanted})


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> list[object]:
        raise RuntimeError("PLATFORM_NOT_FOUND_KHR")

    opencl = opencl_with()
    opencl.get_platforms = fails
    monkeypatch.setitem(sys.modules, "pyopencl", opencl)
    with pytest.raises(DeviceError, match="no OpenCL driver answers: PLATFORM_NOT_FOUND_KHR"):
        open_device({})


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    with pytest.raises(DeviceError, match="pyopencl cannot be imported"):
        open_device({})


def test_misuse_of_a_device_is_refused(pocl: OpenClDevice) -> None:
    with pytest.raises(DeviceError, match="nothing is allocated at address 3"):
        pocl.free(3)
    at = pocl.allocate(100)
    with pytest.raises(DeviceError, match=r"4096 bytes at address \d+ are not allocated"):
        pocl.read(at, np.empty(4096, np.uint8))
    with pytest.raises(PackageError, match="program cannot be read"):
        pocl.load(b"nonsense")

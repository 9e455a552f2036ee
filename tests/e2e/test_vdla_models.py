"""Whole models quantised, divided between this machine and the accelerator, and run on its simulator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import mlc
from benchmarks.zoo import build, sample_inputs
from mlc.api import Model, Package, quantize
from mlc.errors import DeviceError
from mlc.ir.graph import Value
from mlc.ir.layout import Layout
from mlc.runtime import Module, load_module
from mlc.tuning.regions import best_together
from mlc.vdla.config import PROFILES
from mlc.vdla.driver import open_device
from mlc.vdla.offload import VdlaAccelerator
from tests.e2e.compiled import load, network
from tests.e2e.integers import check_against_integers


class Point:
    """The driver's entry point, whatever was installed when."""

    name, value = "vdla", "mlc.vdla.driver:open_device"

    def load(self) -> object:
        return open_device


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlc.runtime.device.entry_points", lambda group: [Point()] if group == "mlc.devices" else [])


rng = np.random.default_rng(0)
IMAGES = rng.standard_normal((4, 3, 12, 12)).astype(np.float32)


def residual_network() -> onnx.ModelProto:
    """Two residual blocks over 32 and 48 channels, the second with strides and a convolution in its shortcut."""
    stored: dict[str, np.ndarray] = {}
    nodes = []

    def conv(x: str, y: str, o: int, c: int, k: int, stride: int = 1) -> None:
        stored[f"{y}.w"] = (rng.standard_normal((o, c, k, k)) / np.sqrt(c * k * k)).astype(np.float32)
        stored[f"{y}.b"] = rng.standard_normal(o).astype(np.float32) / 4
        pads, strides = [k // 2] * 4, [stride] * 2
        nodes.append(helper.make_node("Conv", [x, f"{y}.w", f"{y}.b"], [y], y, pads=pads, strides=strides))

    def node(op: str, ins: list[str], y: str) -> None:
        nodes.append(helper.make_node(op, ins, [y], y))

    conv("x", "c0", 32, 3, 3)
    node("Relu", ["c0"], "r0")
    conv("r0", "c1", 32, 32, 3)
    node("Relu", ["c1"], "r1")
    conv("r1", "c2", 32, 32, 3)
    node("Add", ["c2", "r0"], "a2")
    node("Relu", ["a2"], "r2")
    conv("r2", "c3", 48, 32, 3, 2)
    node("Relu", ["c3"], "r3")
    conv("r3", "c4", 48, 48, 3)
    conv("r2", "c5", 48, 32, 1, 2)
    node("Add", ["c4", "c5"], "a4")
    node("Relu", ["a4"], "r4")
    node("GlobalAveragePool", ["r4"], "p")
    node("Flatten", ["p"], "f")
    stored["fc"] = rng.standard_normal((48, 10)).astype(np.float32)
    nodes.append(helper.make_node("MatMul", ["f", "fc"], ["y"], "fc"))
    return network(nodes, {"x": IMAGES[:1]}, ["y"], stored)


@pytest.fixture(scope="module")
def small() -> Model:
    return quantize(load(residual_network()), {"x": IMAGES}, "vdla").model


@pytest.fixture(scope="module")
def host(small: Model) -> Iterator[Module]:
    """It, without the accelerator."""
    with mlc.compile(small).load(1) as module:
        yield module


@pytest.mark.parametrize("profile", PROFILES)
def test_a_residual_network_is_exact(small: Model, host: Module, profile: str) -> None:
    package = mlc.compile(small, f"vdla -profile={profile}", verify_passes=True)
    where = [d.region for d in package.offloads if "conv" in d.operators]
    # the first one, and a small one whose sums take longer to copy than to compute
    assert where.count("") == (2 if profile == "osdi18" else 1)
    with package.load(1) as module:
        for image in IMAGES:
            feeds = {"x": image[None]}
            np.testing.assert_array_equal(module.run(feeds)["y"], host.run(feeds)["y"])
        assert check_against_integers(module, small.graph, {"x": IMAGES[:1]}) >= 1
        assert all(run.report["cycles"] > 0 for run in module.device_runs)
        # sums leave the device for the host to finish, or all blocks run there in one go
        assert (len(module.device_runs) == 1) == (profile != "osdi18")


@pytest.mark.parametrize(
    "record",
    [
        "-block_in=32 -block_out=32",
        "-block_in=8 -block_out=8 -inp_bytes=16384 -wgt_bytes=8192 -acc_bytes=65536",
        "-inp_bytes=2048 -wgt_bytes=4096 -acc_bytes=4096 -uop_bytes=1024 -dep_queue_depth=2",
    ],
)
def test_other_sizes_are_exact(small: Model, host: Module, record: str) -> None:
    with mlc.compile(small, f"vdla {record}").load(1) as module:
        feeds = {"x": IMAGES[:1]}
        np.testing.assert_array_equal(module.run(feeds)["y"], host.run(feeds)["y"])
        assert module.device_runs


def test_depthwise_convolutions_run_between_others() -> None:
    stored = {
        "a": (rng.standard_normal((40, 32, 1, 1)) / 6).astype(np.float32),
        "d": (rng.standard_normal((40, 1, 3, 3)) / 3).astype(np.float32),
        "p": (rng.standard_normal((48, 40, 1, 1)) / 6).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["c0"], "c0"),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("Conv", ["r0", "d"], ["c1"], "c1", group=40, pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "p"], ["y"], "c2"),
    ]
    images = rng.standard_normal((4, 32, 24, 24)).astype(np.float32)
    model = quantize(load(network(nodes, {"x": images[:1]}, ["y"], stored)), {"x": images}, "vdla").model
    for profile in ("osdi18_i8", "full"):
        package = mlc.compile(model, f"vdla -profile={profile}")
        assert [d.region for d in package.offloads if "conv" in d.operators] == ["region0"] * 3
        with package.load(1) as module:
            assert check_against_integers(module, model.graph, {"x": images[:1]}) >= 1


@pytest.mark.sweep(2)
@pytest.mark.parametrize("profile", PROFILES)
def test_pixels_of_narrow_tensors_are_folded(profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The input comes from the host, the results are read by it, and pairs of pixels are one block in between."""
    monkeypatch.setattr(VdlaAccelerator, "estimate", lambda self, group: (0.0, 1.0))
    agreed: list[Mapping[Value, Layout]] = []
    between = VdlaAccelerator.layouts_between

    def noted(*args: Any) -> Mapping[Value, Layout]:
        agreed.append(between(*args))
        return agreed[-1]

    monkeypatch.setattr(VdlaAccelerator, "layouts_between", noted)
    stored = {
        "d": (rng.standard_normal((8, 1, 3, 3)) / 3).astype(np.float32),
        "p": (rng.standard_normal((20, 8, 1, 1)) / 3).astype(np.float32),
        "q": (rng.standard_normal((6, 20, 1, 1)) / 3).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "d"], ["c0"], "c0", group=8, pads=[1] * 4),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("Conv", ["r0", "p"], ["c1"], "c1"),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "q"], ["y"], "c2"),
    ]
    images = rng.standard_normal((4, 8, 10, 12)).astype(np.float32)
    model = quantize(load(network(nodes, {"x": images[:1]}, ["y"], stored)), {"x": images}, "vdla", ends=True).model
    package = mlc.compile(model, f"vdla -profile={profile}", verify_passes=True)
    folded = [layout.physical_shape for layout in agreed[0].values()]
    # rows of the input have pixels of the pad at both ends
    assert folded == [(1, 10, 7, 16), *[(1, 10, 6, 16)] * (len(folded) - 1)]
    assert len(folded) >= 2
    with package.load(1) as module, mlc.compile(model).load(1) as host:
        for image in images:
            feeds = {"x": image[None]}
            np.testing.assert_array_equal(module.run(feeds)["y"], host.run(feeds)["y"])
            assert check_against_integers(module, model.graph, feeds) >= 1


def test_wide_limits_are_exact() -> None:
    """A limit beyond the constants of instructions, as that of ReLU6 is where scales are fine."""
    stored = {
        "w": (rng.standard_normal((32, 32, 3, 3)) / 17).astype(np.float32),
        "lo": np.float32(0),
        "hi": np.float32(6),
    }
    convolve = helper.make_node("Conv", ["x", "w"], ["c"], "c", pads=[1] * 4)
    graph = [convolve, helper.make_node("Clip", ["c", "lo", "hi"], ["y"], "y")]
    images = 2 * rng.standard_normal((4, 32, 24, 24)).astype(np.float32)
    model = quantize(load(network(graph, {"x": images[:1]}, ["y"], stored)), {"x": images}, "vdla").model
    (limit,) = (
        n.attrs["hi"] for n in model.graph.nodes if n.op.name == "clip" and n.inputs[0].type.dtype.name == "i32"
    )
    assert limit > 1 << 15
    with mlc.compile(model, "vdla").load(1) as module, mlc.compile(model).load(1) as host:
        np.testing.assert_array_equal(module.run({"x": images[:1]})["y"], host.run({"x": images[:1]})["y"])
        assert module.device_runs


def pooled_network(*, both: bool) -> onnx.ModelProto:
    """An addition of 40 channels and their averages between convolutions; of their maxima and averages for ``both``."""
    stored: dict[str, np.ndarray] = {}
    nodes = []

    def conv(x: str, y: str, o: int, c: int) -> None:
        stored[f"{y}.w"] = (rng.standard_normal((o, c, 3, 3)) / np.sqrt(9 * c)).astype(np.float32)
        nodes.append(helper.make_node("Conv", [x, f"{y}.w"], [y], y, pads=[1] * 4))

    conv("x", "c0", 40, 16)
    nodes.append(helper.make_node("Relu", ["c0"], ["r0"], "r0"))
    for op in ("MaxPool", "AveragePool") if both else ("AveragePool",):
        nodes.append(helper.make_node(op, ["r0"], [op], op, kernel_shape=[3, 3], pads=[1] * 4))
    nodes.append(helper.make_node("Add", ["MaxPool" if both else "r0", "AveragePool"], ["sum"], "sum"))
    nodes.append(helper.make_node("Relu", ["sum"], ["r1"], "r1"))
    conv("r1", "y", 48, 40)
    return network(nodes, {"x": np.zeros((1, 16, 13, 11), np.float32)}, ["y"], stored)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("both", [False, True])
def test_an_addition_without_a_product_is_offloaded(profile: str, both: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if both:  # what comes from the host twice is not worth its copies
        monkeypatch.setattr(VdlaAccelerator, "estimate", lambda self, group: (0.0, 1.0))
    images = rng.standard_normal((4, 16, 13, 11)).astype(np.float32)
    model = quantize(load(pooled_network(both=both)), {"x": images}, "vdla").model
    package = mlc.compile(model, f"vdla -profile={profile}", verify_passes=True)
    addition = ("cast", "cast", "shl", "add", "relu", "round_shift", "clip", "cast")
    if profile == "osdi18":
        reasons = {d.reason for d in package.offloads if d.operators in (("shl",), ("add",))}
        assert "this profile stores sums as they are, and multiplies only" in reasons
    else:
        assert [bool(d.region) for d in package.offloads if d.operators == addition] == [True]
    with package.load(1) as module, mlc.compile(model).load(1) as host:
        for image in images:
            feeds = {"x": image[None]}
            np.testing.assert_array_equal(module.run(feeds)["y"], host.run(feeds)["y"])
            assert check_against_integers(module, model.graph, feeds) >= 1


def test_scales_of_channels_need_the_alu() -> None:
    model = quantize(load(residual_network()), {"x": IMAGES}, "vdla", per_channel=True).model
    for profile, regions in (("full", 1), ("osdi18_i8", 5)):
        package = mlc.compile(model, f"vdla -profile={profile}")
        reasons = {d.reason for d in package.offloads}
        shared = "without the ALU extension all channels share one shift"
        assert (shared in reasons) == (profile == "osdi18_i8")
        assert len(package.programs) <= regions
        with package.load(1) as module:
            assert check_against_integers(module, model.graph, {"x": IMAGES[:1]}) >= 1


def test_what_a_region_chooses_for_groups_without_trials_is_recorded(
    small: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlc.tuning.check.best_together", partial(best_together, longest=2.0))
    records = tmp_path / "r.jsonl"
    tuning = mlc.tune(small, "vdla", trials=1, threads=1, records=records)
    assert tuning.whole is not None
    own = [s for s in tuning.outcome.states if s.task.constants is not None]
    assert sum(bool(s.trials) for s in own) < len(own)
    assert all(s.decided is not None for s in own)
    with mlc.compile(small, "vdla", threads=1, records=(records,)).load(1) as module:
        module.run({"x": IMAGES[:1]})
        cycles = sum(run.report["cycles"] for run in module.device_runs)
    assert cycles / (PROFILES["full"].freq_mhz * 1e6) == pytest.approx(tuning.whole.tuned, rel=1e-4)


def test_programs_are_refused_by_another_accelerator(small: Model, tmp_path: Path) -> None:
    package = mlc.compile(small, "vdla -profile=full")
    assert package.manifest.device is not None
    other = replace(package.manifest.device, options={**package.manifest.device.options, "acc_bytes": "65536"})
    wrong = Package(replace(package.manifest, device=other), package.params, package.members, package.report)
    wrong.save(tmp_path / "wrong.tar")
    with pytest.raises(DeviceError, match=r"wrong\.tar: .*configuration"):
        load_module(tmp_path / "wrong.tar", 1)


@pytest.fixture(scope="module")
def resnet18() -> tuple[Model, list[dict[str, np.ndarray]]]:
    original = build("resnet18")
    feeds = [sample_inputs(original, seed=k) for k in range(100)]
    samples = {"input": np.concatenate([f["input"] for f in feeds[:4]])}
    return quantize(load(original), samples, "vdla").model, feeds


@pytest.mark.slow
@pytest.mark.parametrize("profile", PROFILES)
def test_resnet18_is_exact(resnet18: tuple[Model, list[dict[str, np.ndarray]]], profile: str) -> None:
    model, images = resnet18
    with mlc.compile(model, f"vdla -profile={profile}").load(1) as module, mlc.compile(model).load(1) as host:
        for feeds in images[::20]:
            assert check_against_integers(module, model.graph, feeds) >= 1
        for feeds in images:
            got, expected = module.run(feeds)["logits"], host.run(feeds)["logits"]
            np.testing.assert_array_equal(got, expected)
            assert got.argmax() == expected.argmax()
        assert sum(step.kernel.startswith("region") for step in module.manifest.steps) == len(module.device_runs)

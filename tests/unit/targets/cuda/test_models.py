"""Whole models by the target ``cuda``, over a simulated driver, and what goes wrong on the way."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import mlc
from benchmarks.zoo import build, sample_inputs
from mlc.api.losses import losses
from mlc.cli.main import run
from mlc.errors import DeviceError
from mlc.records.files import read_records
from mlc.records.measurement import Failure, Measurement
from mlc.records.record import DECIDED
from mlc.targets.gpu.program import unpack
from tests.cuda import CXX, CUresult, FakeCuda, Install, install
from tests.e2e.compiled import assert_same, load, network, reference
from tests.e2e.opencl.test_recurrences import recurrent
from tests.e2e.test_zoo import reference as zoo_reference

__all__ = ["install"]

pytestmark = pytest.mark.skipif(CXX is None, reason="there is no C++ compiler")
TARGET = "cuda -arch=sm_80,sm_90"
RNG = np.random.default_rng(0)
FEEDS = {"x": RNG.standard_normal((7, 24)).astype(np.float32)}
WEIGHTS = {"w": RNG.standard_normal((24, 13)).astype(np.float32)}


def layers() -> onnx.ModelProto:
    """Two products with a softmax."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "product"),
        helper.make_node("Relu", ["m"], ["r"], "relu"),
        helper.make_node("Softmax", ["r"], ["y"], "softmax"),
    ]
    return network(nodes, FEEDS, ["y"], WEIGHTS)


def product() -> onnx.ModelProto:
    return network([helper.make_node("MatMul", ["x", "w"], ["y"], "product")], FEEDS, ["y"], WEIGHTS)


@pytest.mark.parametrize(
    "capability, fp16, tolerance", [(86, False, 1e-4), pytest.param(90, True, 1e-2, id="fp16"), (120, False, 1e-4)]
)
def test_small_network_agrees_with_onnxruntime(
    capability: int, fp16: bool, tolerance: float, install: Install, tmp_path: Path
) -> None:
    """As machine code, and as assembly on a GPU later than all that it was compiled for."""
    cu = FakeCuda(capability)
    install(cu)
    model = build("resnet8", small=True)
    inputs = sample_inputs(model, 1)
    onnx.save(model, tmp_path / "model.onnx")
    package = mlc.compile(mlc.load(tmp_path / "model.onnx"), TARGET, verify_passes=True, fp16=fp16)
    assert not [d for d in package.offloads if not d.region]
    with package.load(1) as module:
        for _ in range(2):  # the second time, what was captured is launched again
            assert_same(module.run(inputs), zoo_reference(model, inputs), tolerance=tolerance)
    assert cu.calls.count("cuGraphInstantiate") == 1
    assert cu.calls.count("cuGraphLaunch") == 2
    assert not cu.memory  # all of it is given back


@pytest.mark.parametrize(
    "op, steps, batch, layers, direction, lengths, hidden, copies",
    [
        ("LSTM", 5, 1, 1, "forward", False, 9, 1),  # rows of 36 bytes; the state of the last round
        ("LSTM", 4, 3, 1, "bidirectional", False, 9, 2),
        ("GRU", 3, 2, 2, "reverse", True, 5, 0),  # where a sequence ends, state and row differ
    ],
)
def test_rounds_copy_nothing(
    op: str,
    steps: int,
    batch: int,
    layers: int,
    direction: str,
    lengths: bool,
    hidden: int,
    copies: int,
    install: Install,
) -> None:
    """What is carried lies in its row of the sequence, wherever that begins."""
    install(FakeCuda(90))
    model, inputs = recurrent(op, steps, batch, layers, direction, lengths, True, hidden)
    package = mlc.compile(load(model), "cuda -arch=sm_90", verify_passes=True)
    (data,) = (data for name, data in package.members.items() if name.startswith("device/"))
    assert isinstance(data, bytes)
    (program,) = unpack(data)
    assert sum(not c.kernel for c in program.commands) == copies
    with package.load(1) as module:
        assert_same(module.run(inputs), reference(model, inputs), tolerance=2e-5)


def test_every_architecture_has_schedules_of_its_own(install: Install) -> None:
    """Those of an old one copy as they go, and the products of both are made where they belong."""
    rng = np.random.default_rng(3)
    feeds = {"x": rng.standard_normal((64, 256)).astype(np.float32)}
    weights = {"w": rng.standard_normal((256, 96)).astype(np.float32)}
    model = network([helper.make_node("MatMul", ["x", "w"], ["y"], "product")], feeds, ["y"], weights)
    for capability in (75, 90):
        install(cu := FakeCuda(capability))
        package = mlc.compile(load(model), "cuda -arch=sm_75,sm_90", verify_passes=True)
        (data,) = (data for name, data in package.members.items() if name.startswith("device/"))
        assert isinstance(data, bytes)
        new, old = unpack(data)
        assert ([i.arch for i in new.images], [i.arch for i in old.images]) == (["sm_90"], ["sm_75"])
        assert "mlc_copy" in new.source
        assert "mlc_copy" not in old.source
        assert (new.steps, new.workspace_bytes) == (old.steps, old.workspace_bytes)
        with package.load(1) as module:
            assert_same(module.run(feeds), reference(model, feeds), tolerance=1e-4)
        wanted = new if capability == 90 else old
        assert cu.calls.count("cuModuleGetFunction") == len({c.kernel for c in wanted.commands})


def test_profile_has_a_row_for_each_kernel(install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    install(FakeCuda())
    onnx.save(layers(), "m.onnx")
    assert run(["-q", "compile", "m.onnx", "--target", TARGET, "-o", "m.tar"]) == 0
    np.savez("in.npz", **FEEDS)
    assert run(["-q", "run", "m.tar", "-i", "in.npz", "-o", "out.npz", "--bench", "--iterations", "2", "--profile",
                "--json", "p.json"]) == 0  # fmt: skip
    with np.load("out.npz") as got:
        assert_same(dict(got), reference(layers(), FEEDS), tolerance=1e-6)
    document = json.loads(Path("p.json").read_text())
    assert {"to device", "kernels", "from device"} <= set(document["bench"]["phases"])
    rows = json.dumps(document["profile"])
    for name in ("product", "softmax"):
        assert name in rows
    kernels = [r for r in document["profile"] if "bound" in r]
    assert {r["bound"] for r in kernels} == {"launch"}
    assert all(0 < r["occupancy"] <= 1 and r["peak"] > 0 for r in kernels)


@pytest.mark.parametrize(("zero", "host"), [(0, "native"), (3, "native"), (3, "haswell")])
def test_products_of_bytes_are_made_by_tensor_cores(zero: int, host: str, install: Install) -> None:
    """With a zero point, too: what it adds is known beforehand; and whatever the host is fast with."""
    install(FakeCuda())
    rng = np.random.default_rng(1)
    feeds = {"x": rng.integers(0, 256, (1, 8, 5, 6), np.uint8)}
    stored = {"w": rng.integers(-128, 128, (17, 8, 3, 3)).astype(np.int8), "z": np.uint8(zero)}
    nodes = [helper.make_node("ConvInteger", ["x", "w", "z"], ["y"], "conv", pads=[1, 1, 1, 1])]
    model = network(nodes, feeds, ["y"], stored)
    package = mlc.compile(load(model), f"{TARGET} -mcpu={host}", verify_passes=True)
    (program,) = (data for name, data in package.members.items() if name.startswith("device/"))
    assert b"mlc_mma_i8_u8<" in program
    with package.load(1) as module:
        assert_same(module.run(feeds), reference(model, feeds))


def test_models_in_tf32_lose_as_much_as_they_may(install: Install) -> None:
    install(FakeCuda())
    rng = np.random.default_rng(2)
    feeds = {"x": rng.standard_normal((20, 24)).astype(np.float32)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "product")]
    model = network(nodes, feeds, ["y"], {"w": rng.standard_normal((24, 16)).astype(np.float32)})
    package = mlc.compile(load(model), f"{TARGET} -tf32=on", verify_passes=True)
    assert package.manifest.precision["y"] == "float16"
    (loss,) = losses(load(model), package)
    assert 1e-6 < loss.error < 1e-2
    with package.load(1) as module:
        assert_same(module.run(feeds), reference(model, feeds), tolerance=1e-3)


def test_seconds_of_a_profile_are_of_the_events(install: Install) -> None:
    install(FakeCuda())
    with mlc.compile(load(layers()), TARGET).load(1) as module:
        steps = module.profile(FEEDS, 1)
        (report,) = (r.report for r in module.device_runs)
    kernels = report["kernels"]
    assert all(k["seconds"] > 0 for k in kernels)
    assert report["seconds"] == pytest.approx(sum(k["seconds"] for k in kernels))
    assert {s.step.kernel for s in steps} >= {k["name"] for k in kernels}
    assert {s for k in kernels for s in k["sources"]} >= {"product", "softmax"}


@pytest.mark.slow
def test_candidates_are_measured(install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    install(FakeCuda())
    onnx.save(layers(), "m.onnx")
    how = ["--trials", "2", "--batch", "2", "--threads", "1", "--explorer", "random", "--repeat", "3"]
    how += ["--min-repeat-ms", "1", "--no-check", "-o", "r.jsonl"]
    assert run(["-q", "tune", "m.onnx", "--target", TARGET, *how]) == 0
    records = read_records([Path("r.jsonl")]).records
    assert {r.fingerprint.cpu for r in records} == {"cuda-h200"}
    assert {r.result.failure for r in records} == {None}


def test_records_of_an_architecture_are_found_for_a_list_with_it(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    install(FakeCuda())
    onnx.save(product(), "m.onnx")
    assert run(["-q", "tune", "m.onnx", "--target", "cuda -arch=sm_90", *TUNE, "--trials", "1", "--no-check",
                "-o", "r.jsonl"]) == 0  # fmt: skip
    for archs, found in (("sm_90", "hit"), ("sm_80,sm_90", "hit"), ("sm_80", "miss"), ("sm_90 -device=h100", "miss")):
        how = ["--target", f"cuda -arch={archs}", "--records", "r.jsonl", "-o", "m.tar", "--json", "c.json"]
        assert run(["-q", "compile", "m.onnx", *how]) == 0
        assert [r["found"] for r in json.loads(Path("c.json").read_text())["tuned"]] == [found]


@pytest.mark.parametrize("command", ["tune", "measure"])
def test_times_are_taken_on_the_architecture_that_they_are_recorded_for(
    command: str,
    install: Install,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On a GPU of another one the module would run, and its times would be that one's."""
    monkeypatch.chdir(tmp_path)
    install(FakeCuda(80))
    onnx.save(product(), "m.onnx")
    assert run(["-q", "tune", "m.onnx", "--target", TARGET, "--trials", "1", "--build-only", "c"]) == 0
    how = {"tune": ["m.onnx", "--target", TARGET, "--trials", "1"], "measure": ["c"]}[command]
    capsys.readouterr()
    assert run(["-q", command, *how, "-o", "r.jsonl"]) == 6
    error, hint = capsys.readouterr().err.splitlines()
    assert error == ("error: nothing can be measured on cuda: Imaginary GPU is sm_80, and schedules are made for sm_90")
    assert hint == "hint: name this machine's device in --target"
    assert not Path("r.jsonl").exists()


class Ill(FakeCuda):
    """A GPU that fails with the second program of a process, the first candidate, for that process or for good.

    Args:
        mark: a file that says that it has happened.
        error: what is reported.
        for_good: whether no process ever gets the GPU again.
    """

    def __init__(self, mark: Path, error: CUresult, *, for_good: bool) -> None:
        super().__init__()
        self.mark, self.error, self.for_good = mark, error, for_good

    def cuCtxSetCurrent(self, context: str) -> tuple[Any, ...]:
        return self.cuInit(0)

    def cuInit(self, flags: int) -> tuple[Any, ...]:
        if self.for_good and self.mark.exists():
            self.dead = self.error
        return (self.dead or CUresult.CUDA_SUCCESS,)

    def cuGraphLaunch(self, graph: list[Callable[[], None]], stream: str) -> tuple[Any, ...]:
        if self.calls.count("cuModuleLoadData") > 1 and not self.mark.exists():
            self.mark.touch()
            self.dead = self.error
            return (self.error,)
        return super().cuGraphLaunch(graph, stream)


TUNE = ["--batch", "2", "--threads", "1", "--explorer", "random", "--repeat", "3", "--min-repeat-ms", "0.01"]


@pytest.mark.slow
def test_a_kernel_that_faults_takes_nobody_with_it(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its context is lost, and so is the process that holds it; the next one has a new context."""
    monkeypatch.chdir(tmp_path)
    install(Ill(tmp_path / "ill", CUresult.CUDA_ERROR_ILLEGAL_ADDRESS, for_good=False))
    onnx.save(product(), "m.onnx")
    how = [*TUNE, "--trials", "3", "--no-check", "-o", "r.jsonl"]
    assert run(["-q", "tune", "m.onnx", "--target", TARGET, *how]) == 0
    results = [r.result for r in read_records([Path("r.jsonl")]).records]
    crashed = [r for r in results if r.failure is not None]
    assert [(r.failure, "beyond its memory" in r.message) for r in crashed] == [(Failure.RUN_CRASH, True)]
    assert sum(r.seconds is not None for r in results) >= 2


def trials(path: str = "r.jsonl") -> list[Measurement]:
    records = read_records([Path(path)]).records if Path(path).exists() else []
    return [r.result for r in records if r.explorer != DECIDED]


@pytest.mark.parametrize(
    "function, error, message",
    [
        ("cuMemAlloc", CUresult.CUDA_ERROR_OUT_OF_MEMORY, "the GPU has no memory left"),
        pytest.param(
            "cuModuleLoadData",
            CUresult.CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
            "the driver is older than the compiler",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_device_that_takes_nothing_ends_tuning_and_measuring(
    function: str,
    error: CUresult,
    message: str,
    install: Install,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No candidate is to blame: none is recorded, and all are tried once it takes them."""
    monkeypatch.chdir(tmp_path)
    onnx.save(product(), "m.onnx")
    tune = ["-q", "tune", "m.onnx", "--target", TARGET, "--threads", "1", "--trials", "4"]
    install(FakeCuda(fail={function: error}))
    assert run([*tune, "--build-only", "c"]) == 0
    for command in ([*tune, *TUNE, "--no-check"], ["-q", "measure", "c", "--repeat", "3", "--min-repeat-ms", "0.01"]):
        capsys.readouterr()
        assert run([*command, "-o", "r.jsonl"]) == 6
        first, hint = capsys.readouterr().err.strip().splitlines()
        assert first.startswith("error: nothing can be measured on cuda: ")
        assert message in first
        assert hint.startswith("hint: ")
        assert not trials()
    install(FakeCuda())
    assert run(["-q", "measure", "c", "-o", "r.jsonl", "--repeat", "3", "--min-repeat-ms", "0.01"]) == 0
    assert [r.failure for r in trials()] == [None] * 4


@pytest.mark.slow
def test_a_device_whose_memory_is_taken_in_the_midst_of_tuning_ends_it(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It costs the candidate that was being loaded."""
    monkeypatch.chdir(tmp_path)
    taken = tmp_path / "taken"

    class Filling(FakeCuda):
        def cuMemAlloc(self, nbytes: int) -> tuple[Any, ...]:
            if self.calls.count("cuModuleLoadData") > 2:  # the anchor, and a candidate
                taken.touch()
            return (CUresult.CUDA_ERROR_OUT_OF_MEMORY, None) if taken.exists() else super().cuMemAlloc(nbytes)

    install(Filling())
    onnx.save(product(), "m.onnx")
    how = [*TUNE, "--trials", "6", "--no-check", "-o", "r.jsonl"]
    assert run(["-q", "tune", "m.onnx", "--target", TARGET, *how]) == 6
    error, _ = capsys.readouterr().err.strip().splitlines()
    assert error.startswith("error: nothing can be measured on cuda: ")
    assert "no memory left" in error
    before = trials()
    assert before[0].seconds is not None
    assert sum(r.failure is not None for r in before) <= 1
    install(FakeCuda())
    assert run(["-q", "tune", "m.onnx", "--target", TARGET, *how]) == 0
    assert trials()[: len(before)] == before
    assert len(trials()) == 6


@pytest.mark.slow
def test_a_device_lost_in_the_midst_of_tuning_ends_it_and_loses_nothing(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ill = Ill(tmp_path / "ill", CUresult.CUDA_ERROR_DEVICE_UNAVAILABLE, for_good=True)
    install(ill)
    onnx.save(product(), "m.onnx")
    how = [*TUNE, "--trials", "3", "--no-check", "-o", "r.jsonl"]
    assert run(["-q", "tune", "m.onnx", "--target", TARGET, *how]) == 6
    error, hint = capsys.readouterr().err.strip().splitlines()
    assert error.startswith("error: nothing can be measured on cuda: ")
    assert "the GPU is gone" in error
    assert hint.startswith("hint: ")
    assert {r.failure for r in trials()} <= {None}
    install(FakeCuda())
    assert run(["-q", "tune", "m.onnx", "--target", TARGET, *how]) == 0
    assert [r.failure for r in trials()] == [None] * 3


# -- refusals ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "cu, message",
    [
        (
            FakeCuda(120, fail={"cuModuleLoadData": CUresult.CUDA_ERROR_UNSUPPORTED_PTX_VERSION}),
            "the driver is older than the compiler .*; Imaginary GPU is sm_120, its driver knows CUDA 12.4",
        ),
        (FakeCuda(61), "the module is compiled for sm_80, sm_90, Imaginary GPU is sm_61"),
        (FakeCuda(fail={"cuInit": CUresult.CUDA_ERROR_NOT_INITIALIZED}), "in use when this process was forked off"),
    ],
)
def test_what_a_gpu_refuses_is_told(cu: FakeCuda, message: str, install: Install) -> None:
    install(cu)
    package = mlc.compile(load(layers()), TARGET)
    with pytest.raises(DeviceError, match=message):
        package.load(1)


def test_a_device_that_is_lost_is_told(install: Install) -> None:
    cu = FakeCuda()
    install(cu)
    with mlc.compile(load(layers()), TARGET).load(1) as module:
        module.run(FEEDS)
        cu.fail["cuGraphLaunch"] = CUresult.CUDA_ERROR_DEVICE_UNAVAILABLE
        for _ in range(2):
            with pytest.raises(DeviceError, match="the GPU is gone"):
                module.run(FEEDS)


def test_one_of_several_gpus_is_chosen(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    install(FakeCuda(count=2))
    onnx.save(product(), "m.onnx")
    assert run(["-q", "compile", "m.onnx", "--target", TARGET, "-o", "m.tar"]) == 0
    capsys.readouterr()
    assert run(["run", "--device", "list", "m.tar"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["cuda: Imaginary GPU", "cuda:1: Imaginary GPU 1"]
    np.savez("in.npz", **FEEDS)
    for device in ("cuda", "cuda:1"):
        assert run(["-q", "run", "m.tar", "--device", device, "-i", "in.npz", "-o", "out.npz"]) == 0
        with np.load("out.npz") as got:
            assert_same(dict(got), reference(product(), FEEDS), tolerance=1e-5)
    for device, code, *told in (
        ("cuda:2", 6, "error: m.tar: there is no GPU 2, only 2"),
        ("cpu", 6, "error: m.tar: the module is for cuda, not for cpu", "hint: compile the model again: --target x86"),
        ("nonsense", 6, "error: m.tar: the module is for cuda, not for nonsense", "hint: drivers here: cpu, cuda"),
        ("cuda:x", 2, "error: 'cuda:x' is no device"),
    ):
        capsys.readouterr()
        assert run(["-q", "run", "m.tar", "--device", device]) == code
        assert capsys.readouterr().err.splitlines()[: len(told)] == told


@pytest.mark.parametrize("command", ["compile", "tune"])
def test_a_bad_architecture_is_one_message(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(product(), "m.onnx")
    assert run(["-q", command, "m.onnx", "--target", "cuda -arch=sm_42", "-o", "out"]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error == "error: target cuda: unknown architecture 'sm_42'"
    assert hint.startswith("hint: known: sm_75, sm_80")
    assert not Path("out").exists()


def test_a_machine_without_a_driver_is_told_in_one_line(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    install(FakeCuda(fail={"cuInit": CUresult.CUDA_ERROR_NO_DEVICE}))
    onnx.save(layers(), "m.onnx")
    assert run(["-q", "compile", "m.onnx", "--target", TARGET, "-o", "m.tar"]) == 0
    capsys.readouterr()
    assert run(["run", "m.tar"]) == 6
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("error: m.tar: cannot start the driver: there is no NVIDIA GPU")
    assert hint == "hint: a GPU may be hidden by CUDA_VISIBLE_DEVICES"


def test_nothing_is_tuned_without_a_device(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    install(FakeCuda(count=0))
    onnx.save(layers(), "m.onnx")
    assert run(["-q", "tune", "m.onnx", "--target", TARGET, "--trials", "2", "-o", "r.jsonl"]) == 6
    assert "there is no NVIDIA GPU" in capsys.readouterr().err
    assert not Path("r.jsonl").exists()


@pytest.mark.parametrize("compiler, driver", [(True, True), (True, False), (False, True)])
def test_targets_say_what_is_here(
    compiler: bool,
    driver: bool,
    install: Install,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    install(FakeCuda(count=int(driver)))
    if compiler:
        pytest.importorskip("cuda.bindings.nvrtc")
    else:
        monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    capsys.readouterr()
    assert run(["targets", "--json"]) == 0
    (cuda,) = (t for t in json.loads(capsys.readouterr().out)["targets"] if t["name"] == "cuda")
    assert (cuda["compiles"], cuda["runs"]) == (compiler, compiler and driver)
    if not compiler:
        assert "compiling for cuda needs NVRTC" in cuda["reason"]
    elif not driver:
        assert "there is no NVIDIA GPU" in cuda["reason"]


@pytest.mark.parametrize(
    "fail, message",
    [
        ({"cuMemAlloc": CUresult.CUDA_ERROR_OUT_OF_MEMORY}, "the GPU has no memory left"),
        ({"cuModuleLoadData": CUresult.CUDA_ERROR_UNSUPPORTED_PTX_VERSION}, "the driver is older than the compiler"),
        ({"cuGraphLaunch": CUresult.CUDA_ERROR_LAUNCH_FAILED}, "a kernel failed"),
        ({"cuStreamSynchronize": CUresult.CUDA_ERROR_ILLEGAL_ADDRESS}, "a kernel read or wrote beyond its memory"),
        ({"cuMemcpyHtoDAsync": CUresult.CUDA_ERROR_DEVICE_UNAVAILABLE}, "the GPU is gone"),
    ],
)
def test_faults_are_one_message_and_an_exit_code(
    fail: dict[str, CUresult],
    message: str,
    install: Install,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The results of an earlier run stay."""
    monkeypatch.chdir(tmp_path)
    install(FakeCuda(fail=fail))
    onnx.save(layers(), "m.onnx")
    assert run(["-q", "compile", "m.onnx", "--target", TARGET, "-o", "m.tar"]) == 0
    Path("out.npz").write_bytes(b"earlier")
    capsys.readouterr()
    assert run(["-q", "run", "m.tar", "--outputs", "out.npz"]) == 6
    error, *hint = capsys.readouterr().err.strip().splitlines()
    assert error.startswith("error: ")
    assert message in error
    assert all(line.startswith("hint: ") for line in hint)
    assert len(hint) <= 1
    assert Path("out.npz").read_bytes() == b"earlier"


@pytest.mark.parametrize("option", ["--bench", "--profile"])
def test_a_device_that_is_lost_in_the_midst_of_runs_ends_them(
    option: str,
    install: Install,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)

    class Leaving(FakeCuda):
        def cuStreamSynchronize(self, stream: str) -> tuple[Any, ...]:
            if self.calls.count("cuGraphLaunch") > 1:
                self.dead = CUresult.CUDA_ERROR_DEVICE_UNAVAILABLE
                return (self.dead,)
            return (CUresult.CUDA_SUCCESS,)

    install(Leaving())
    onnx.save(layers(), "m.onnx")
    assert run(["-q", "compile", "m.onnx", "--target", TARGET, "-o", "m.tar"]) == 0
    capsys.readouterr()
    assert run(["-q", "run", "m.tar", option, "--json", "r.json"]) == 6
    error, hint = capsys.readouterr().err.strip().splitlines()
    assert "the GPU is gone" in error
    assert hint.startswith("hint: the process has lost the GPU")
    assert not Path("r.json").exists()

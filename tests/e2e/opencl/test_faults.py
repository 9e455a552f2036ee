"""What goes wrong on an OpenCL device: one message, an exit code, nothing lost. Single calls of its driver fail."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import mlc
from mlc.cli.main import run
from mlc.errors import DeviceError
from mlc.records.files import read_records
from mlc.records.measurement import Failure, Measurement
from mlc.records.record import DECIDED
from mlc.targets.opencl.driver import OpenClDevice
from tests.e2e.compiled import assert_same, load, network, reference

TARGET = "opencl -device=pocl"
RNG = np.random.default_rng(0)
WEIGHTS = {"w": RNG.standard_normal((12, 8)).astype(np.float32)}
FEEDS = {"x": RNG.standard_normal((5, 12)).astype(np.float32)}
HOW = [
    "--batch",
    "2",
    "--threads",
    "1",
    "--explorer",
    "random",
    "--repeat",
    "3",
    "--min-repeat-ms",
    "0.01",
    "--run-timeout",
    "300",
]
Fail = Callable[..., None]


def product() -> onnx.ModelProto:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "product")]
    return network(nodes, FEEDS, ["y"], WEIGHTS)


@pytest.fixture
def fail(quick_pocl: OpenClDevice, monkeypatch: pytest.MonkeyPatch) -> Fail:
    """Lets a function of pyopencl, or a method of a queue, give an error from a call on."""
    import pyopencl as cl

    def put(name: str, error: str, after: int = 0, if_there: Path | None = None) -> None:
        calls = 0

        def failing(good: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **settings: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls > after and (if_there is None or not if_there.exists()):
                    if if_there is not None:
                        if_there.touch()
                    raise cl.RuntimeError(f"{name} failed: {error}")
                return good(*args, **settings)

            return call

        if name.startswith("queue."):
            method = name.removeprefix("queue.")
            good = getattr(cl.CommandQueue, method)
            queue = type("Queue", (cl.CommandQueue,), {method: failing(good)})
            monkeypatch.setattr(cl, "CommandQueue", queue)
        else:
            monkeypatch.setattr(cl, name, failing(getattr(cl, name)))

    return put


@pytest.mark.parametrize(
    "name, error, after, message",
    [
        ("Context", "DEVICE_NOT_AVAILABLE", 0, "cannot be opened: Context failed: DEVICE_NOT_AVAILABLE"),
        ("CommandQueue", "OUT_OF_RESOURCES", 0, "cannot be opened: CommandQueue failed"),
        ("Buffer", "MEM_OBJECT_ALLOCATION_FAILURE", 0, "bytes of memory left: Buffer failed"),
        ("Kernel", "INVALID_KERNEL_NAME", 0, "failed: Kernel failed: INVALID_KERNEL_NAME"),
        ("enqueue_copy", "OUT_OF_HOST_MEMORY", 0, "cannot copy: enqueue_copy failed"),
        ("enqueue_nd_range_kernel", "OUT_OF_RESOURCES", 0, "failed: enqueue_nd_range_kernel failed"),
        ("queue.finish", "DEVICE_NOT_AVAILABLE", 0, "failed: queue.finish failed: DEVICE_NOT_AVAILABLE"),
    ],
)
def test_faults_are_one_message_and_an_exit_code(
    name: str,
    error: str,
    after: int,
    message: str,
    fail: Fail,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The results of an earlier run stay."""
    monkeypatch.chdir(tmp_path)
    onnx.save(product(), "m.onnx")
    assert run(["-q", "compile", "m.onnx", "--target", TARGET, "-o", "m.tar"]) == 0
    Path("out.npz").write_bytes(b"earlier")
    capsys.readouterr()
    fail(name, error, after)
    assert run(["-q", "run", "m.tar", "--outputs", "out.npz"]) == 6
    first, *hint = capsys.readouterr().err.strip().splitlines()
    assert first.startswith("error: ")
    assert message in first
    assert [line.partition(": ")[0] for line in hint] in ([], ["hint"])
    assert Path("out.npz").read_bytes() == b"earlier"


@pytest.mark.parametrize("option", [None, "--bench", "--profile"])
def test_a_kernel_that_fails_has_no_times(
    option: str | None,
    quick_pocl: OpenClDevice,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Some drivers tell it by nothing else."""
    import pyopencl as cl

    def failed(event: object) -> None:
        raise cl.RuntimeError("clGetEventProfilingInfo failed: PROFILING_INFO_NOT_AVAILABLE")

    monkeypatch.chdir(tmp_path)
    onnx.save(product(), "m.onnx")
    assert run(["-q", "compile", "m.onnx", "--target", TARGET, "-o", "m.tar"]) == 0
    capsys.readouterr()
    monkeypatch.setattr(cl.Event, "profile", property(failed))
    assert run(["-q", "run", "m.tar", *([] if option is None else [option])]) == 6
    assert "PROFILING_INFO_NOT_AVAILABLE" in capsys.readouterr().err.splitlines()[0]


@pytest.mark.parametrize("option", ["--bench", "--profile"])
def test_a_device_that_is_lost_in_the_midst_of_runs_ends_them(
    option: str, fail: Fail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(product(), "m.onnx")
    assert run(["-q", "compile", "m.onnx", "--target", TARGET, "-o", "m.tar"]) == 0
    capsys.readouterr()
    fail("enqueue_nd_range_kernel", "DEVICE_NOT_AVAILABLE", 2)
    assert run(["-q", "run", "m.tar", option, "--json", "r.json"]) == 6
    assert "DEVICE_NOT_AVAILABLE" in capsys.readouterr().err.splitlines()[0]
    assert not Path("r.json").exists()


def test_a_module_is_of_use_again_after_a_fault(fail: Fail, tmp_path: Path) -> None:
    with mlc.compile(load(product()), TARGET).load(1) as module:
        fail("enqueue_nd_range_kernel", "OUT_OF_RESOURCES", 0, tmp_path / "once")
        with pytest.raises(DeviceError, match="OUT_OF_RESOURCES"):
            module.run(FEEDS)
        assert_same(module.run(FEEDS), reference(product(), FEEDS), tolerance=1e-5)


TUNER = """
import sys
from pathlib import Path
import pyopencl as cl
from mlc.cli.main import run
mark, for_good, good, calls = Path("ill"), {for_good}, cl.enqueue_nd_range_kernel, 0
def launch(*args):
    global calls
    calls += 1
    if (calls > 8 and not mark.exists()) or (for_good and mark.exists()):
        mark.touch()
        raise cl.RuntimeError("clEnqueueNDRangeKernel failed: {error}")
    return good(*args)
cl.enqueue_nd_range_kernel = launch
def opened(devices, good=cl.Context):
    if for_good and mark.exists():
        raise cl.RuntimeError("clCreateContext failed: {error}")
    return good(devices)
cl.Context = opened
sys.exit(run(sys.argv[1:]))
"""


def tune(trials: int, error: str, *, for_good: bool) -> subprocess.CompletedProcess[str]:
    """Tunes on a device that fails after some launches, in one process or from then on in all."""
    script = TUNER.format(error=error, for_good=for_good)
    command = ["-q", "tune", "m.onnx", "--target", TARGET, *HOW, "--run-timeout", "300", "--no-check", "-o", "r.jsonl"]
    command += ["--trials", str(trials)]
    return subprocess.run([sys.executable, "-c", script, *command], capture_output=True, text=True, check=False)


def trials() -> list[Measurement]:
    records = read_records([Path("r.jsonl")]).records if Path("r.jsonl").exists() else []
    return [r.result for r in records if r.explorer != DECIDED]


@pytest.mark.slow
def test_a_kernel_that_fails_costs_its_batch_at_most(
    pocl: OpenClDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(product(), "m.onnx")
    done = tune(4, "OUT_OF_RESOURCES", for_good=False)
    assert done.returncode == 0, done.stderr
    failed = [r for r in trials() if r.failure is not None]
    assert len(failed) <= 2
    assert all(r.failure is Failure.RUN_CRASH and "OUT_OF_RESOURCES" in r.message for r in failed)
    assert sum(r.seconds is not None for r in trials()) >= 2
    assert Path("ill").exists()


@pytest.mark.slow
def test_a_device_lost_in_the_midst_of_tuning_ends_it_and_loses_nothing(
    pocl: OpenClDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(product(), "m.onnx")
    done = tune(4, "DEVICE_NOT_AVAILABLE", for_good=True)
    assert done.returncode == 6
    error, hint = done.stderr.strip().splitlines()
    assert error.startswith("error: nothing can be measured on opencl: ")
    assert "DEVICE_NOT_AVAILABLE" in error
    assert hint.startswith("hint: ")
    assert {r.failure for r in trials()} <= {None}
    Path("ill").unlink()
    assert tune(4, "DEVICE_NOT_AVAILABLE", for_good=False).returncode == 0
    assert len(trials()) == 4

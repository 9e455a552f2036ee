"""A GPU that fails under the command line: one message, an exit code, nothing lost. Calls of its driver fail."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from mlc.cli.main import run
from tests.cuda import CXX, CUresult, FakeCuda, Install, install
from tests.e2e.compiled import network

__all__ = ["install"]

pytestmark = pytest.mark.skipif(CXX is None, reason="there is no C++ compiler")
TARGET = "cuda -arch=sm_90"
RNG = np.random.default_rng(0)
FEEDS = {"x": RNG.standard_normal((7, 24)).astype(np.float32)}
WEIGHTS = {"w": RNG.standard_normal((24, 13)).astype(np.float32)}
EARLIER = ("out.npz", "r.json", "t.json")
GONE, FAULT = CUresult.CUDA_ERROR_DEVICE_UNAVAILABLE, CUresult.CUDA_ERROR_ILLEGAL_ADDRESS


class Failing(FakeCuda):
    """A GPU of whose driver a function fails from a call on.

    Args:
        function: of the driver.
        error: that it reports.
        after: calls of it that go well.
    """

    def __init__(self, function: str, error: CUresult, after: int = 0) -> None:
        super().__init__()
        self.function, self.error, self.after = function, error, after

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("cu") and name == self.function and self.calls.count(name) >= self.after:
            self.fail[name] = self.error
        return super().__getattribute__(name)


@cache
def product() -> tuple[bytes, bytes]:
    """A model, and the same compiled; to be called where the host's compiler stands for NVRTC."""
    model = network([helper.make_node("MatMul", ["x", "w"], ["y"], "product")], FEEDS, ["y"], WEIGHTS)
    with tempfile.TemporaryDirectory() as folder:
        file, package = Path(folder, "m.onnx"), Path(folder, "m.tar")
        onnx.save(model, file)
        assert run(["-q", "compile", str(file), "--target", TARGET, "-o", str(package)]) == 0
        return file.read_bytes(), package.read_bytes()


@pytest.fixture(autouse=True)
def files(install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model, its module, inputs and results, and what earlier runs have left."""
    monkeypatch.chdir(tmp_path)
    for name, data in zip(("m.onnx", "m.tar"), product(), strict=True):
        Path(name).write_bytes(data)
    np.savez("in.npz", **FEEDS)
    np.savez("want.npz", y=FEEDS["x"] @ WEIGHTS["w"])
    for name in EARLIER:
        Path(name).write_bytes(b"earlier")


HOW = {
    "outputs": ["--outputs", "out.npz"],
    "bench": ["--bench", "--iterations", "3", "--json", "r.json"],
    "profile": ["--profile", "--trace", "t.json", "--json", "r.json"],
    "verify": ["--verify", "want.npz", "--json", "r.json"],
    "layers": ["--verify-layers", "--verify", "model", "--json", "r.json"],
}


@pytest.mark.parametrize(
    "function, error, after, how, message",
    [
        ("cuInit", CUresult.CUDA_ERROR_NO_DEVICE, 0, "outputs", "there is no NVIDIA GPU"),
        ("cuMemAlloc", CUresult.CUDA_ERROR_OUT_OF_MEMORY, 0, "outputs", "the GPU has no memory left"),
        ("cuMemAlloc", CUresult.CUDA_ERROR_OUT_OF_MEMORY, 2, "bench", "the GPU has no memory left"),
        ("cuMemHostAlloc", CUresult.CUDA_ERROR_OUT_OF_MEMORY, 0, "outputs", "the host's memory: there is none"),
        ("cuModuleLoadData", CUresult.CUDA_ERROR_UNSUPPORTED_PTX_VERSION, 0, "outputs", "driver knows CUDA 12.4"),
        ("cuStreamSynchronize", FAULT, 1, "outputs", "a kernel read or wrote beyond its memory"),
        ("cuStreamSynchronize", FAULT, 3, "bench", "a kernel read or wrote beyond its memory"),
        ("cuStreamSynchronize", FAULT, 1, "verify", "a kernel read or wrote beyond its memory"),
        ("cuStreamSynchronize", FAULT, 1, "layers", "a kernel read or wrote beyond its memory"),
        ("cuEventSynchronize", FAULT, 1, "bench", "a kernel read or wrote beyond its memory"),
        ("cuGraphLaunch", GONE, 0, "outputs", "the GPU is gone"),
        ("cuGraphLaunch", GONE, 4, "bench", "the GPU is gone"),
        ("cuGraphLaunch", GONE, 2, "profile", "the GPU is gone"),
    ],
)
def test_a_run_that_a_gpu_fails_under_ends_with_one_message(
    function: str,
    error: CUresult,
    after: int,
    how: str,
    message: str,
    install: Install,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The results of earlier runs stay."""
    install(Failing(function, error, after))
    capsys.readouterr()
    assert run(["-q", "run", "m.tar", *HOW[how]]) == 6
    told = capsys.readouterr()
    first, *hint = told.err.splitlines()
    assert first.startswith("error: ")
    assert message in first
    assert error.name in first
    assert [line.partition(": ")[0] for line in hint] in ([], ["hint"])
    assert not told.out
    assert {f.name for f in Path().iterdir()} == {"m.onnx", "m.tar", "in.npz", "want.npz", *EARLIER}
    assert all(Path(name).read_bytes() == b"earlier" for name in EARLIER)


@pytest.mark.parametrize(
    "function, error, after",
    [
        ("cuStreamSynchronize", FAULT, 1),
        ("cuGraphLaunch", GONE, 0),
        ("cuMemAlloc", CUresult.CUDA_ERROR_OUT_OF_MEMORY, 0),
    ],
)
def test_what_is_compiled_is_kept_where_its_accuracy_cannot_be_told(
    function: str,
    error: CUresult,
    after: int,
    install: Install,
    capsys: pytest.CaptureFixture[str],
) -> None:
    install(Failing(function, error, after))
    capsys.readouterr()
    assert run(["compile", "m.onnx", "--target", TARGET, "--fp16", "-o", "m16.tar"]) == 0
    (told,) = (line for line in capsys.readouterr().err.splitlines() if "warning: " in line)
    assert told.startswith("warning: what this costs in accuracy is not known: ")
    assert error.name in told
    assert "/" not in told.replace("device/region0", "")  # nor is a file named that nobody knows
    install(FakeCuda())
    assert run(["-q", "run", "m16.tar", "-i", "in.npz", "--verify", "want.npz", "--rtol", "1e-2"]) == 0

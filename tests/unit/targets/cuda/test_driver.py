"""The driver of CUDA over a simulated one, which runs printed kernels as the host's compiler builds them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mlc.errors import DeviceError
from mlc.targets.cuda.api import Cuda, CudaError
from mlc.targets.cuda.arch import DEVICES
from mlc.targets.cuda.dialect import CUDA_C
from mlc.targets.cuda.driver import CudaDevice, open_device
from mlc.targets.gpu.kernel import kernel
from mlc.targets.gpu.program import Command, GpuProgram, Operand, Step, pack
from tests import opencl
from tests.cuda import CXX, CUresult, FakeCuda, fake_device, images_of
from tests.unit.targets.gpu.groups import CASES, Case, assert_close

QUICK = ("matmul", "conv_bias_relu", "softmax", "sum_of_all", "concat", "scatter")
SOURCE = 'extern "C" __global__ void __launch_bounds__(4) k(float* a) { a[threadIdx.x] *= 2; }\n'
OLD_DRIVER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
int cuInit(unsigned flags) { return 0; }
int cuDeviceGetCount(int *n) { *n = 1; return 0; }
int cuDeviceGet(int *device, int n) { *device = n; return 0; }
int cuDeviceGetName(char *name, int size, int device) { strcpy(name, "Old GPU"); return 0; }
int cuDeviceGetAttribute(int *value, int which, int device) { *value = which == 75 ? 8 : 0; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = context; return 0; }
int cuGetProcAddress_v2(const char *name, void **at, int version, unsigned long long flags, int *status) {
  *at = dlsym(RTLD_DEFAULT, name);
  return *at ? 0 : 500;
}
"""
COUNT = GpuProgram(
    SOURCE,
    (Step("k", (), 0, 0),),
    (Command(0, "k", (Operand("input", 0, 16),), (1, 1, 1), (4, 1, 1)),),
    [],
    1,
    0,
    0,
    0,
)


@pytest.mark.skipif(CXX is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_printed_kernels_compute_what_groups_say(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opencl, "POCL_C", CUDA_C)
    case = Case.of(name)
    feeds = case.feeds()
    fn = kernel(case.node, "k", DEVICES["t4"])
    program = opencl.program([fn])
    program = replace(program, images=images_of(program.source, ["sm_80", "sm_90"]))
    monkeypatch.setattr(opencl, "program", lambda kernels: program)
    device = fake_device()
    assert_close(opencl.run(device, fn, case.arrays(feeds)), case.expected(feeds))  # type: ignore[arg-type]
    device.close()
    device.close()


def test_a_device_takes_code_of_its_generation_or_older_assembly() -> None:
    programs = [replace(COUNT, images=images_of(SOURCE, [arch])) for arch in ("sm_75", "sm_80", "sm_90")]
    for capability, arch, code in (
        (75, "sm_75", True),
        (86, "sm_80", True),
        (90, "sm_90", True),
        (120, "sm_90", False),
    ):
        device = fake_device(FakeCuda(capability))
        loaded = device.load(pack(programs))
        assert [i.arch for i in loaded.program.images] == [arch]
        assert (loaded.code is not None) == code
        device.close()


def test_a_device_takes_older_code_where_it_lacks_shared_memory_for_the_newest() -> None:
    """As an sm_86 does with what is made for sm_80, whose blocks may have more."""
    (large,) = (replace(c, shared=150 << 10) for c in COUNT.commands)
    programs = [
        replace(COUNT, images=images_of(SOURCE, ["sm_80"]), commands=(large,)),
        replace(COUNT, images=images_of(SOURCE, ["sm_75"])),
    ]
    for most, arch in ((163, "sm_80"), (99, "sm_75")):
        device = fake_device(FakeCuda(86, most_shared=most << 10))
        assert [i.arch for i in device.load(pack(programs)).program.images] == [arch]
        device.close()
    device = fake_device(FakeCuda(86, most_shared=99 << 10))
    with pytest.raises(
        DeviceError, match="take 153600 bytes of shared memory, Imaginary GPU has 101376 for one"
    ) as caught:
        device.load(pack(programs[:1]))
    assert caught.value.hint == "compile it again: -arch=sm_86"
    device.close()


@pytest.mark.parametrize(
    "cu, message",
    [
        (FakeCuda(count=0), "there is no NVIDIA GPU"),
        (FakeCuda(fail={"cuInit": CUresult.CUDA_ERROR_NO_DEVICE}), "there is no NVIDIA GPU"),
    ],
)
def test_what_is_missing_is_named(cu: FakeCuda, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        CudaDevice(Cuda(cu))


@pytest.mark.parametrize(
    "function, error, message, hint",
    [
        (
            "cuInit",
            '"cuda" is an NVIDIA driver library and can only be found via system search.',
            "needs an NVIDIA GPU, and there is no driver here",
            "install NVIDIA's driver",
        ),
        ("cuInit", "Failed to get cuGetProcAddress_v2", "cannot start the driver: .* older", "update NVIDIA's driver"),
        ("cuStreamCreate", "function cuStreamCreate is not found", "cannot make a stream: .* older", "update NVIDIA's"),
    ],
)
def test_a_driver_that_is_missing_or_too_old_is_named(function: str, error: str, message: str, hint: str) -> None:
    """The bindings look for it when they are first called, and for each function of it."""
    cu = FakeCuda()

    def fails(*args: object) -> None:
        raise RuntimeError(error)

    setattr(cu, function, fails)
    with pytest.raises(DeviceError, match=message) as caught:
        CudaDevice(Cuda(cu))
    assert caught.value.hint.startswith(hint)


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_bindings_over_a_library_of_an_old_driver(tmp_path: Path) -> None:
    """It knows its GPU, and has none of the functions that came later."""
    pytest.importorskip("cuda.bindings.driver")
    (tmp_path / "cuda.c").write_text(OLD_DRIVER)
    library = tmp_path / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "cuda.c", "-ldl"], check=True)
    script = "from mlc.targets.cuda.driver import open_device\nopen_device({})"
    paths = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=paths, capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("mlc.errors.DeviceError: cannot enter the context: the driver is older"), last


def test_missing_bindings_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(DeviceError, match="cuda-bindings cannot be imported"):
        open_device({})


def test_memory_that_is_not_there_is_told() -> None:
    device = fake_device()
    with pytest.raises(CudaError, match="cannot allocate 17179869184 bytes: the GPU has no memory left"):
        device.allocate(1 << 34)
    with pytest.raises(DeviceError, match="nothing is allocated at address 3"):
        device.free(3)


def test_a_lost_device_is_told_and_closed_in_peace() -> None:
    cu = FakeCuda()
    device = fake_device(cu)
    at = device.allocate(8)
    cu.fail["cuStreamSynchronize"] = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(CudaError, match="a kernel read or wrote beyond its memory"):
        device.read(at, np.empty(8, np.uint8))
    device.close()


def test_what_fails_while_launches_are_captured_is_told() -> None:
    """Not that the graph is of no use thereafter; and the next run captures them again."""
    cu = FakeCuda()
    device = fake_device(cu)
    loaded = device.load(pack([replace(COUNT, images=images_of(SOURCE, ["sm_90"]))]))
    at = device.allocate(16)
    cu.fail = {n: CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED for n in ("cuStreamEndCapture", "cuGraphDestroy")}
    cu.fail["cuLaunchKernel"] = CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
    with pytest.raises(CudaError, match="k: cannot launch a kernel: a kernel wants more than a multiprocessor has"):
        device.run(loaded, [at])
    cu.fail = {}
    cu.captured = None
    device.write(at, np.ones(4, np.float32).view(np.uint8))
    assert device.run(loaded, [at])["seconds"] >= 0
    device.close()
    assert not cu.memory


@pytest.mark.parametrize("missing", ["cuMemAlloc", "cuModuleGetFunction"])
def test_a_program_that_does_not_fit_is_given_back(missing: str) -> None:
    cu = FakeCuda()
    device = fake_device(cu)
    program = replace(COUNT, images=images_of(SOURCE, ["sm_90"]), params=[np.ones(4, np.float32)])
    cu.fail = {missing: CUresult.CUDA_ERROR_OUT_OF_MEMORY}
    with pytest.raises(CudaError, match="no memory left"):
        device.load(pack([program]))
    device.close()
    assert not cu.memory
    assert cu.calls.count("cuModuleLoadData") == cu.calls.count("cuModuleUnload") == 1


def test_runs_in_a_row_are_timed_together() -> None:
    cu = FakeCuda()
    device = fake_device(cu)
    program = replace(COUNT, images=images_of(SOURCE, ["sm_90"]))
    loaded, at = device.load(pack([program])), device.allocate(16)
    device.write(at, np.ones(4, np.float32).view(np.uint8))
    cu.calls.clear()
    assert device.repeat(loaded, [at], 5) > 0
    assert [cu.calls.count(c) for c in ("cuGraphInstantiate", "cuGraphLaunch", "cuEventSynchronize")] == [1, 5, 1]
    found = np.empty(16, np.uint8)
    device.read(at, found)
    assert (found.view(np.float32) == 32).all()
    device.close()

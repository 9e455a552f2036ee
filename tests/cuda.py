"""A CUDA driver for tests: it has the bindings' functions, and runs printed kernels as the host's compiler builds them.

A program's images are, in place of machine code, the text of its kernels (:func:`images_of`).
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlc.targets.cuda.api import Cuda
from mlc.targets.cuda.dialect import CUDA_C
from mlc.targets.cuda.driver import CudaDevice
from mlc.targets.gpu.program import Image, Resources

HEADER = Path(__file__).parent / "cuda_host.h"
CXX = shutil.which("c++") or shutil.which("g++")
CODE, ASSEMBLY = b"code:", b"assembly:"
PTX = re.compile(  # functions that the header has instead
    r"^(?:template <bool Turned> )?__device__ inline "
    r"(?:[^\n]*\basm\b[^\n]*\n|void mlc_(?:mma_sync|ldmatrix|copy|commit|wait)\w*\([^\n]*\{\n.*?^\}\n)",
    re.MULTILINE | re.DOTALL,
)


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NOT_INITIALIZED = 3
    CUDA_ERROR_DEVICE_UNAVAILABLE = 46
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_PTX = 218
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222
    CUDA_ERROR_NOT_FOUND = 500
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701
    CUDA_ERROR_LAUNCH_FAILED = 719
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901


OK = CUresult.CUDA_SUCCESS


def images_of(source: str, archs: Sequence[str]) -> tuple[Image, ...]:
    """A text for some architectures, in place of NVRTC."""
    text = source.encode()
    kernels = re.findall(r"__launch_bounds__\(\d+\) (\w+)\(", source)
    facts = {k: Resources(32, 0, 0, 0, 0) for k in kernels}
    return tuple(Image(a, CODE + text, ASSEMBLY + text, facts) for a in archs)


def compiled(texts: Mapping[str, str]) -> dict[str, Image]:
    """The same for texts by architecture."""
    return {arch: images_of(text, [arch])[0] for arch, text in texts.items()}


@cache
def built(source: str) -> ctypes.CDLL:
    """Kernels as a library of the host's."""
    if CXX is None:
        pytest.skip("there is no C++ compiler")
    parts = re.split(r'(?=^extern "C" __global__)', source, flags=re.MULTILINE)[1:]
    names = {
        m[1]: "__syncthreads" in p or "__shfl" in p
        for p in parts
        if (m := re.search(r"__launch_bounds__\(\d+\) (\w+)\(", p))
    }
    calls = [f"KERNEL({name}, {str(meets).lower()})" for name, meets in names.items()]
    with tempfile.TemporaryDirectory() as folder:
        text, library = Path(folder) / "k.cc", Path(folder) / f"{hashlib.sha256(source.encode()).hexdigest()}.so"
        body = PTX.sub("", source).replace(CUDA_C.dynamic, "")  # the header has that array, too
        text.write_text(f'#include "{HEADER}"\n{body}\n' + "\n".join(calls) + "\n")
        command = [CXX, "-std=c++17", "-O1", "-w", "-fPIC", "-shared", "-o", str(library), str(text)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:4000]
        return ctypes.CDLL(str(library))


class FakeCuda:
    """The bindings' module. Device memory is the host's; everything is done at once, except between the begin and the
    end of a capture.

    Args:
        capability: of the device, ten times.
        fail: names of functions with the errors that they give; a sticky one stays for all that follow.
        count: devices that there are.
        most_shared: bytes of shared memory that a block may ask for.
    """

    CUresult = CUresult
    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=75,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=76,
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN=97,
    )
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUevent_record_flags = SimpleNamespace(CU_EVENT_RECORD_EXTERNAL=1)
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)

    def __init__(
        self,
        capability: int = 90,
        fail: dict[str, CUresult] | None = None,
        count: int = 1,
        most_shared: int = 227 << 10,
    ) -> None:
        self.capability = capability
        self.most_shared = most_shared
        self.fail = fail or {}
        self.count = count
        self.memory: dict[int, Any] = {}
        self.shared: dict[str, int] = {}  # bytes that launches of a function may ask for, where it was told
        self.calls: list[str] = []
        self.captured: list[Callable[[], None]] | None = None
        self.dead: CUresult | None = None

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if not name.startswith("cu"):
            return found

        def call(*args: Any) -> tuple[Any, ...]:
            self.calls.append(name)
            error = self.dead or self.fail.get(name)
            if error:
                if error in (CUresult.CUDA_ERROR_ILLEGAL_ADDRESS, CUresult.CUDA_ERROR_DEVICE_UNAVAILABLE):
                    self.dead = error
                return error, None
            return found(*args)  # type: ignore[no-any-return]

        return call if callable(found) else found

    def _do(self, action: Callable[[], None]) -> tuple[CUresult]:
        if self.captured is None:
            action()
        else:
            self.captured.append(action)
        return (OK,)

    def cuInit(self, flags: int) -> tuple[Any, ...]:
        return (OK,)

    def cuDriverGetVersion(self) -> tuple[Any, ...]:
        return OK, 12040

    def cuDeviceGetCount(self) -> tuple[Any, ...]:
        return OK, self.count

    def cuDeviceGet(self, ordinal: int) -> tuple[Any, ...]:
        return OK, ordinal

    def cuDeviceGetName(self, length: int, device: int) -> tuple[Any, ...]:
        return OK, (b"Imaginary GPU" + b" %d" % device * bool(device)).ljust(length, b"\0")

    def cuDeviceGetAttribute(self, attribute: int, device: int) -> tuple[Any, ...]:
        found = {75: self.capability // 10, 76: self.capability % 10, 97: self.most_shared}
        return OK, found[attribute]

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[Any, ...]:
        return OK, "context"

    def cuDevicePrimaryCtxRelease(self, device: int) -> tuple[Any, ...]:
        return (OK,)

    def cuCtxSetCurrent(self, context: str) -> tuple[Any, ...]:
        return (OK,)

    def cuMemAlloc(self, nbytes: int) -> tuple[Any, ...]:
        if nbytes > 1 << 33:
            return CUresult.CUDA_ERROR_OUT_OF_MEMORY, None
        block = (ctypes.c_uint8 * (nbytes + 512))()
        ctypes.memset(block, 0xA5, nbytes + 512)
        address = -(-ctypes.addressof(block) // 512) * 512
        self.memory[address] = block
        return OK, address

    def cuMemFree(self, address: int) -> tuple[Any, ...]:
        del self.memory[address]
        return (OK,)

    def cuMemHostAlloc(self, nbytes: int, flags: int) -> tuple[Any, ...]:
        return self.cuMemAlloc(nbytes)

    def cuMemFreeHost(self, address: int) -> tuple[Any, ...]:
        return self.cuMemFree(address)

    def cuMemcpyHtoDAsync(self, to: int, source: int, nbytes: int, stream: str) -> tuple[Any, ...]:
        return self._do(lambda: ctypes.memmove(to, source, nbytes) and None)

    cuMemcpyDtoHAsync = cuMemcpyDtoDAsync = cuMemcpyHtoDAsync

    def cuModuleLoadData(self, image: bytes) -> tuple[Any, ...]:
        if image.startswith(ASSEMBLY) and not image.endswith(b"\0"):
            return CUresult.CUDA_ERROR_INVALID_PTX, None
        return OK, built(image.split(b":", 1)[1].rstrip(b"\0").decode())

    def cuModuleUnload(self, module: ctypes.CDLL) -> tuple[Any, ...]:
        return (OK,)

    def cuModuleGetFunction(self, module: ctypes.CDLL, name: bytes) -> tuple[Any, ...]:
        try:
            return OK, (getattr(module, f"launch_{name.decode()}"), getattr(module, f"count_{name.decode()}")())
        except AttributeError:
            return CUresult.CUDA_ERROR_NOT_FOUND, None

    def cuFuncSetAttribute(self, function: Any, attribute: int, value: int) -> tuple[Any, ...]:
        if attribute != 8 or value > 227 << 10:
            return CUresult.CUDA_ERROR_INVALID_VALUE, None
        self.shared[function[0].__name__] = value
        return (OK,)

    def cuLaunchKernel(self, function: Any, *args: Any) -> tuple[Any, ...]:
        *sizes, shared, _stream, params, extra = args
        assert extra == 0
        launcher, count = function
        if shared > self.shared.get(launcher.__name__, 48 << 10):
            return CUresult.CUDA_ERROR_INVALID_VALUE, None
        places = ctypes.cast(params, ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p)))
        values = (ctypes.c_void_p * count)(*(places[k][0] for k in range(count)))  # they are copied at once
        dims = (ctypes.c_uint * 6)(*sizes)

        def launch() -> None:
            assert launcher(values, dims), "some threads of a block wait at a barrier that others never reach"

        return self._do(launch)

    def cuStreamCreate(self, flags: int) -> tuple[Any, ...]:
        return OK, "stream"

    def cuStreamDestroy(self, stream: str) -> tuple[Any, ...]:
        return (OK,)

    def cuStreamSynchronize(self, stream: str) -> tuple[Any, ...]:
        return (OK,)

    def cuStreamBeginCapture(self, stream: str, mode: int) -> tuple[Any, ...]:
        self.captured = []
        return (OK,)

    def cuStreamEndCapture(self, stream: str) -> tuple[Any, ...]:
        graph, self.captured = self.captured, None
        return OK, graph

    def cuGraphInstantiate(self, graph: list[Callable[[], None]], flags: int) -> tuple[Any, ...]:
        return OK, graph

    def cuGraphLaunch(self, graph: list[Callable[[], None]], stream: str) -> tuple[Any, ...]:
        for action in graph:
            action()
        return (OK,)

    def cuGraphDestroy(self, graph: object) -> tuple[Any, ...]:
        return (OK,)

    cuGraphExecDestroy = cuEventDestroy = cuGraphDestroy

    def cuEventCreate(self, flags: int) -> tuple[Any, ...]:
        return OK, SimpleNamespace(at=0)

    def cuEventRecord(self, event: SimpleNamespace, stream: str) -> tuple[Any, ...]:
        event.at = time.perf_counter_ns()
        return (OK,)

    def cuEventRecordWithFlags(self, event: SimpleNamespace, stream: str, flags: int) -> tuple[Any, ...]:
        assert flags == 1, "an event within a graph is recorded by the graph"
        return self._do(lambda: setattr(event, "at", time.perf_counter_ns()))

    def cuEventSynchronize(self, event: SimpleNamespace) -> tuple[Any, ...]:
        return (OK,)

    def cuEventElapsedTime(self, begin: SimpleNamespace, end: SimpleNamespace) -> tuple[Any, ...]:
        return OK, (end.at - begin.at) * 1e-6


def fake_device(cu: FakeCuda | None = None, number: int = 0) -> CudaDevice:
    """A GPU that is none."""
    return CudaDevice(Cuda(cu or FakeCuda()), number)


Install = Callable[[FakeCuda], None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a driver in place of this machine's, and the host's compiler in place of NVRTC."""
    monkeypatch.setattr("mlc.targets.cuda.accelerator.compile_sources", compiled)

    def put(cu: FakeCuda) -> None:
        def opener(options: Mapping[str, str]) -> CudaDevice:
            return fake_device(cu, int(options.get("number", "0")))

        point = SimpleNamespace(name="cuda", value="tests.cuda", load=lambda: opener)
        monkeypatch.setattr("mlc.runtime.device.entry_points", lambda group: [point] if group == "mlc.devices" else [])

    return put

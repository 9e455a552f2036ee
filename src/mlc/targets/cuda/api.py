"""CUDA's driver API as this driver uses it: ``cuda.bindings`` with types, and with exceptions for its error codes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from mlc.errors import DeviceError

INSTALL = "pip install 'mlc[cuda]'"
_DRIVER = "install NVIDIA's driver"
_UPDATE = "update NVIDIA's driver"
_FUNCTION = re.compile(r"\bcu[A-Z]\w+")  # in what the bindings say of a library that lacks it
# what the user can do about an error, and what has happened in his words
_MEANING = {
    "CUDA_ERROR_NO_DEVICE": ("there is no NVIDIA GPU", "a GPU may be hidden by CUDA_VISIBLE_DEVICES"),
    "CUDA_ERROR_NOT_INITIALIZED": (
        "CUDA was in use when this process was forked off, and does not survive that",
        "tune before anything runs on the GPU, or in a process of its own: mlc tune",
    ),
    "CUDA_ERROR_STUB_LIBRARY": ("the driver's library here is a stub, for linking only", _DRIVER),
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": ("the driver is older than its library, which this GPU does not take",
                                                  _UPDATE),
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": ("the driver and its library differ in version", "restart the machine"),
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": (
        "the driver is older than the compiler that made the module", "compile for this very GPU (-arch), or update it",
    ),
    "CUDA_ERROR_NO_BINARY_FOR_GPU": ("the module's code is for other GPUs", "compile for this one: -arch"),
    "CUDA_ERROR_INVALID_PTX": ("the module's code is damaged, or for other GPUs", "compile it again"),
    "CUDA_ERROR_OUT_OF_MEMORY": ("the GPU has no memory left", "close what else uses it, or take a smaller batch"),
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": ("a kernel wants more than a multiprocessor has", "compile for this GPU"),
}  # fmt: skip
# after these the context is of no more use, and everything in it is lost
_FAULTS = {
    "CUDA_ERROR_ILLEGAL_ADDRESS": "a kernel read or wrote beyond its memory",
    "CUDA_ERROR_MISALIGNED_ADDRESS": "a kernel read or wrote at a crooked address",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": "a kernel met an illegal instruction",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE": "a kernel read or wrote in the wrong kind of memory",
    "CUDA_ERROR_INVALID_PC": "a kernel jumped out of its code",
    "CUDA_ERROR_HARDWARE_STACK_ERROR": "a kernel's stack broke",
    "CUDA_ERROR_LAUNCH_FAILED": "a kernel failed",
    "CUDA_ERROR_LAUNCH_TIMEOUT": "a kernel took longer than the system allows",
    "CUDA_ERROR_ASSERT": "a kernel stopped itself",
    "CUDA_ERROR_ECC_UNCORRECTABLE": "the GPU's memory is faulty",
    "CUDA_ERROR_DEVICE_UNAVAILABLE": "the GPU is gone",
    "CUDA_ERROR_DEVICES_UNAVAILABLE": "the GPU is taken, or gone",
    "CUDA_ERROR_UNKNOWN": "the GPU is gone, or its driver fell over",
}


class CudaError(DeviceError):
    """A call of the driver failed.

    Args:
        name: of the error, as the driver has it.
        what: was being done.
    """

    def __init__(self, name: str, what: str) -> None:
        meaning, hint = _MEANING.get(name, (_FAULTS.get(name, "the driver refused"), ""))
        if name in _FAULTS:
            hint = "the process has lost the GPU: start it again; compute-sanitizer finds faulty kernels"
        super().__init__(f"{what}: {meaning} ({name})", hint=hint)
        self.name = name
        self.fatal = name in _FAULTS


def bindings() -> Any:
    """``cuda.bindings.driver``, with the driver's library behind it.

    Raises:
        DeviceError: one of both is missing.
    """
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DeviceError(
            f"the module needs an NVIDIA GPU, and cuda-bindings cannot be imported: {error}", hint=INSTALL
        ) from error
    return driver


class Cuda:
    """The calls, each of which raises what goes wrong; handles are opaque, addresses are integers.

    Args:
        cu: ``cuda.bindings.driver``.
    Raises:
        DeviceError: there is no driver, or it refuses to start.
    """

    def __init__(self, cu: Any) -> None:
        self._cu = cu
        self._do("start the driver", cu.cuInit, 0)

    def _do(self, what: str, call: Any, *args: Any) -> Any:
        try:
            error, *results = call(*args)
        except RuntimeError as failed:  # of the bindings, which look for the library at the first call
            if _FUNCTION.search(str(failed)):
                message, hint = f"cannot {what}: the driver is older than cuda-bindings wants ({failed})", _UPDATE
            else:
                message, hint = "the module needs an NVIDIA GPU, and there is no driver here", _DRIVER
            raise DeviceError(message, hint=hint) from failed
        if error != self._cu.CUresult.CUDA_SUCCESS:
            raise CudaError(error.name, f"cannot {what}")
        return results[0] if len(results) == 1 else tuple(results)

    # -- the device ------------------------------------------------------------------------------------------------
    def device(self, number: int) -> Any:
        """The one of a number, from 0.

        Raises:
            DeviceError: there is none.
        """
        count = self._do("count GPUs", self._cu.cuDeviceGetCount)
        if count == 0:
            raise CudaError("CUDA_ERROR_NO_DEVICE", "cannot open a GPU")
        if number >= count:
            raise DeviceError(f"there is no GPU {number}, only {count}", hint="they are counted from 0")
        return self._do("open the GPU", self._cu.cuDeviceGet, number)

    def name(self, device: Any) -> str:
        raw: bytes = self._do("ask the GPU's name", self._cu.cuDeviceGetName, 256, device)
        return raw.split(b"\0")[0].decode()

    def capability(self, device: Any) -> int:
        """Ten times the compute capability."""
        kinds = self._cu.CUdevice_attribute
        found = [
            self._do("ask what the GPU can", self._cu.cuDeviceGetAttribute, getattr(kinds, name), device)
            for name in (
                "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR",
                "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR",
            )
        ]
        return int(found[0]) * 10 + int(found[1])

    def most_shared(self, device: Any) -> int:
        """Bytes of shared memory that a block may ask for."""
        kind = self._cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        return int(self._do("ask what the GPU can", self._cu.cuDeviceGetAttribute, kind, device))

    def driver_version(self) -> str:
        """The newest CUDA that the driver knows."""
        n = self._do("ask the driver's version", self._cu.cuDriverGetVersion)
        return f"{n // 1000}.{n % 1000 // 10}"

    def retain(self, device: Any) -> Any:
        """The device's primary context, which others in the process share."""
        return self._do("open a context", self._cu.cuDevicePrimaryCtxRetain, device)

    def release(self, device: Any) -> None:
        self._do("close the context", self._cu.cuDevicePrimaryCtxRelease, device)

    def enter(self, context: Any) -> None:
        """The context is this thread's from now on."""
        self._do("enter the context", self._cu.cuCtxSetCurrent, context)

    # -- memory ----------------------------------------------------------------------------------------------------
    def allocate(self, nbytes: int) -> int:
        return int(self._do(f"allocate {nbytes} bytes", self._cu.cuMemAlloc, nbytes))

    def free(self, address: int) -> None:
        self._do("free memory", self._cu.cuMemFree, address)

    def pin(self, nbytes: int) -> int:
        """Memory of the host's that the device reads by itself.

        Raises:
            DeviceError: the host has none left, or the driver refuses.
        """
        what = f"pin {nbytes} bytes of the host's memory"
        try:
            return int(self._do(what, self._cu.cuMemHostAlloc, nbytes, 0))
        except CudaError as error:
            if error.name != "CUDA_ERROR_OUT_OF_MEMORY":
                raise
            hint = "close what else uses it, or take a smaller batch"
            raise DeviceError(f"cannot {what}: there is none left ({error.name})", hint=hint) from error

    def unpin(self, address: int) -> None:
        self._do("free pinned memory", self._cu.cuMemFreeHost, address)

    def to_device(self, device: int, host: int, nbytes: int, stream: Any) -> None:
        self._do("copy to the GPU", self._cu.cuMemcpyHtoDAsync, device, host, nbytes, stream)

    def to_host(self, host: int, device: int, nbytes: int, stream: Any) -> None:
        self._do("copy from the GPU", self._cu.cuMemcpyDtoHAsync, host, device, nbytes, stream)

    def copy(self, to: int, source: int, nbytes: int, stream: Any) -> None:
        self._do("copy on the GPU", self._cu.cuMemcpyDtoDAsync, to, source, nbytes, stream)

    # -- code ------------------------------------------------------------------------------------------------------
    def load(self, image: bytes) -> Any:
        return self._do("load the module's kernels", self._cu.cuModuleLoadData, image)

    def unload(self, module: Any) -> None:
        self._do("unload kernels", self._cu.cuModuleUnload, module)

    def function(self, module: Any, name: str) -> Any:
        return self._do(f"find kernel {name}", self._cu.cuModuleGetFunction, module, name.encode())

    def allow_shared(self, function: Any, nbytes: int) -> None:
        """Lets launches of a kernel ask for so much shared memory, which may be more than functions can declare."""
        kind = self._cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        what = f"get {nbytes} bytes of shared memory for a block"
        self._do(what, self._cu.cuFuncSetAttribute, function, kind, nbytes)

    def launch(
        self,
        function: Any,
        grid: Sequence[int],
        block: Sequence[int],
        shared: int,
        operands: Sequence[int],
        stream: Any,
    ) -> None:
        """Launches a kernel whose parameters are all addresses, with some bytes of shared memory for each block."""
        values = np.array(operands, np.uint64)
        places = values.ctypes.data + 8 * np.arange(len(operands), dtype=np.uint64)
        how = (*grid, *block, shared, stream, int(places.ctypes.data), 0)
        self._do("launch a kernel", self._cu.cuLaunchKernel, function, *how)

    # -- streams, events and graphs --------------------------------------------------------------------------------
    def stream(self) -> Any:
        flags = self._cu.CUstream_flags.CU_STREAM_NON_BLOCKING
        return self._do("make a stream", self._cu.cuStreamCreate, int(flags))

    def end_stream(self, stream: Any) -> None:
        self._do("end a stream", self._cu.cuStreamDestroy, stream)

    def wait(self, stream: Any) -> None:
        self._do("run the module", self._cu.cuStreamSynchronize, stream)

    def event(self) -> Any:
        return self._do("make an event", self._cu.cuEventCreate, 0)

    def end_event(self, event: Any) -> None:
        self._do("end an event", self._cu.cuEventDestroy, event)

    def record(self, event: Any, stream: Any) -> None:
        self._do("record an event", self._cu.cuEventRecord, event, stream)

    def record_in_graph(self, event: Any, stream: Any) -> None:
        """Has a graph that is being captured record an event when it comes here."""
        flags = self._cu.CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL
        self._do("record an event", self._cu.cuEventRecordWithFlags, event, stream, int(flags))

    def seconds(self, begin: Any, end: Any) -> float:
        """Between two events, once the second one has come."""
        self._do("run the module", self._cu.cuEventSynchronize, end)
        return float(self._do("take the time", self._cu.cuEventElapsedTime, begin, end)) * 1e-3

    def begin_capture(self, stream: Any) -> None:
        mode = self._cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._do("capture a graph", self._cu.cuStreamBeginCapture, stream, mode)

    def end_capture(self, stream: Any) -> Any:
        """What was captured, ready to be launched."""
        graph = self._do("capture a graph", self._cu.cuStreamEndCapture, stream)
        try:
            return self._do("make a graph", self._cu.cuGraphInstantiate, graph, 0)
        finally:
            self._do("end a graph", self._cu.cuGraphDestroy, graph)

    def launch_graph(self, graph: Any, stream: Any) -> None:
        self._do("launch the module", self._cu.cuGraphLaunch, graph, stream)

    def end_graph(self, graph: Any) -> None:
        self._do("end a graph", self._cu.cuGraphExecDestroy, graph)

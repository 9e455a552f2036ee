"""An NVIDIA GPU as the compiler sees it: kernels are machine code when they leave it."""

from __future__ import annotations

from collections.abc import Sequence

from mlc.runtime.device import Device
from mlc.targets.cuda.arch import ARCHS
from mlc.targets.cuda.compiler import Nvrtc, compile_source
from mlc.targets.cuda.dialect import CUDA_C
from mlc.targets.cuda.driver import CudaDevice
from mlc.targets.gpu.accelerator import GpuAccelerator
from mlc.targets.gpu.program import Image
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.tensor_cores import TF32


class CudaAccelerator(GpuAccelerator):
    """A device beside the host.

    Args:
        record: what schedules are made for.
        archs: for which machine code is made.
    """

    operand_alignment = 16  # of the widest access of a thread

    def __init__(self, record: Gpu, archs: Sequence[str]) -> None:
        super().__init__("cuda", record, CUDA_C, {"arch": ",".join(archs)})
        self.archs = tuple(archs)
        if TF32 in record.tensor:  # what is fastest so is not what is fastest in single precision
            self.processor += "-tf32"

    def unlike(self, device: Device) -> str:
        if not isinstance(device, CudaDevice):
            return ""
        here, newest = f"sm_{device.capability}", max((ARCHS[a] for a in self.archs), key=lambda a: a.number).name
        if here == newest or here not in ARCHS:
            return ""
        return f"{device.name} is {here}, and schedules are made for {newest}"

    def require_tools(self) -> None:
        Nvrtc.find()

    def images(self, source: str) -> tuple[Image, ...]:
        return compile_source(source, self.archs)

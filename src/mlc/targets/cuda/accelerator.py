"""An NVIDIA GPU as the compiler sees it: kernels are machine code when they leave it."""

from __future__ import annotations

from collections.abc import Mapping

from mlc.runtime.device import Device
from mlc.targets.cuda.arch import ARCHS
from mlc.targets.cuda.compiler import Nvrtc, compile_sources
from mlc.targets.cuda.dialect import CUDA_C
from mlc.targets.cuda.driver import CudaDevice
from mlc.targets.gpu.accelerator import GpuAccelerator
from mlc.targets.gpu.program import GpuProgram, Image
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.tensor_cores import TF32


class CudaAccelerator(GpuAccelerator):
    """GPUs beside the host, one an architecture.

    Args:
        records: what schedules are made for, by architecture; the first one is the newest.
    """

    operand_alignment = 16  # of the widest access of a thread
    anywhere = True

    def __init__(self, records: Mapping[str, Gpu]) -> None:
        super().__init__("cuda", tuple(records.values()), CUDA_C, {"arch": ",".join(records)})
        self.archs = {record: arch for arch, record in records.items()}
        if TF32 in self.record.tensor:  # what is fastest so is not what is fastest in single precision
            self.processor += "-tf32"

    def unlike(self, device: Device) -> str:
        if not isinstance(device, CudaDevice):
            return ""
        here, newest = f"sm_{device.capability}", self.archs[self.record]
        if here == newest or here not in ARCHS:
            return ""
        return f"{device.name} is {here}, and schedules are made for {newest}"

    def require_tools(self) -> None:
        Nvrtc.find()

    def images(self, texts: Mapping[Gpu, str]) -> Mapping[Gpu, tuple[Image, ...]]:
        compiled = compile_sources({self.archs[record]: text for record, text in texts.items()})
        return {record: (compiled[self.archs[record]],) for record in texts}

    def record_of(self, program: GpuProgram) -> Gpu:
        of = {arch: record for record, arch in self.archs.items()}
        return next((of[i.arch] for i in program.images if i.arch in of), self.record)

"""An NVIDIA GPU as the compiler sees it: kernels are machine code when they leave it."""

from __future__ import annotations

from collections.abc import Sequence

from mlc.targets.cuda.compiler import Nvrtc, compile_source
from mlc.targets.cuda.dialect import CUDA_C
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

    def require_tools(self) -> None:
        Nvrtc.find()

    def images(self, source: str) -> tuple[Image, ...]:
        return compile_source(source, self.archs)

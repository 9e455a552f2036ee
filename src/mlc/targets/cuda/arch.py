"""Architectures of NVIDIA GPUs, their limits, and what is known of devices.

Sources of the limits: CUDA Programming Guide, appendix "Compute Capabilities", tables of technical specifications
(https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/compute-capabilities.html; 10.3 is taken for 10.0);
those of 7.5, 8.0, 8.6 and 9.0 are also in CCCL's ``arch_traits.cuh``. Of the peaks, which are at boost clocks and
without sparsity: NVIDIA's data sheets of T4, A100 (40 GB), L4 (halved: it gives them with sparsity), H100 SXM and H200
SXM; its architecture white papers Turing (RTX 2080), GA102 (RTX 3090), Ada (RTX 4090) and RTX Blackwell (RTX 5090); the
technical briefs of Jetson AGX Orin (halved likewise) and of Blackwell (B200, B300). Compared with what others quote of
them: https://verda.com/blog/gb300-nvl72-architecture (B200, B300), https://glennklockwood.com/garden/processors/h100
(H100, H200).
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, replace
from functools import cache
from math import inf

from mlc.targets.gpu.record import Gpu

WARP = 32
REGISTERS = 65536  # of 32 bits, of a multiprocessor
REGISTERS_OF_THREAD = 255
STATIC_SHARED = 48 << 10  # bytes of a block that need not be asked for at run time
MAX_THREADS = 1024  # of a block
_REGISTER_UNIT = 256  # registers are given to warps in such steps
_SHARED_UNIT = 128  # bytes
_SHARED_SYSTEM = 1024  # bytes of a block that are the system's, from 8.0 on


@dataclass(frozen=True)
class Arch:
    """An architecture.

    Args:
        name: as ``-arch=`` has it.
        warps, blocks: that a multiprocessor holds at a time.
        shared: bytes of shared memory that it has for them.
        tensor: types that its Tensor Cores take.
        device: one of the architecture, which schedules are made for unless another one is named.
    """

    name: str
    warps: int
    blocks: int
    shared: int
    tensor: tuple[str, ...]
    device: str

    @property
    def number(self) -> int:
        """Ten times the compute capability."""
        return int(self.name.removeprefix("sm_"))

    @property
    def most_shared(self) -> int:
        """Bytes of shared memory that a block may ask for: all, but for what is the system's."""
        return self.shared - (_SHARED_SYSTEM if self.number >= 80 else 0)

    def occupancy(self, threads: int, registers: int, shared: int) -> float:
        """The share of a multiprocessor's warps that blocks of a kernel fill, 0 to 1.

        Args:
            threads: of a block, 1 to 1024.
            registers: of a thread.
            shared: bytes of a block.
        """
        warps = -(-threads // WARP)
        per_warp = -(-max(1, registers) * WARP // _REGISTER_UNIT) * _REGISTER_UNIT
        system = _SHARED_SYSTEM if self.number >= 80 else 0
        bytes_of_block = -(-(shared + system) // _SHARED_UNIT) * _SHARED_UNIT
        blocks = min(
            self.blocks,
            self.warps // warps,
            REGISTERS // per_warp // warps,
            self.shared // bytes_of_block if bytes_of_block else inf,
        )
        return blocks * warps / self.warps


_TURING = ("f16", "i8", "u8")
_AMPERE = (*_TURING, "bf16", "f32")

ARCHS = {
    a.name: a
    for a in (
        Arch("sm_75", 32, 16, 64 << 10, _TURING, "t4"),
        Arch("sm_80", 64, 32, 164 << 10, _AMPERE, "a100"),
        Arch("sm_86", 48, 16, 100 << 10, _AMPERE, "rtx3090"),
        Arch("sm_87", 48, 16, 164 << 10, _AMPERE, "orin"),
        Arch("sm_89", 48, 24, 100 << 10, _AMPERE, "rtx4090"),
        Arch("sm_90", 64, 32, 228 << 10, _AMPERE, "h200"),
        Arch("sm_100", 64, 32, 228 << 10, _AMPERE, "b200"),
        Arch("sm_103", 64, 32, 228 << 10, _AMPERE, "b300"),
        Arch("sm_120", 48, 24, 100 << 10, _AMPERE, "rtx5090"),
    )
}
DEFAULT = ("sm_75", "sm_80", "sm_90")


def _gpu(name: str, units: int, threads: int, gflops: float, gbytes: float, half: float, bytes_: float) -> Gpu:
    limits = (WARP, MAX_THREADS, STATIC_SHARED, REGISTERS_OF_THREAD)
    rates = (gflops, gbytes, 3.0)
    full = REGISTERS // threads
    gpu = Gpu(name, units, *limits, threads, 16, *rates, double=True, shuffles=True, full_registers=full)
    return replace(gpu, tensor_gflops=half, tensor_gops=bytes_)


# multiprocessors, threads of each, GFLOP/s, GB/s; of Tensor Cores, GFLOP/s in half precision, summed up in single, and
# 10^9 operations a second on bytes
_DEVICES = (
    ("sm_75", _gpu("t4", 40, 1024, 8100, 320, 65000, 130000)),
    ("sm_75", _gpu("rtx2080", 46, 1024, 10100, 448, 40300, 161100)),  # 1.71 GHz; half the rate with sums in f32
    ("sm_80", _gpu("a100", 108, 2048, 19500, 1555, 312000, 624000)),
    ("sm_86", _gpu("rtx3090", 82, 1536, 35600, 936, 71000, 284000)),
    ("sm_87", _gpu("orin", 16, 1536, 5300, 204, 42500, 85000)),
    ("sm_89", _gpu("rtx4090", 128, 1536, 82600, 1008, 165200, 660600)),
    ("sm_89", _gpu("l4", 58, 1536, 30300, 300, 121000, 242500)),
    ("sm_90", _gpu("h100", 132, 2048, 66900, 3350, 989400, 1978900)),
    ("sm_90", _gpu("h200", 132, 2048, 66900, 4800, 989400, 1978900)),
    ("sm_100", _gpu("b200", 148, 2048, 75000, 8000, 2250000, 4500000)),
    ("sm_103", _gpu("b300", 148, 2048, 75000, 8000, 2250000, 150000)),
    ("sm_120", _gpu("rtx5090", 170, 1536, 104800, 1792, 209500, 838000)),
)
DEVICES = {gpu.name: gpu for _, gpu in _DEVICES}
ARCH_OF = {gpu.name: arch for arch, gpu in _DEVICES}


def device_named(name: str, arch: Arch | None) -> Gpu | None:
    """What is known of a device: by its driver's name, or else of one of its architecture."""
    words = name.lower().replace("rtx ", "rtx").replace("-", " ").split()
    return next((gpu for gpu in DEVICES.values() if gpu.name in words), DEVICES[arch.device] if arch else None)


@cache
def installed() -> tuple[str, ...]:
    """The architecture of this machine's first GPU, if it has one that is known; asked without opening it."""
    try:
        asked = subprocess.run(
            ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=20, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ()
    names = [f"sm_{line.strip().replace('.', '')}" for line in asked.stdout.splitlines()]
    return tuple(name for name in names if name in ARCHS)[:1]

"""The target ``opencl``: a device with an OpenCL driver, beside a host.

``opencl -device=mali -host=x86``: options that are neither ``-device`` nor ``-host`` go to the host's target. Compiling
takes no driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from mlc.errors import UsageError
from mlc.ir.graph import Node
from mlc.ops.algorithms import Algorithm
from mlc.targets.base import Target
from mlc.targets.gpu.accelerator import GpuAccelerator
from mlc.targets.gpu.record import Gpu
from mlc.targets.hosted import HostedTarget, host_of
from mlc.targets.opencl.dialect import OPENCL_C, POCL_C

NAME = "opencl"

# `generic` has what the OpenCL 1.2 full profile promises and little more: its code runs nearly everywhere, as that of
# `pocl`, a processor that runs threads one after the other, does. Mali-T860 (Arm's optimisation guide for Midgard): 4
# cores of 2 pipes of 4 lanes at 650 MHz, shared memory in global memory, 4 vectors of registers a thread at full rate.
DEVICES = {
    gpu.name: gpu
    for gpu in (
        Gpu("generic", 8, 32, 256, 32 << 10, 64, 1024, 16, 1000.0, 50.0, 10.0, double=False),
        Gpu("pocl", 2, 8, 256, 64 << 10, 64, 256, 32, 50.0, 10.0, 20.0, double=True),
        Gpu("mali", 4, 4, 256, 0, 64, 256, 16, 41.6, 10.0, 50.0, double=False),
    )
}


class OpenClTarget(HostedTarget):
    """A host with the device beside it.

    Args:
        host: compiles what stays on the processor.
        record: the device.
    """

    def __init__(self, host: Target, record: Gpu) -> None:
        dialect = POCL_C if record.name == "pocl" else OPENCL_C
        accelerator = GpuAccelerator(NAME, record, dialect, {"device": record.name})
        super().__init__(NAME, host, accelerator, [f"-device={record.name}"])
        self.record = record

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """The target for options of its string form.

        Raises:
            UsageError: an unknown device or host, or an option that the host does not know.
        """
        left = dict(options)
        device = left.pop("device", "generic")
        if device not in DEVICES:
            raise UsageError(f"target opencl: unknown device {device!r}", hint=f"known: {', '.join(sorted(DEVICES))}")
        return cls(host_of(NAME, left, "-device and -host"), DEVICES[device])

    def algorithms(self, node: Node) -> Sequence[Algorithm]:
        """What the device has schedules for."""
        return (Algorithm.DIRECT,)

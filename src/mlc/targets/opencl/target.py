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
from mlc.targets.gpu.algorithms import algorithms_of
from mlc.targets.gpu.record import Gpu
from mlc.targets.hosted import HostedTarget, host_of
from mlc.targets.opencl.devices import DEVICES
from mlc.targets.opencl.dialect import OPENCL_C, POCL_C

NAME = "opencl"


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
        return algorithms_of(node, self.record)

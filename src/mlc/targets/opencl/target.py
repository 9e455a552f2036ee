"""The target ``opencl``: a device with an OpenCL driver, beside a host.

``opencl -device=mali -driver=pocl -host=x86``: options that are not its own go to the host's target. Compiling takes no
driver.
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
        driver: the device that runs what is compiled for the other one; that one itself, unless they are different.
    """

    def __init__(self, host: Target, record: Gpu, driver: str = "") -> None:
        driver = driver or record.name
        dialect = POCL_C if driver == "pocl" else OPENCL_C
        accelerator = GpuAccelerator(NAME, [record], dialect, {"device": driver})
        options = [f"-device={record.name}"]
        if driver != record.name:
            options.append(f"-driver={driver}")
            accelerator.processor += f"-on-{driver}"  # times there are none of the device's
        super().__init__(NAME, host, accelerator, options)
        self.record = record

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """The target for options of its string form.

        Raises:
            UsageError: an unknown device, driver or host, or an option that the host does not know.
        """
        left = dict(options)
        device = left.pop("device", "generic")
        driver = left.pop("driver", device)
        for what, name in (("device", device), ("driver", driver)):
            if name not in DEVICES:
                raise UsageError(f"target opencl: unknown {what} {name!r}", hint=f"known: {', '.join(sorted(DEVICES))}")
        return cls(host_of(NAME, left, "-device, -driver and -host"), DEVICES[device], driver)

    def algorithms(self, node: Node) -> Sequence[Algorithm]:
        return algorithms_of(node, self.record)

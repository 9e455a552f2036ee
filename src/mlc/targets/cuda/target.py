"""The target ``cuda``: an NVIDIA GPU beside a host.

``cuda -arch=sm_80,sm_90 -host=x86``: options that are not its own go to the host's target. Compiling takes neither a
GPU nor its driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from mlc.errors import UsageError
from mlc.ir.graph import Node
from mlc.ops.algorithms import Algorithm
from mlc.targets.base import Target
from mlc.targets.cuda.accelerator import CudaAccelerator
from mlc.targets.cuda.arch import ARCHS, DEFAULT, DEVICES, installed
from mlc.targets.gpu.record import Gpu
from mlc.targets.hosted import HostedTarget, host_of

NAME = "cuda"


class CudaTarget(HostedTarget):
    """A host with the GPU beside it.

    Args:
        host: compiles what stays on the processor.
        archs: for which machine code is made.
        record: what schedules are made for.
    """

    def __init__(self, host: Target, archs: Sequence[str], record: Gpu) -> None:
        options = [f"-arch={','.join(archs)}", f"-device={record.name}"]
        super().__init__(NAME, host, CudaAccelerator(record, archs), options)
        self.archs = tuple(archs)
        self.record = record

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """The target for options of its string form.

        ``arch`` is this machine's, where it has a GPU, or else some that are common. Schedules are made for the device
        that ``device`` names, or else for one of the newest architecture.

        Raises:
            UsageError: an unknown architecture, device or host, or an option that the host does not know.
        """
        left = dict(options)
        archs = tuple(dict.fromkeys(left.pop("arch").split(","))) if "arch" in left else installed() or DEFAULT
        for arch in archs:
            if arch not in ARCHS:
                raise UsageError(f"target cuda: unknown architecture {arch!r}", hint=f"known: {', '.join(ARCHS)}")
        device = left.pop("device", max((ARCHS[a] for a in archs), key=lambda a: a.number).device)
        if device not in DEVICES:
            raise UsageError(f"target cuda: unknown device {device!r}", hint=f"known: {', '.join(DEVICES)}")
        return cls(host_of(NAME, left, "-arch, -device and -host"), archs, DEVICES[device])

    def algorithms(self, node: Node) -> Sequence[Algorithm]:
        """What the device has schedules for."""
        return (Algorithm.DIRECT,)

"""The target ``cuda``: an NVIDIA GPU beside a host.

``cuda -arch=sm_80,sm_90 -tf32=on -host=x86``: options that are not its own go to the host's target. Compiling takes
neither a GPU nor its driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Self

from mlc.errors import UsageError
from mlc.ir.graph import Node
from mlc.ops.algorithms import Algorithm
from mlc.targets.base import Target
from mlc.targets.cuda.accelerator import CudaAccelerator
from mlc.targets.cuda.arch import ARCHS, DEFAULT, DEVICES, installed
from mlc.targets.gpu.algorithms import algorithms_of
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.tensor_cores import MMAS, TF32
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
        options = [f"-arch={','.join(archs)}", f"-device={record.name}", *(["-tf32=on"] * (TF32 in record.tensor))]
        super().__init__(NAME, host, CudaAccelerator(record, archs), options)
        self.archs = tuple(archs)
        self.record = record

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """The target for options of its string form.

        ``arch`` is this machine's, where it has a GPU, or else some that are common. Schedules are made for the device
        that ``device`` names, or else for one of the newest architecture. With ``tf32=on`` products of f32 are made by
        Tensor Cores, which take 10 bits of the operands' fractions.

        Raises:
            UsageError: an unknown architecture, device or host, one without such Tensor Cores, or an option that the
                host does not know.
        """
        left = dict(options)
        archs = tuple(dict.fromkeys(left.pop("arch").split(","))) if "arch" in left else installed() or DEFAULT
        for arch in archs:
            if arch not in ARCHS:
                raise UsageError(f"target cuda: unknown architecture {arch!r}", hint=f"known: {', '.join(ARCHS)}")
        newest = max((ARCHS[a] for a in archs), key=lambda a: a.number)
        device = left.pop("device", newest.device)
        if device not in DEVICES:
            raise UsageError(f"target cuda: unknown device {device!r}", hint=f"known: {', '.join(DEVICES)}")
        types = set.intersection(*(set(ARCHS[a].tensor) for a in archs))  # one text is for all
        tf32 = left.pop("tf32", "off")
        if tf32 not in ("on", "off"):
            raise UsageError(f"target cuda: -tf32={tf32} is neither on nor off")
        if tf32 == "on" and "f32" not in types:
            old = next(a for a in archs if "f32" not in ARCHS[a].tensor)
            raise UsageError(f"target cuda: {old} has no Tensor Cores for tf32", hint="they are there from sm_80 on")
        tensor = tuple(
            m.name for m in MMAS.values() if {m.left.name, m.right.name} <= types and (m.name != TF32 or tf32 == "on")
        )
        # before sm_80, the same text copies as it goes
        ahead = newest.number >= 80
        record = replace(
            DEVICES[device],
            tensor=tensor,
            asynchronous=ahead,
            shared_bytes=min(ARCHS[a].most_shared for a in archs),
            unit_shared=newest.shared,
        )
        return cls(host_of(NAME, left, "-arch, -device, -tf32 and -host"), archs, record)

    def describe(self) -> dict[str, object]:
        return {**super().describe(), **({"tf32": True} if TF32 in self.record.tensor else {})}

    def algorithms(self, node: Node) -> Sequence[Algorithm]:
        return algorithms_of(node, self.record)

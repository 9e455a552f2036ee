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
from mlc.targets.cuda.arch import ARCH_OF, ARCHS, DEFAULT, DEVICES, Arch, installed
from mlc.targets.gpu.algorithms import algorithms_of
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.tensor_cores import MMAS, TF32
from mlc.targets.hosted import HostedTarget, host_of

NAME = "cuda"


class CudaTarget(HostedTarget):
    """A host with the GPU beside it.

    Args:
        host: compiles what stays on the processor.
        records: what schedules are made for, by architecture, as they are spelled.
    """

    def __init__(self, host: Target, records: Mapping[str, Gpu]) -> None:
        devices = ",".join(r.name for r in records.values())
        self.records = dict(sorted(records.items(), key=lambda item: -ARCHS[item[0]].number))
        self.archs = tuple(records)
        self.record = next(iter(self.records.values()))
        options = [f"-arch={','.join(records)}", f"-device={devices}", *(["-tf32=on"] * (TF32 in self.record.tensor))]
        super().__init__(NAME, host, CudaAccelerator(self.records), options)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """The target for options of its string form.

        ``arch`` is this machine's, where it has a GPU, or else some that are common. Each has schedules of its own, for
        the device of it that ``device`` names, or else for a common one. With ``tf32=on`` products of f32 are made by
        Tensor Cores, which take 10 bits of the operands' fractions.

        Raises:
            UsageError: an unknown architecture, device or host, a device of none of the architectures, an architecture
                without such Tensor Cores, or an option that the host does not know.
        """
        left = dict(options)
        archs = tuple(dict.fromkeys(left.pop("arch").split(","))) if "arch" in left else installed() or DEFAULT
        for arch in archs:
            if arch not in ARCHS:
                raise UsageError(f"target cuda: unknown architecture {arch!r}", hint=f"known: {', '.join(ARCHS)}")
        devices = {a: ARCHS[a].device for a in archs}
        for device in left.pop("device").split(",") if "device" in left else ():
            if device not in DEVICES:
                raise UsageError(f"target cuda: unknown device {device!r}", hint=f"known: {', '.join(DEVICES)}")
            if (arch := ARCH_OF[device]) not in archs:
                raise UsageError(f"target cuda: {device} is {arch}, which is not in -arch", hint=f"-arch={arch}")
            devices[arch] = device
        tf32 = left.pop("tf32", "off")
        if tf32 not in ("on", "off"):
            raise UsageError(f"target cuda: -tf32={tf32} is neither on nor off")
        if tf32 == "on" and (old := next((a for a in archs if "f32" not in ARCHS[a].tensor), "")):
            raise UsageError(f"target cuda: {old} has no Tensor Cores for tf32", hint="they are there from sm_80 on")
        records = {a: _record(ARCHS[a], DEVICES[device], tf32=tf32 == "on") for a, device in devices.items()}
        return cls(host_of(NAME, left, "-arch, -device, -tf32 and -host"), records)

    def describe(self) -> dict[str, object]:
        return {**super().describe(), **({"tf32": True} if TF32 in self.record.tensor else {})}

    def algorithms(self, node: Node) -> Sequence[Algorithm]:
        of = [algorithms_of(node, record) for record in self.records.values()]
        return tuple(a for a in of[0] if all(a in others for others in of))  # one graph is for all


def _record(arch: Arch, device: Gpu, *, tf32: bool) -> Gpu:
    """What schedules are made for: a device with what its architecture can."""
    types = set(arch.tensor)
    tensor = [m.name for m in MMAS.values() if {m.left.name, m.right.name} <= types and (m.name != TF32 or tf32)]
    return replace(
        device,
        tensor=tuple(tensor),
        asynchronous=arch.number >= 80,
        shared_bytes=arch.most_shared,
        unit_shared=arch.shared,
    )

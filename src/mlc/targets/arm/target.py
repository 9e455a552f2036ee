"""The ARM target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Self

from mlc.errors import UsageError
from mlc.ir.types import f16
from mlc.runtime.toolchain import is_here
from mlc.targets.arm.features import KNOWN, needed_features
from mlc.targets.arm.record import NAMES, record_for
from mlc.targets.cpu.options import processor_options
from mlc.targets.cpu.record import with_this_machine
from mlc.targets.cpu.target import CpuTarget

_LIBRARIES = ("gnu", "musl")
_SUMS = ("f32", "f16")
_OWN = f"-libc={'|'.join(_LIBRARIES)} and -sums={'|'.join(_SUMS)}"


class ArmTarget(CpuTarget):
    """Compiles for a 64-bit ARM processor with NEON under Linux.

    Unless ``-mcpu`` names one, that is this machine's where it is of that family, else any ARMv8-A. ``-libc=musl``
    links for systems with that C library. ``-sums=f16`` keeps sums of products of half precision in it as well.
    """

    name = "arm"
    triple = "aarch64-unknown-linux-gnu"
    keeps_nan = True
    fixed_product = "llvm.aarch64.neon.sqrdmulh"

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """The target for options of its string form.

        Raises:
            UsageError: an unknown option, processor, C library or type of sums, or one that the processor has not.
        """
        libc, sums = options.get("libc", _LIBRARIES[0]), options.get("sums", _SUMS[0])
        if libc not in _LIBRARIES:
            raise UsageError(f"target arm: unknown C library {libc!r}", hint="known: " + ", ".join(_LIBRARIES))
        if sums not in _SUMS:
            raise UsageError(f"target arm: sums are not {sums!r}", hint="known: " + ", ".join(_SUMS))
        machine = cls._for_processor({k: v for k, v in options.items() if k not in ("libc", "sums")})
        machine.triple = f"{cls.triple.rpartition('-')[0]}-{libc}"
        if sums == "f16" and f16.itemsize not in machine.record.elements:
            cpu = machine.record.cpu
            raise UsageError(
                f"target arm: {cpu} does not compute in f16", hint="-sums=f16 is for processors with fullfp16 (-mattr)"
            )
        machine.record = replace(machine.record, half_sums=sums == "f16")
        return machine

    def describe(self) -> dict[str, object]:
        facts = super().describe()
        return {**facts, "string": f"{facts['string']} -sums=f16"} if self.record.half_sums else facts

    @classmethod
    def _for_processor(cls, options: Mapping[str, str]) -> Self:
        cpu, given = processor_options(cls.name, options, KNOWN, _OWN)
        here = is_here(cls.triple)
        if cpu == "native" and not here:
            raise UsageError("target arm: this machine is no ARM processor", hint="name one: -mcpu=cortex-a72")
        if cpu not in (None, "native") or not here:
            record = record_for(cpu or "generic", given)
            return cls(record, native=False, loadable=needed_features(record))
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        name = llvm.get_host_cpu_name()
        features = tuple(sorted(f"{'+' if on else '-'}{f}" for f, on in llvm.get_host_cpu_features().items()))
        record = with_this_machine(record_for(name if name in NAMES else "generic", (*features, *given)))
        return cls(record, native=True, loadable=needed_features(record))

"""The x86 target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from mlc.runtime.matrices import has_matrices
from mlc.targets.cpu.options import processor_options
from mlc.targets.cpu.record import with_this_machine
from mlc.targets.cpu.target import CpuTarget
from mlc.targets.x86.features import KNOWN, needed_features
from mlc.targets.x86.record import host_name, record_for


class X86Target(CpuTarget):
    """Compiles for an x86-64 processor, this machine's unless ``-mcpu`` names another."""

    name = "x86"
    triple = "x86_64-unknown-linux-gnu"
    evict = """
declare void @llvm.x86.sse2.clflush(ptr)
declare void @llvm.x86.sse2.mfence()

define internal void @evict(ptr %line) alwaysinline {
  call void @llvm.x86.sse2.clflush(ptr %line)
  ret void
}

define internal void @evicted() alwaysinline {
  call void @llvm.x86.sse2.mfence()
  ret void
}
"""

    @property
    def packed_lanes(self) -> int:
        return 16 if self.record.lanes == 16 and "avx512bw" in needed_features(self.record) else 0

    @property
    def masks(self) -> bool:
        return self.record.lanes == 16 and "avx512vl" in needed_features(self.record)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """The target for options of its string form.

        Raises:
            UsageError: an unknown option or processor.
        """
        cpu, given = processor_options(cls.name, options, KNOWN)
        if cpu not in (None, "native"):
            record = record_for(cpu, given)
            return cls(record, native=False, loadable=needed_features(record))
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        host = dict(llvm.get_host_cpu_features())
        if host.get("amx-tile", False) and not has_matrices():
            host["amx-tile"] = False
        features = (*sorted(f"{'+' if on else '-'}{f}" for f, on in host.items()), *given)
        name = host_name(llvm.get_host_cpu_name(), [feature for feature, on in host.items() if on])
        record = with_this_machine(record_for(name, features))
        return cls(record, native=True, loadable=needed_features(record))

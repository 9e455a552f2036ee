"""The native thread pool that travels inside every compiled model, as LLVM IR text."""

from __future__ import annotations

from importlib.resources import files

from mlc.errors import UnsupportedError

# What differs between CPUs: the number of the futex system call (Linux, asm/unistd.h), and the instruction that tells
# the core that it is in a spinning loop.
_CPUS = {
    "x86_64": (202, "declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    # HINT #1 is YIELD
    "aarch64": (98, "declare void @llvm.aarch64.hint(i32 immarg)", "call void @llvm.aarch64.hint(i32 1)"),
}

_CPU_TEXT = """
; ------------------------------------------------------------------------------------------- what differs between CPUs

@mlc.pool.futex_number = internal unnamed_addr constant i64 {futex}

{declaration}

define internal void @mlc.pool.relax() alwaysinline nounwind {{
  {relax}
  ret void
}}
"""


def pool_ir(triple: str) -> str:
    """The thread pool as LLVM IR text, to be pasted into (or linked with) a model's module.

    It defines ``mlc_pool_create``, ``mlc_pool_destroy`` and ``mlc_parallel``; everything else it defines is internal
    and starts with ``mlc.pool``. It declares ``calloc``, ``free``, ``pthread_create``, ``pthread_join``, ``syscall``
    and one intrinsic, which the text it is pasted into must not declare again. ``pool.ll`` documents the calls.

    Args:
        triple: LLVM target triple; a 64-bit Linux on x86-64 or AArch64.
    Raises:
        UnsupportedError: there is no pool for that CPU.
    """
    cpu = triple.split("-", 1)[0]
    if cpu not in _CPUS:
        raise UnsupportedError(f"no thread pool for target triple {triple!r}", hint="known CPUs: " + ", ".join(_CPUS))
    futex, declaration, relax = _CPUS[cpu]
    text = files(__package__).joinpath("pool.ll").read_text(encoding="utf-8")
    return text + _CPU_TEXT.format(futex=futex, declaration=declaration, relax=relax)

"""Native code around candidates: the thread pool, a loop that calls and times a kernel, one that shows the roof, and
one that empties caches.

It is linked once in a process; candidates come and go beside it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from mlc.errors import DeviceError
from mlc.runtime.native import link
from mlc.targets.cpu.record import Cpu

_CHAINS = 12  # multiply-adds take 4 or 5 cycles, and two can start in each: 10 chains would just do
_CALL = (ctypes.c_void_p,) * 5

_REPEAT = """

; Nanoseconds that %n calls of %run take together.
define i64 @repeat{OWN}(ptr %run, ptr %inputs, ptr %outputs, ptr %params, ptr %workspace, ptr %pool, i64 %n) {
entry:
  %start = call i64 @{NOW}()
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %body, label %done
body:
  %r = call i32 %run(ptr %inputs, ptr %outputs, ptr %params, ptr %workspace, ptr %pool)
  %next = add i64 %i, 1
  br label %head
done:
  %end = call i64 @{NOW}()
  %took = sub i64 %end, %start
  ret i64 %took
}
"""

# Line by line rather than by reading much else: that would leave alone what other cores have in caches of their own,
# and would have to know how large the last cache is and how it replaces. What was written goes to memory.
_FLUSH = """
; Takes lines %begin to %end of the memory at %base out of the caches of all cores; the signature is mlc_parallel's.
define void @flush(ptr %base, i64 %begin, i64 %end) {
entry:
  br label %head
head:
  %i = phi i64 [ %begin, %entry ], [ %next, %body ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %body, label %done
body:
  %offset = mul i64 %i, {LINE}
  %line = getelementptr i8, ptr %base, i64 %offset
  call void @evict(ptr %line)
  %next = add i64 %i, 1
  br label %head
done:
  call void @evicted()
  ret void
}
"""


def support_object(record: Cpu, evict: str) -> bytes:
    """The object with all that is above, for this machine.

    Args:
        record: of the processor.
        evict: what empties caches there, as LLVM IR (see :class:`~mlc.targets.cpu.target.CpuTarget`); left out where
            nobody will ask for it.
    """
    import llvmlite.binding as llvm

    from mlc.targets.llvm.clock import CLOCK, THREAD_CLOCK
    from mlc.targets.llvm.module import Machine, compile_text

    llvm.initialize_native_target()
    features = llvm.get_host_cpu_features().flatten()
    machine = Machine(llvm.get_process_triple(), llvm.get_host_cpu_name(), features, record.vector_bits)
    flush = evict + _FLUSH.replace("{LINE}", str(record.cache_line)) if evict else ""
    repeats = _REPEAT.replace("{OWN}", "").replace("{NOW}", "mlc.now")
    repeats += _REPEAT.replace("{OWN}", "_own").replace("{NOW}", "mlc.spent")
    return compile_text(CLOCK + THREAD_CLOCK + repeats + _multiply_adds(record.lanes) + flush, machine)


class Support:
    """The support code in this process, with a pool of threads.

    Args:
        pool: an object with the target's thread pool.
        loops: from :func:`support_object`.
        threads: of the pool, the caller included.
        line: bytes of a cache line.
        flush: whether caches will be emptied, for which the object was made.
    """

    def __init__(self, pool: bytes, loops: bytes, threads: int, line: int, flush: bool) -> None:
        self._line = line
        self._pools = link(pool, ("mlc_parallel", "mlc_pool_create"))
        # A kernel of one thread takes the time that this one has a core for, whoever else has it meanwhile.
        repeat = "repeat_own" if threads == 1 else "repeat"
        self._loops = link(loops, (repeat, "arithmetic", *(("flush",) if flush else ())))
        code = self._loops[1]
        self._repeat = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, *_CALL, ctypes.c_int64)(code[repeat])
        self._arithmetic = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(code["arithmetic"])
        self._flush: int = code["flush"] if flush else 0
        parallel = ctypes.CFUNCTYPE(None, *_CALL[:3], ctypes.c_int64)
        self._parallel = parallel(self._pools[1]["mlc_parallel"])
        create = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int32)(self._pools[1]["mlc_pool_create"])
        self.pool: int | None = create(threads)
        if self.pool is None:
            raise DeviceError(f"cannot start a pool of {threads} threads")

    def code(self, obj: bytes) -> Code:
        """A candidate's object, linked beside the pool.

        Raises:
            PackageError: it cannot be linked.
        """
        return Code(*link(obj, ("mlc_run",), {"mlc_parallel": self._pools[1]["mlc_parallel"]}))

    def repeat(self, code: Code, call: Sequence[int | None], n: int) -> int:
        """Nanoseconds of ``n`` calls; ``call`` are the arguments of ``mlc_run``."""
        took: int = self._repeat(code.run_address, *call, n)
        return took

    def flush(self, address: int, nbytes: int) -> None:
        """Takes memory out of all caches.

        All threads of the pool do a part: they are awake afterwards, as between two kernels of a model.
        """
        start = address // self._line * self._line
        self._parallel(self.pool, self._flush, start, -(-(address + nbytes - start) // self._line))

    def peak_flops(self, lanes: int) -> float:
        """Operations a second that one core reaches in multiply-adds, the best of some short runs."""
        turns, took = 1000, 1
        while (took := self._arithmetic(turns)) < 1_000_000:
            turns *= 2
        took = min(took, *(self._arithmetic(turns) for _ in range(5)))
        return 2e9 * _CHAINS * lanes * turns / max(1, took)


class Code:
    """One linked object."""

    def __init__(self, jit: Any, code: Any) -> None:
        self._jit, self._code = jit, code
        self.run_address: int = code["mlc_run"]
        self.run = ctypes.CFUNCTYPE(ctypes.c_int32, *_CALL)(self.run_address)

    def close(self) -> None:
        self._code.close()
        self._jit.close()


def _multiply_adds(lanes: int) -> str:
    """``i64 arithmetic(i64 turns)``: nanoseconds of ``turns`` multiply-adds in each of some independent chains."""
    vector = f"<{lanes} x float>"

    def splat(value: float) -> str:
        return f"<{', '.join([f'float {value:.1f}'] * lanes)}>"

    chains = range(_CHAINS)
    phis = [f"  %a{k} = phi {vector} [ {splat(k)}, %entry ], [ %n{k}, %loop ]" for k in chains]
    # 0.5 x + 1 stays finite for ever
    steps = [
        f"  %n{k} = call {vector} @llvm.fmuladd.v{lanes}f32({vector} %a{k}, {vector} {splat(0.5)}, {vector} {splat(1)})"
        for k in chains
    ]
    sums = [f"  %s{k} = fadd {vector} %{'n0' if k == 1 else f's{k - 1}'}, %n{k}" for k in chains if k]
    return "\n".join(
        [
            f"declare {vector} @llvm.fmuladd.v{lanes}f32({vector}, {vector}, {vector})",
            f"@sink = internal global {vector} zeroinitializer, align 64",
            "define i64 @arithmetic(i64 %turns) {",
            "entry:",
            "  %start = call i64 @mlc.spent()",
            "  br label %loop",
            "loop:",
            "  %t = phi i64 [ 0, %entry ], [ %next, %loop ]",
            *phis,
            *steps,
            "  %next = add i64 %t, 1",
            "  %more = icmp slt i64 %next, %turns",
            "  br i1 %more, label %loop, label %done",
            "done:",
            *sums,
            f"  store volatile {vector} %s{_CHAINS - 1}, ptr @sink, align 64",
            "  %end = call i64 @mlc.spent()",
            "  %took = sub i64 %end, %start",
            "  ret i64 %took",
            "}",
            "",
        ]
    )

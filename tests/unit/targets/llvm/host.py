"""Kernels compiled for this machine and run on memory whose neighbours must not be touched.

Every array lies against an unreadable page, at its beginning or at its end. Kernels run in a child process: an access
outside, or a loop without end, kills the child and fails the test.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import numpy as np
import pytest

from mlc.ir.loop import Function
from mlc.targets.llvm.function import emit_function
from mlc.targets.llvm.module import Machine, ModuleText, compile_text
from mlc.targets.llvm.runtime import pool_ir

llvm = pytest.importorskip("llvmlite.binding")
llvm.initialize_native_target()
llvm.initialize_native_asmprinter()

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_PAGE = mmap.PAGESIZE
_PATIENCE = 20  # seconds


@cache
def machine() -> Machine:
    """This machine."""
    features = llvm.get_host_cpu_features()
    bits = 512 if features.get("avx512f") else 256 if features.get("avx2") else 128
    return Machine(llvm.get_default_triple(), llvm.get_host_cpu_name(), features.flatten(), bits)


class Kernel:
    """A function of the loop AST as machine code.

    Args:
        fn: what to compile.
        opt_level: 0 to 3.
        target: another processor than this machine's, whose code it can run.
    """

    def __init__(self, fn: Function, opt_level: int = 3, target: Machine | None = None) -> None:
        target = target or machine()
        module = ModuleText()
        self.fn = fn
        self.scratch_bytes = emit_function(fn, module)
        module.define(_entry(fn))
        self.text = module.text(target)
        self._pooled = "@mlc_parallel(" in self.text
        whole = self.text + pool_ir(target.triple) if self._pooled else self.text
        code = compile_text(whole, target, opt_level=opt_level)
        self._jit = llvm.create_lljit_compiler()
        builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
        for symbol in ("entry", "mlc_pool_create", "mlc_pool_destroy") if self._pooled else ("entry",):
            builder.export_symbol(symbol)
        self._code = builder.link(self._jit, "kernel")
        self._entry = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(self._code["entry"])

    def run(self, arrays: Sequence[np.ndarray], *, threads: int = 1, at_end: bool = True) -> None:
        """Run on copies of the arrays between unreadable pages, and copy the outputs back."""
        with guarded([*[a.nbytes for a in arrays], self.scratch_bytes], at_end) as (*places, scratch):
            for a, at in zip(arrays, places, strict=True):
                ctypes.memmove(at, np.ascontiguousarray(a).ctypes.data, a.nbytes)
            ctypes.memset(scratch, 0x55, self.scratch_bytes)
            pointers = (ctypes.c_void_p * len(arrays))(*places)
            child = os.fork()
            if child == 0:
                signal.signal(signal.SIGSEGV, signal.SIG_DFL)
                signal.alarm(_PATIENCE)
                with self._pool(threads) as pool:
                    self._entry(ctypes.addressof(pointers), scratch, pool)
                os._exit(0)
            _, status = os.waitpid(child, 0)
            if os.WIFSIGNALED(status):
                pytest.fail(f"{signal.Signals(os.WTERMSIG(status)).name} in\n{self.fn!r}")
            for a, at in list(zip(arrays, places, strict=True))[-self.fn.outputs :]:
                a[...] = np.frombuffer(ctypes.string_at(at, a.nbytes), a.dtype).reshape(a.shape)

    @contextmanager
    def _pool(self, threads: int) -> Iterator[int | None]:
        """Threads to share parallel loops among; none at all for one."""
        if threads == 1 or not self._pooled:
            yield None
            return
        pool = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int32)(self._code["mlc_pool_create"])(threads)
        assert pool
        try:
            yield pool
        finally:
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._code["mlc_pool_destroy"])(pool)


def _entry(fn: Function) -> str:
    """``entry(ptr to pointers, scratch, pool)`` calls the kernel."""
    n = len(fn.params)
    lines = ["define void @entry(ptr %args, ptr %scratch, ptr %pool) {"]
    for k in range(n):
        lines += [f"  %q{k} = getelementptr ptr, ptr %args, i64 {k}", f"  %a{k} = load ptr, ptr %q{k}"]
    args = ", ".join([*(f"ptr %a{k}" for k in range(n)), "ptr %scratch", "ptr %pool"])
    return "\n".join([*lines, f"  call void @{fn.name}({args})", "  ret void", "}", ""])


@contextmanager
def guarded(sizes: Sequence[int], at_end: bool) -> Iterator[list[int]]:
    """Addresses of blocks of the given sizes, each against an unreadable page at its end (or its beginning).

    The scratch block, which code may expect to be aligned to 64 bytes, is aligned so in either case.
    """
    blocks = [(-(-max(n, 1) // _PAGE) * _PAGE, n) for n in sizes]
    total = sum(size + _PAGE for size, _ in blocks) + _PAGE
    base = _libc.mmap(None, total, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS, -1, 0)
    places = []
    at = base
    try:
        for size, n in blocks:
            assert _libc.mprotect(at, _PAGE, 0) == 0
            begin = at + _PAGE
            places.append(begin + size - n if at_end else begin)
            at = begin + size
        assert _libc.mprotect(at, _PAGE, 0) == 0
        yield places
    finally:
        _libc.munmap(base, total)

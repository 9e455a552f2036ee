"""Kernels compiled for this machine and run on memory whose neighbours must not be touched.

Every array lies against an unreadable page, at its beginning or at its end. Kernels run in a child process: an access
outside, or a loop without end, kills the child and fails the test. The child serves all tests until then, since a fork
takes longer than most kernels.
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import count
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

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


@cache
def _pool_object(target: Machine) -> bytes:
    """The thread pool, which is the same for all kernels, as an object."""
    return compile_text(pool_ir(target.triple), target)


class Kernel:
    """A function of the loop AST as machine code.

    Args:
        fn: what to compile.
        opt_level: 0 to 3.
        target: another processor than this machine's, whose code it can run.
        packed_lanes, masks: as for the module.
    """

    _numbers = count()

    def __init__(
        self,
        fn: Function,
        opt_level: int = 3,
        target: Machine | None = None,
        packed_lanes: int = 0,
        masks: bool = False,
    ) -> None:
        target = target or machine()
        module = ModuleText(packed_lanes=packed_lanes, masks=masks)
        self.fn = fn
        self.scratch_bytes = emit_function(fn, module)
        module.define(_entry(fn))
        self.text = module.text(target)
        pooled = "@mlc_parallel(" in self.text
        whole = self.text + "declare void @mlc_parallel(ptr, ptr, ptr, i64)\n" if pooled else self.text
        self._number = next(self._numbers)
        self._objects = [compile_text(whole, target, opt_level=opt_level), *([_pool_object(target)] if pooled else [])]

    def run(self, arrays: Sequence[np.ndarray], *, threads: int = 1, at_end: bool = True) -> None:
        """Run on copies of the arrays between unreadable pages, and copy the outputs back."""
        contents = [np.ascontiguousarray(a).tobytes() for a in arrays]
        call = Call(self._number, self._objects, contents, self.fn.outputs, self.scratch_bytes, threads, at_end)
        found = Child.run(call)
        if isinstance(found, int):
            pytest.fail(f"{signal.Signals(found).name} in\n{self.text}")  # the text of loops may be exponentially long
        for a, data in zip(arrays[len(arrays) - self.fn.outputs :], found, strict=True):
            a[...] = np.frombuffer(data, a.dtype).reshape(a.shape)


class Call(NamedTuple):
    """What the child is told to run: objects, known by a number, the first of which defines ``entry``."""

    number: int
    objects: list[bytes]
    arrays: list[bytes]  # the outputs last
    outputs: int
    scratch_bytes: int
    threads: int
    at_end: bool


class Child:
    """The process that runs kernels; a new one after each that was killed."""

    _current: Child | None = None

    def __init__(self) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                self._connection.close()
                _serve(theirs)
            finally:
                os._exit(1)
        theirs.close()

    @classmethod
    def run(cls, call: Call) -> list[bytes] | int:
        """The contents of the outputs, or the signal that killed the child."""
        child = cls._current = cls._current or cls()
        try:
            child._connection.send(call)
            reply: list[bytes] | Exception = child._connection.recv()
        except (EOFError, ConnectionError):
            cls._current = None
            child._connection.close()
            _, status = os.waitpid(child._pid, 0)
            assert os.WIFSIGNALED(status), "a kernel must not end the process"
            return os.WTERMSIG(status)
        if isinstance(reply, Exception):
            raise reply
        return reply


def _serve(connection: Connection) -> None:
    """Runs what it is told to, until the tests are over."""
    for number in (signal.SIGSEGV, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    number, code = -1, None
    while True:
        try:
            call: Call = connection.recv()
        except EOFError:
            return
        try:
            if call.number != number:
                number, code = call.number, _linked(call.objects)
            reply: list[bytes] | Exception = _run(code, call)
        except Exception as error:
            reply = error
        connection.send(reply)


def _linked(objects: list[bytes]) -> tuple[Any, Any]:
    """The code, and what keeps it in memory."""
    jit = llvm.create_lljit_compiler(use_jit_link=True)
    builder = llvm.JITLibraryBuilder().add_current_process()
    for obj in objects:
        builder.add_object_img(obj)
    for symbol in ("entry", "mlc_pool_create", "mlc_pool_destroy")[: 3 if len(objects) > 1 else 1]:
        builder.export_symbol(symbol)
    return builder.link(jit, "kernel"), jit


def _run(code: tuple[Any, Any], call: Call) -> list[bytes]:
    symbols, _ = code
    entry = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(symbols["entry"])
    with guarded([*map(len, call.arrays), call.scratch_bytes], call.at_end) as (*places, scratch):
        for data, at in zip(call.arrays, places, strict=True):
            ctypes.memmove(at, data, len(data))
        ctypes.memset(scratch, 0x55, call.scratch_bytes)
        pointers = (ctypes.c_void_p * len(places))(*places)
        signal.alarm(_PATIENCE)
        with _pool(symbols, call.threads if len(call.objects) > 1 else 1) as pool:
            entry(ctypes.addressof(pointers), scratch, pool)
        signal.alarm(0)
        first = len(places) - call.outputs
        sizes = map(len, call.arrays[first:])
        return [ctypes.string_at(at, size) for at, size in zip(places[first:], sizes, strict=True)]


@contextmanager
def _pool(symbols: Any, threads: int) -> Iterator[int | None]:
    """Threads to share parallel loops among; none at all for one."""
    if threads == 1:
        yield None
        return
    pool = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int32)(symbols["mlc_pool_create"])(threads)
    assert pool
    try:
        yield pool
    finally:
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(symbols["mlc_pool_destroy"])(pool)


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

"""A processor as a bench: objects are linked into the process that runs them, beside a thread pool."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence

import numpy as np

from mlc.errors import DeviceError
from mlc.ir.graph import Node
from mlc.targets.bench import Program
from mlc.targets.cpu.bench.operands import Operands
from mlc.targets.cpu.bench.support import Code, Support, support_object
from mlc.targets.cpu.record import Cpu


class CpuBench:
    """This machine, for objects that export ``mlc_run``.

    Args:
        pool: an object with the thread pool.
        record: of the processor.
        evict: what empties its caches, where they will be emptied; see :func:`support_object`.
    """

    exact = False
    device = ""

    def __init__(self, pool: bytes, record: Cpu, evict: str = "") -> None:
        self._pool, self._record, self._flush = pool, record, bool(evict)
        self._loops = support_object(record, evict)

    def require(self) -> None:
        """It is this machine."""

    def open(self, threads: int) -> CpuStand:
        support = Support(self._pool, self._loops, threads, self._record.cache_line, self._flush)
        return CpuStand(support, self._record.lanes)


class CpuStand:
    """Support code in this process."""

    def __init__(self, support: Support, lanes: int) -> None:
        self._support, self._lanes = support, lanes

    def load(self, program: Program, node: Node, constant: Sequence[bool]) -> Kernel:
        return Kernel(self._support, program, node, constant)

    def peak(self) -> float:
        return self._support.peak_flops(self._lanes)


class Kernel:
    """A kernel with its buffers.

    Args:
        support: to call it with.
        program: the kernel as an object.
        node: what it computes, with the layouts of its inputs and results.
        constant: which inputs are constants.
    Raises:
        PackageError: the object cannot be linked.
    """

    def __init__(self, support: Support, program: Program, node: Node, constant: Sequence[bool]) -> None:
        self._support = support
        self._operands = Operands(node, constant, program.scratch)
        self._memory = self._operands.memory
        self.results, self.check = self._operands.results, self._operands.check
        n = len(node.inputs)
        addresses = self._memory.addresses
        self._slots = [(ctypes.c_void_p * len(a))(*a) for a in (addresses[:n], addresses[n:-1])]
        self._call = (*map(ctypes.addressof, self._slots), addresses[-1], addresses[-1], support.pool)
        self._code: Code = support.code(program.data)

    def run(self, inputs: Sequence[np.ndarray], fill: int) -> float:
        self._operands.feed(inputs, fill)
        start = time.perf_counter()
        code = self._code.run(*self._call)
        seconds = time.perf_counter() - start
        if code:
            raise DeviceError(f"the kernel gave the code {code}")
        self.check()
        return seconds

    def sample(self, calls: int) -> int:
        return self._support.repeat(self._code, self._call, calls)

    def cold_sample(self, calls: int) -> int:
        """The same, where before each call all that it reads and writes is taken out of the caches."""
        took = 0
        for _ in range(calls):
            for address, buffer in zip(self._memory.addresses, self._memory.buffers, strict=True):
                self._support.flush(address, buffer.nbytes)
            took += self._support.repeat(self._code, self._call, 1)
        return took

    def close(self) -> None:
        self._code.close()

"""One candidate in the process that runs it: linked, with buffers of its own, checked and timed."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from mlc.harness.compare import compare, tolerance_for
from mlc.ir.graph import Node
from mlc.ir.layout import Layout
from mlc.records.measurement import Failure
from mlc.tune.measure.cases import Case, margins_are_zero, physical
from mlc.tune.measure.memory import GuardedBuffers
from mlc.tune.measure.native import Code, Support

_CANARIES = (0xFF, 0x5A)  # what results hold before a run; as floats: NaN, and 1.5e16
_KEPT = 256 << 20  # bytes of packed inputs to keep

_libc: Any = ctypes.CDLL(None)
_libc.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class CandidateError(Exception):
    """A candidate misbehaved.

    Args:
        failure: how.
        message: in words.
    """

    def __init__(self, failure: Failure, message: str) -> None:
        super().__init__(message)
        self.failure = failure


class Packed:
    """Inputs in the layouts that candidates want, kept for the next ones."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self.cases = cases
        self._arrays: dict[tuple[int, int, Layout | None], np.ndarray] = {}
        self._bytes = 0

    def get(self, number: int, position: int, layout: Layout | None, constant: bool) -> np.ndarray:
        """Input ``position`` of a set, as it lies in memory. Padding of constants is zero."""
        key = (0 if constant else number, position, layout)
        found = self._arrays.get(key)
        if found is None:
            array = self.cases[number].inputs[position]
            if constant:
                found = np.ascontiguousarray(array) if layout is None else layout.pack(array)
            else:
                found = physical(array, layout)
            if self._bytes + found.nbytes > _KEPT:
                self._arrays.clear()
                self._bytes = 0
            self._arrays[key] = found
            self._bytes += found.nbytes
        return found


class Candidate:
    """A kernel with its buffers.

    Args:
        support: to call it with.
        code: the kernel as an object.
        node: what it computes, with the layouts of its inputs and results.
        constant: which inputs are constants.
        scratch: bytes of memory that the kernel wants besides.

    Attributes:
        seconds: that the last run took.
    Raises:
        PackageError: the object cannot be linked.
    """

    seconds = 0.0

    def __init__(self, support: Support, code: bytes, node: Node, constant: Sequence[bool], scratch: int) -> None:
        self._support = support
        self.node = node
        self._constant = constant
        ins, outs = node.inputs, node.outputs
        self._memory = GuardedBuffers([*(v.type.nbytes for v in (*ins, *outs)), max(scratch, 64)])
        n = len(ins)
        self._inputs = self._memory.buffers[:n]
        self._results = self._memory.buffers[n:-1]
        self._scratch = self._memory.buffers[-1]
        addresses = self._memory.addresses
        self._slots = [(ctypes.c_void_p * len(a))(*a) for a in (addresses[:n], addresses[n:-1])]
        self._call = (*map(ctypes.addressof, self._slots), addresses[-1], addresses[-1], support.pool)
        self._given: list[np.ndarray] = []
        self.code: Code = support.code(code)

    def run(self, packed: Packed, number: int) -> None:
        """Runs once on a set of inputs.

        Raises:
            CandidateError: it wrote where it must not, or says that it failed.
        """
        before = {id(array) for array in self._given}
        self._given = [packed.get(number, k, v.type.layout, self._constant[k]) for k, v in enumerate(self.node.inputs)]
        for buffer, array, constant in zip(self._inputs, self._given, self._constant, strict=True):
            # after a run that raised nothing, constants are where they were
            if not (constant and id(array) in before):
                buffer[...] = array.reshape(-1).view(np.uint8)
        for buffer in (*self._results, self._scratch):
            buffer.fill(_CANARIES[number % len(_CANARIES)])
        start = time.perf_counter()
        code = self.code.run(*self._call)
        self.seconds = time.perf_counter() - start
        if code:
            raise CandidateError(Failure.RUN_CRASH, f"the kernel gave the code {code}")
        self.check_memory()

    def sample(self, n: int) -> int:
        """Nanoseconds of ``n`` calls."""
        return self._support.repeat(self.code, self._call, n)

    def cold_sample(self, n: int) -> int:
        """The same, where before each of them all that it reads and writes is taken out of the caches."""
        took = 0
        for _ in range(n):
            for address, buffer in zip(self._memory.addresses, self._memory.buffers, strict=True):
                self._support.flush(address, buffer.nbytes)
            took += self._support.repeat(self.code, self._call, 1)
        return took

    def check_memory(self) -> None:
        """Looks at the red zones and the inputs.

        Raises:
            CandidateError: something was written there.
        """
        broken = self._memory.broken()
        if broken:
            raise CandidateError(Failure.WRONG_MEMORY, f"it wrote {broken}")
        for k, (buffer, array) in enumerate(zip(self._inputs, self._given, strict=True)):
            if array.nbytes and _libc.memcmp(buffer.ctypes.data, array.ctypes.data, array.nbytes):
                raise CandidateError(Failure.WRONG_MEMORY, f"it changed input {k}")

    def results(self) -> list[np.ndarray]:
        """The results as they are now, logical.

        Raises:
            CandidateError: margins are not zero.
        """
        found = []
        for buffer, v in zip(self._results, self.node.outputs, strict=True):
            array = buffer.view(v.type.dtype.numpy).reshape(v.type.physical_shape)
            if not margins_are_zero(array, v.type.layout):
                raise CandidateError(Failure.WRONG_OUTPUT, f"{v.name}: its margin is not zero")
            found.append(array if v.type.layout is None else v.type.layout.unpack(array))
        return found

    def check_results(self, case: Case) -> None:
        """Compares every element.

        Raises:
            CandidateError: one is wrong.
        """
        for v, got, expected in zip(self.node.outputs, self.results(), case.results, strict=True):
            difference(v.name, got, expected)

    def close(self) -> None:
        self.code.close()


def difference(name: str, got: np.ndarray, expected: np.ndarray) -> None:
    """Compares two arrays.

    Raises:
        CandidateError: they differ by more than their element type excuses.
    """
    tolerance = tolerance_for(expected.dtype)
    if expected.dtype == np.float32 and expected.size:
        # one pass over the elements says yes to what is right; everything else, NaN included, gets a closer look
        with np.errstate(invalid="ignore", over="ignore"):
            worst = np.abs(got - expected).max()
        if worst <= tolerance.limit(float(np.abs(expected).max())):
            return
    found = compare(name, got, expected, tolerance)
    if not found.ok:
        raise CandidateError(Failure.WRONG_OUTPUT, f"{name}: {found.summary()}")

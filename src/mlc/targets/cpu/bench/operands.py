"""A candidate's operands and results in memory, between red zones."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from mlc.ir.graph import Node
from mlc.targets.bench import StrayWriteError
from mlc.targets.cpu.bench.memory import GuardedBuffers

_libc: Any = ctypes.CDLL(None)
_libc.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class Operands:
    """Buffers for what a group reads and writes, and its scratch memory.

    Args:
        node: the group, with the layouts of its inputs and results.
        constant: which inputs are constants.
        scratch: bytes of working memory.
        file: that holds them, for another process to map; only this one has them unless given.

    Attributes:
        memory: the buffers: inputs, results, scratch.
    """

    def __init__(self, node: Node, constant: Sequence[bool], scratch: int, file: int = -1) -> None:
        ins, outs = node.inputs, node.outputs
        self._constant, self._outputs = constant, outs
        self.memory = GuardedBuffers([*(v.type.nbytes for v in (*ins, *outs)), max(scratch, 64)], file)
        n = len(ins)
        self._inputs = self.memory.buffers[:n]
        self._results = self.memory.buffers[n:-1]
        self._scratch = self.memory.buffers[-1]
        self._given: list[np.ndarray] = []

    def feed(self, inputs: Sequence[np.ndarray], fill: int) -> None:
        """Brings inputs where they belong, and fills all else with a byte."""
        before = {id(array) for array in self._given}
        self._given = list(inputs)
        for buffer, array, constant in zip(self._inputs, self._given, self._constant, strict=True):
            # after a run that raised nothing, constants are where they were
            if not (constant and id(array) in before):
                buffer[...] = array.reshape(-1).view(np.uint8)
        for buffer in (*self._results, self._scratch):
            buffer.fill(fill)

    def results(self) -> list[np.ndarray]:
        """The results as they are now, in physical shape."""
        return [
            buffer.view(v.type.dtype.numpy).reshape(v.type.physical_shape)
            for buffer, v in zip(self._results, self._outputs, strict=True)
        ]

    def check(self) -> None:
        """Looks at the red zones and the inputs.

        Raises:
            StrayWriteError: something was written there.
        """
        broken = self.memory.broken()
        if broken:
            raise StrayWriteError(f"it wrote {broken}")
        for k, (buffer, array) in enumerate(zip(self._inputs, self._given, strict=True)):
            if array.nbytes and _libc.memcmp(buffer.ctypes.data, array.ctypes.data, array.nbytes):
                raise StrayWriteError(f"it changed input {k}")

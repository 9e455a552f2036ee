"""A target whose times are computed from programs, so that they are the same wherever they are taken."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mlc.ir.graph import Node
from mlc.rewrite.group import config_of
from mlc.targets.bench import Program
from mlc.targets.cpu.bench import CpuBench
from mlc.targets.cpu.bench.kernel import CpuStand, Kernel
from mlc.targets.x86.target import X86Target

LOG, DELAY, LIES = "MLC_TEST_LOG", "MLC_TEST_DELAY", "MLC_TEST_LIES"
"""Environment variables: a file that every run of a candidate is noted in; seconds that each takes besides; a folder,
while it is there, in which a board notes of which candidates it has said once that they take no time."""

LIE = 1e-8  # seconds


class SteadyTarget(X86Target):
    """An x86 whose candidates run and are checked as ever."""

    def bench(self, flush: bool = False) -> SteadyBench:
        found = super().bench(flush)
        assert isinstance(found, CpuBench)
        return SteadyBench(found)


class SteadyBench:
    exact = True
    device = ""

    def __init__(self, real: CpuBench) -> None:
        self._real = real

    def require(self) -> None:
        self._real.require()

    def open(self, threads: int) -> SteadyStand:
        return SteadyStand(self._real.open(threads))


class SteadyStand:
    def __init__(self, real: CpuStand) -> None:
        self._real = real

    def load(self, program: Program, node: Node, constant: Sequence[bool]) -> SteadyKernel:
        # what was built is the same for some configurations, and trials are told by these
        trial = hashlib.sha256(program.data + repr(sorted(config_of(node).items())).encode()).hexdigest()
        return SteadyKernel(self._real.load(program, node, constant), hashlib.sha256(program.data).hexdigest(), trial)

    def peak(self) -> float:
        return 0.0


class SteadyKernel:
    def __init__(self, real: Kernel, digest: str, trial: str) -> None:
        self._real, self._trial = real, trial
        self.results, self.check, self.close = real.results, real.check, real.close
        self.sample = self.cold_sample = lambda calls: round(1e9 * calls * self._seconds)
        self._seconds = LIE if self._lies() else 1e-6 * (1 + int(digest[:8], 16) % 1000)

    def _lies(self) -> bool:
        """Whether this is a candidate to lie about, whenever it is met first."""
        folder = Path(os.environ.get(LIES, "/nowhere"))
        if not folder.is_dir() or int(self._trial[:8], 16) % 3:
            return False
        try:
            (folder / self._trial).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def run(self, inputs: Sequence[np.ndarray], fill: int) -> float:
        begin = time.monotonic()
        time.sleep(float(os.environ.get(DELAY, "0")))
        self._real.run(inputs, fill)
        if os.environ.get(LOG):
            note = {"pid": os.getpid(), "trial": self._trial, "begin": begin, "end": time.monotonic()}
            with open(Path(os.environ[LOG]), "a", encoding="ascii") as file:
                file.write(json.dumps(note) + "\n")
        return self._seconds

"""Another processor as a bench: candidates become programs, and an emulator runs them beside this process.

Results, stray writes and crashes are those of the processor; times are the emulator's, and say nothing about it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mlc.errors import DeviceError, MissingDependencyError, PackageError
from mlc.ir.graph import Node
from mlc.runtime.toolchain import compiler_for, emulator_for, is_here, machine_of, run_tool
from mlc.targets.bench import Program
from mlc.targets.cpu.bench.operands import Operands

_DRIVER = Path(__file__).with_name("emulated.c")
_ORDER, _ANSWER = struct.Struct("<q"), struct.Struct("<qq")


class EmulatedBench:
    """An emulator of a processor, for objects that export ``mlc_run``.

    Args:
        pool: an object with the thread pool.
        triple: of the platform.
        cpu: LLVM's name of the processor.
    Raises:
        DeviceError: this machine can run them itself.
        MissingDependencyError: there is no emulator, or nothing that links for it.
    """

    exact = False
    device = ""

    def __init__(self, pool: bytes, triple: str, cpu: str) -> None:
        if is_here(triple):
            raise DeviceError(f"this machine is {machine_of(triple)}: nothing is to be emulated")
        emulator, compiler = emulator_for(triple, cpu), compiler_for(triple, static=True)
        if emulator is None or compiler is None:
            missing = "emulator of" if emulator is None else "linker for"
            raise MissingDependencyError(
                f"there is no {missing} {machine_of(triple)} here",
                hint=f"install qemu-user-static, and gcc-{machine_of(triple)}-linux-gnu or the extra mlc[cross]",
            )
        self._emulator, self._compiler = emulator, compiler
        with tempfile.TemporaryDirectory(prefix="mlc-") as folder:
            _run((*compiler, "-O2", "-c", str(_DRIVER), "-o", f"{folder}/driver.o"))
            self._objects = {"driver.o": Path(folder, "driver.o").read_bytes(), "pool.o": pool}

    def require(self) -> None:
        """It was looked for already."""

    def open(self, threads: int) -> EmulatedStand:
        return EmulatedStand(self._emulator, self._compiler, self._objects, threads)


class EmulatedStand:
    """A folder in which programs are linked; it goes with the process."""

    def __init__(
        self, emulator: Sequence[str], compiler: Sequence[str], objects: dict[str, bytes], threads: int
    ) -> None:
        self._emulator, self._compiler, self._threads = tuple(emulator), tuple(compiler), threads
        self._folder = tempfile.TemporaryDirectory(prefix="mlc-emulated-")
        self._number = 0
        for name, data in objects.items():
            Path(self._folder.name, name).write_bytes(data)

    def load(self, program: Program, node: Node, constant: Sequence[bool]) -> EmulatedKernel:
        self._number += 1
        path = Path(self._folder.name) / f"candidate{self._number}"
        obj = path.with_suffix(".o")
        obj.write_bytes(program.data)
        objects = (str(obj), *(f"{self._folder.name}/{name}" for name in ("driver.o", "pool.o")))
        _run((*self._compiler, *objects, "-o", str(path), "-lm", "-lpthread"))
        obj.unlink()
        return EmulatedKernel(self._emulator, path, program, node, constant, self._threads)

    def peak(self) -> float:
        return 0.0


class EmulatedKernel:
    """A program that an emulator runs, and the memory that it shares with this process."""

    def __init__(
        self,
        emulator: tuple[str, ...],
        path: Path,
        program: Program,
        node: Node,
        constant: Sequence[bool],
        threads: int,
    ) -> None:
        self._path = path
        file = os.memfd_create("operands")
        try:
            self._operands = Operands(node, constant, program.scratch, file)
            memory = self._operands.memory
            offsets = [a - memory.base for a in memory.addresses]
            counts = (len(node.inputs), len(node.outputs))
            words = (f"/proc/self/fd/{file}", memory.nbytes, threads, *counts, *offsets)
            self._process = subprocess.Popen(
                [*emulator, str(path), *map(str, words)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(file,),
                bufsize=0,
            )
        finally:
            os.close(file)
        self.results, self.check = self._operands.results, self._operands.check

    def run(self, inputs: Sequence[np.ndarray], fill: int) -> float:
        self._operands.feed(inputs, fill)
        code, took = self._order(1)
        if code:
            raise DeviceError(f"the kernel gave the code {code}")
        self.check()
        return took / 1e9

    def sample(self, calls: int) -> int:
        return max(1, self._order(calls)[1])

    def cold_sample(self, calls: int) -> int:
        return self.sample(calls)  # an emulator's caches are this machine's, and tell nothing

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._path.unlink(missing_ok=True)

    def _order(self, calls: int) -> tuple[int, int]:
        """Code of the last call, and nanoseconds of all."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        answer = b""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(_ORDER.pack(calls))
            while len(answer) < _ANSWER.size and (more := self._process.stdout.read(_ANSWER.size - len(answer))):
                answer += more
        if len(answer) < _ANSWER.size:
            status = self._process.wait()
            end = f"died of {signal.Signals(-status).name}" if status < 0 else f"ended its process with code {status}"
            raise DeviceError(f"the kernel {end}")
        code, took = _ANSWER.unpack(answer)
        return code, took


def _run(command: tuple[str, ...]) -> None:
    """Compiles or links.

    Raises:
        PackageError: it cannot.
    """
    try:
        status, said = run_tool(command)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PackageError(f"cannot be linked: {error}") from None
    if status:
        raise PackageError(f"cannot be linked: {said}")

"""A simulated accelerator with its memory: what programs are bound to and run on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mlc.errors import DeviceError, ProgramError
from mlc.vdla.config import VdlaConfig
from mlc.vdla.isa import Instruction
from mlc.vdla.program import BufferSpec, Program
from mlc.vdla.sim.dram import Dram
from mlc.vdla.sim.function import Functional
from mlc.vdla.sim.report import Report, make_report
from mlc.vdla.sim.timing import simulate
from mlc.vdla.sim.work import work_of


class Device:
    """An accelerator and its external memory.

    Args:
        config: the accelerator.
    """

    def __init__(self, config: VdlaConfig) -> None:
        self.config = config
        self.dram = Dram()
        self._machine: Functional | None = None
        self._arrays: dict[str, npt.NDArray[Any]] = {}

    def bind(self, name: str, array: npt.NDArray[Any]) -> None:
        """Names the array that a program's input is read from, or its output written to.

        Args:
            name: of the buffer.
            array: row-major, as many bytes as the buffer; an output's is written in place.
        Raises:
            DeviceError: the array's elements do not lie one after another.
        """
        if not array.flags.c_contiguous:
            raise DeviceError(f"the array bound to {name!r} is not contiguous", hint="copy it first")
        self._arrays[name] = array

    def run(self, program: Program, exec: bool = True, timing: bool = True) -> Report:
        """Runs a program on what is bound.

        Args:
            program: for this device's configuration (its times may differ).
            exec: compute; needs an array for every input and output.
            timing: simulate time; the report then has figures.
        Raises:
            DeviceError: an unbound buffer, an array of another size, an index outside a memory, a deadlock.
            ProgramError: the program is for another configuration, or its addresses cannot be bound.
        """
        self.check(program)
        places: list[int] = []
        try:
            for spec in program.buffers:
                places.append(self.place(program, spec, exec or spec.kind == "uop"))
                if exec and spec.kind in ("in", "out"):
                    array = self._array(spec)
                    if spec.kind == "in":
                        self.dram.write(places[-1], array)
            report = self.run_stream(program.bound(places), exec, timing, program.meta)
            for spec, place in zip(program.buffers, places, strict=True):
                if exec and spec.kind == "out":
                    self._array(spec).reshape(-1).view(np.uint8)[:] = self.dram.read(place, spec.nbytes)
        finally:
            for place in places:
                self.dram.free(place)
        return report

    def place(self, program: Program, spec: BufferSpec, fill: bool = True) -> int:
        """The address of new memory for a buffer of a program, with its constants or micro-ops in it."""
        place = self.dram.alloc(spec.nbytes, spec.alignment)
        content = program.contents(spec) if fill else None
        if content is not None:
            self.dram.write(place, content)
        return place

    def run_stream(
        self,
        instructions: Sequence[Instruction],
        exec: bool = True,
        timing: bool = True,
        meta: Mapping[str, Any] | None = None,
    ) -> Report:
        """Runs instructions with absolute addresses, from cleared on-chip memories; see ``run``."""
        report = Report(self.config, instructions)
        if timing:
            work = work_of(instructions, self.config, self.dram)
            timeline = simulate(work, self.config, instructions)
            report = make_report(self.config, instructions, work, timeline, meta or {})
        if exec:
            if self._machine is None:
                self._machine = Functional(self.config, self.dram)
            self._machine.reset()
            self._machine.run(instructions)
        return report

    def check(self, program: Program) -> None:
        """Refuses, with a ProgramError, a program for another configuration."""
        if program.config.hash != self.config.hash:
            raise ProgramError(
                f"the program is for configuration {program.config.hash:016x}, the device is {self.config.hash:016x}",
                hint="open the device with the program's configuration",
            )

    def _array(self, spec: BufferSpec) -> npt.NDArray[Any]:
        array = self._arrays.get(spec.name)
        if array is None:
            kind = "input" if spec.kind == "in" else "output"
            raise DeviceError(f"nothing is bound to the {kind} {spec.name!r}", hint="bind an array, or do not execute")
        if array.nbytes != spec.nbytes:
            raise DeviceError(f"buffer {spec.name!r} has {spec.nbytes} bytes, the array bound to it {array.nbytes}")
        return array

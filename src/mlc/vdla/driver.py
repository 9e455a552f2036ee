"""The driver: memory of the device, programs, single instructions, and what running them cost.

``Driver`` is the interface that a real device would have too; behind it is the simulator. ``open_device`` is the same
for the executor of packages, which knows nothing of the accelerator.
Source: the accelerator's specification, section 6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mlc.errors import DeviceError, UsageError
from mlc.vdla.config import VdlaConfig, load_config
from mlc.vdla.isa import Finish, Instruction, Unit, nop
from mlc.vdla.program import BufferSpec, Program
from mlc.vdla.sim import Device, Report
from mlc.vdla.sim.report import (
    Figures,
    assumptions,
    eta,
    gops,
    intensity,
    milliseconds,
    roof_share,
    useful,
    util,
)


class Backend(StrEnum):
    """What simulates the device: what it computes, how long it takes, or both."""

    FSIM = "fsim"
    TSIM = "tsim"
    BOTH = "both"


@dataclass(eq=False)
class Loaded:
    """A program in the device.

    Attributes:
        program: with addresses relative to its buffers.
        places: the address of every buffer that the driver keeps: constants, micro-ops, temporaries.
        bound: the address of every input and output that has one, by name.
    """

    program: Program
    places: dict[str, int]
    bound: dict[str, int] = field(default_factory=dict)
    # Times depend on neither data nor addresses: once simulated, they stay.
    timed: Report | None = None


class Driver:
    """An open device. Addresses are bytes in its memory.

    Args:
        config: the accelerator.
        backend: what is simulated.
    """

    def __init__(self, config: VdlaConfig, backend: Backend = Backend.BOTH) -> None:
        self.config = config
        self.backend = backend
        self._device: Device | None = Device(config)
        self._stream: list[Instruction] = []
        self._program: Loaded | None = None
        self._last: dict[Unit, Instruction] = {}
        self._pops: dict[Unit, set[Unit]] = {unit: set() for unit in Unit}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def alloc(self, nbytes: int) -> int:
        """The address of zeroed memory, 256-byte aligned; a DeviceError when the memory is full."""
        return self._open.dram.alloc(nbytes)

    def free(self, address: int) -> None:
        """Gives memory back; a DeviceError where nothing was allocated."""
        self._open.dram.free(address)

    def write(self, address: int, content: bytes | npt.NDArray[np.generic]) -> None:
        """Copies bytes into the device's memory; a DeviceError outside it."""
        self._open.dram.write(address, content)

    def read(self, address: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """A copy of the device's memory; a DeviceError outside it."""
        return self._open.dram.read(address, nbytes)

    def load_program(self, program: Program | bytes) -> Loaded:
        """Puts a program into the device: its constants, micro-ops and temporaries get their places.

        Raises:
            ProgramError: it is damaged, or for another configuration.
            DeviceError: the memory is full.
        """
        device = self._open
        if isinstance(program, bytes):
            program = Program.from_bytes(program, self.config)
        device.check(program)
        kept = [spec for spec in program.buffers if spec.kind not in ("in", "out")]
        return Loaded(program, {spec.name: device.place(program, spec) for spec in kept})

    def bind(self, loaded: Loaded, name: str, address: int) -> None:
        """Says where an input or output of a program lies.

        Raises:
            ProgramError: the program has no such buffer.
            DeviceError: the buffer is the program's own, it does not fit into what was allocated there, or it would
                lie over another one and one of the two is written.
        """
        spec = loaded.program.buffer(name)
        if spec.kind not in ("in", "out"):
            raise DeviceError(f"buffer {name!r} is neither an input nor an output")
        what = _title(spec)
        for other in loaded.program.buffers:
            at = loaded.places.get(other.name, loaded.bound.get(other.name))
            if at is None or other is spec or not (address < at + other.nbytes and at < address + spec.nbytes):
                continue
            if other.name in loaded.places:
                raise DeviceError(f"{what} would lie over {other.name!r}, which the program keeps")
            if "out" in (spec.kind, other.kind):
                raise DeviceError(
                    f"{what} would lie over the {_title(other)}",
                    hint="bind it elsewhere; unbind forgets what was bound before",
                )
        if (room := self._open.dram.room(address)) < spec.nbytes:
            raise DeviceError(
                f"{what} of {spec.nbytes} bytes does not fit at address {address}: {room} bytes are allocated there",
                hint="allocate as many bytes as the buffer has",
            )
        loaded.bound[name] = address

    def unbind(self, loaded: Loaded) -> None:
        """Forgets where all inputs and outputs of a program lie, so that they can be bound anew in any order."""
        loaded.bound.clear()

    def push(self, what: Instruction | Loaded) -> None:
        """Queues an instruction with absolute addresses, or a whole program, for ``sync``.

        Args:
            what: an instruction gets the token flags that ``dep_push`` and ``dep_pop`` ask for; a program is a stream
                of its own, beside which nothing else may be queued.
        Raises:
            DeviceError: something else is queued.
        """
        if self._program or (self._stream and isinstance(what, Loaded)):
            raise DeviceError("a program is a stream of its own", hint="call sync before queueing anything else")
        if isinstance(what, Loaded):
            self._program = what
            return
        unit = what.unit
        for other in self._pops[unit]:
            _flag(what, "pop", unit, other)
        self._pops[unit].clear()
        self._stream.append(what)
        self._last[unit] = what

    def dep_push(self, producer: Unit, consumer: Unit) -> None:
        """A token from what ``producer`` was last given to do; see ``dep_pop``.

        Raises:
            DeviceError: the units are not neighbours.
        """
        self._neighbours(producer, consumer)
        last = self._last.get(producer)
        if last is None or self._pops[producer] or _flagged(last, "push", producer, consumer):
            self.push(nop(producer))
            last = self._last[producer]
        _flag(last, "push", producer, consumer)

    def dep_pop(self, producer: Unit, consumer: Unit) -> None:
        """What ``consumer`` is given next waits for a token of ``producer``; a DeviceError as for ``dep_push``."""
        self._neighbours(producer, consumer)
        if producer in self._pops[consumer]:
            self.push(nop(consumer))
        self._pops[consumer].add(producer)

    def sync(self) -> Report:
        """Runs what was queued, from cleared on-chip memories, and waits for it.

        A stream of single instructions that does not end with FINISH gets one that waits for everything.

        Raises:
            DeviceError: an unbound buffer, an index outside a memory, a deadlock.
        """
        device = self._open
        exec, timing = self.backend is not Backend.TSIM, self.backend is not Backend.FSIM
        loaded, self._program = self._program, None
        if loaded is None:
            return device.run_stream(self._finished(), exec, timing)
        places = []
        for spec in loaded.program.buffers:
            address = loaded.places.get(spec.name, loaded.bound.get(spec.name))
            if address is None:
                raise DeviceError(f"nothing is bound to the buffer {spec.name!r}")
            places.append(address)
        stream = loaded.program.bound(places)
        report = device.run_stream(stream, exec, timing and loaded.timed is None, loaded.program.meta)
        if not timing:
            return report
        loaded.timed = loaded.timed or report
        return loaded.timed

    def close(self) -> None:
        """Gives the device back; twice is fine."""
        self._device = None

    @property
    def _open(self) -> Device:
        if self._device is None:
            raise DeviceError("the device is closed")
        return self._device

    def _neighbours(self, producer: Unit, consumer: Unit) -> None:
        if abs(producer - consumer) != 1:
            raise DeviceError(f"no queue leads from {producer.name} to {consumer.name}", hint="relay through CMP")

    def _finished(self) -> list[Instruction]:
        """The queued instructions, with FINISH at their end; the queue is empty then."""
        if not (self._stream and isinstance(self._stream[-1], Finish)):
            for unit in Unit:
                if self._pops[unit]:
                    self.push(nop(unit))
            for unit in (Unit.LD, Unit.ST):
                if unit in self._last:
                    self.dep_push(unit, Unit.CMP)
                    self.dep_pop(unit, Unit.CMP)
            self.push(Finish())
        stream, self._stream = self._stream, []
        self._last.clear()
        for waiting in self._pops.values():
            waiting.clear()
        return stream


def _title(spec: BufferSpec) -> str:
    return f"{'input' if spec.kind == 'in' else 'output'} {spec.name!r}"


def _flag(instruction: Instruction, action: str, unit: Unit, other: Unit) -> None:
    setattr(instruction, _name(action, unit, other), True)


def _flagged(instruction: Instruction, action: str, unit: Unit, other: Unit) -> bool:
    return bool(getattr(instruction, _name(action, unit, other)))


def _name(action: str, unit: Unit, other: Unit) -> str:
    return f"{action}_{'prev' if other < unit else 'next'}"


class PackageDevice:
    """The driver as the executor of packages wants it (entry point ``mlc.devices``)."""

    def __init__(self, config: VdlaConfig, backend: Backend = Backend.BOTH) -> None:
        self._driver = Driver(config, backend)

    def allocate(self, nbytes: int) -> int:
        """The address of new memory."""
        return self._driver.alloc(nbytes)

    def free(self, address: int) -> None:
        """Gives memory back."""
        self._driver.free(address)

    def load(self, program: bytes) -> Loaded:
        """Puts a program file into the device; errors as ``Driver.load_program``."""
        return self._driver.load_program(program)

    def write(self, address: int, data: npt.NDArray[np.uint8]) -> None:
        """Copies into the device's memory."""
        self._driver.write(address, data)

    def read(self, address: int, data: npt.NDArray[np.uint8]) -> None:
        """Copies the device's memory into ``data``."""
        data[:] = self._driver.read(address, len(data))

    def run(self, program: Loaded, addresses: Sequence[int]) -> Mapping[str, Any]:
        """Runs a program on its inputs, then outputs, in the program's order of buffers.

        Returns:
            without timing nothing; else ``seconds``, ``cycles`` and the figures of every layer.
        Raises:
            DeviceError: as many addresses as buffers were expected; and as ``Driver.sync``.
        """
        specs = program.program.buffers
        names = [spec.name for kind in ("in", "out") for spec in specs if spec.kind == kind]
        if len(names) != len(addresses):
            raise DeviceError(f"the program has {len(names)} inputs and outputs; {len(addresses)} addresses were given")
        self._driver.unbind(program)
        for name, address in zip(names, addresses, strict=True):
            self._driver.bind(program, name, address)
        self._driver.push(program)
        return facts(self._driver.sync())

    def close(self) -> None:
        """Gives the device back; twice is fine."""
        self._driver.close()


def facts(report: Report) -> dict[str, Any]:
    """The few figures of a run that a user of a package sees; all of them are in ``Report.to_dict``."""
    if report.total is None:
        return {}
    config = report.config
    return {
        "seconds": milliseconds(report.total.cycles, config) / 1e3,
        "cycles": report.cycles,
        **_figures(report.total, config),
        "assumptions": assumptions(config),
        "layers": [
            {"name": layer.name, "cycles": round(layer.cycles), **_figures(layer, config)} for layer in report.layers
        ],
    }


def _figures(part: Figures, config: VdlaConfig) -> dict[str, float]:
    """What is known of a layer, or of all, under the names of ``Report.to_dict``."""
    found = {
        "operations": None if part.macs is None else 2 * part.macs,
        "bytes_moved": sum(part.bytes.values()),
        "util": util(part),
        "useful": useful(part, config),
        "eta": eta(part, config),
        "gops": gops(part, config),
        "intensity": intensity(part),
        "roof_share": roof_share(part, config),
    }
    return {name: value for name, value in found.items() if value is not None}


def open_device(options: Mapping[str, str]) -> PackageDevice:
    """Opens the device for a package.

    Args:
        options: ``profile``, ``backend`` (``both`` without one), and fields of the configuration, by name.
    Raises:
        UsageError: an option that is unknown, or has a value that is not possible.
    """
    fields = dict(options)
    profile = fields.pop("profile", "full")
    name = fields.pop("backend", Backend.BOTH)
    if name not in list(Backend):
        raise UsageError(f"no backend is called {name!r}", hint="backends: " + ", ".join(Backend))
    config = load_config(profile, overrides=[f"{key}={value}" for key, value in fields.items()])
    return PackageDevice(config, Backend(name))

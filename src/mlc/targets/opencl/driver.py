"""The driver ``opencl``: memory, programs and launches by way of pyopencl.

Device memory is addressed by integers, as the executor has it: every allocation gets a range of numbers that no other
one has. A run's operands are sub-buffers, made once for the addresses that a program is run with.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from mlc.errors import DeviceError
from mlc.runtime.device import Report
from mlc.targets.gpu.listing import profiled
from mlc.targets.gpu.program import Command, GpuProgram, Operand, unpack
from mlc.targets.gpu.record import Gpu
from mlc.targets.opencl.devices import DEVICES

IN_A_ROW = 256  # runs that are waited for together
UNIT = 512  # bytes that addresses are multiples of
CPU = "pocl"  # the device that is a processor
_opened_by: set[int] = set()  # processes: drivers have threads, which one that is forked off does not get


@dataclass(eq=False)
class Loaded:
    """A program in the device.

    Attributes:
        program: what it does.
        built: its functions.
        params: constants.
        workspace, scratch: memory of its own.
        bound: launches with their operands, by the addresses of inputs and outputs.
    """

    program: GpuProgram
    built: Any
    params: list[Any]
    workspace: Any
    scratch: Any
    bound: dict[tuple[int, ...], list[_Step]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _Step:
    """A command with its operands in place.

    Args:
        kernel: with its arguments; ``None`` for a copy.
        buffers: its operands, which a kernel's arguments do not keep alive.
        threads, block: along x, y and z.
        nbytes, offsets: of a copy, and where in its buffers it begins.
    """

    kernel: Any
    buffers: tuple[Any, ...]
    threads: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    nbytes: int = 0
    offsets: tuple[int, ...] = ()


def open_device(options: Mapping[str, str]) -> OpenClDevice:
    """Opens the device that a package is for, the first one unless ``number`` says otherwise.

    Raises:
        DeviceError: there is no pyopencl, no driver, or no such device; or this process was forked off one that has
            opened a device, where drivers wait for ever.
    """
    if _opened_by and os.getpid() not in _opened_by:
        raise DeviceError(
            "OpenCL was in use when this process was forked off, and does not survive that",
            hint="tune before anything runs on the device, or in a process of its own: mlc tune",
        )
    try:
        import pyopencl as cl
    except ImportError as error:
        raise DeviceError(
            f"the module needs an OpenCL device, and pyopencl cannot be imported: {error}",
            hint="pip install 'mlc[opencl]'",
        ) from error
    wanted = options.get("device", "generic")
    try:
        found = [d for p in cl.get_platforms() for d in p.get_devices()]
    except cl.Error as error:
        raise DeviceError(f"no OpenCL driver answers: {error}", hint=_install(wanted)) from error
    processors = [d for d in found if d.type & cl.device_type.CPU]
    others = [d for d in found if d not in processors]
    if wanted == "mali":
        others = [d for d in others if "mali" in d.name.lower()]
    choice = processors if wanted == CPU else [*others, *(processors if wanted == "generic" else [])]
    if not choice:
        here = ", ".join(d.name for d in found) or "none"
        raise DeviceError(f"the module needs the OpenCL device {wanted!r}; devices here: {here}", hint=_install(wanted))
    number = int(options.get("number", "0"))
    if number >= len(choice):
        names = ", ".join(f"{k} is {d.name}" for k, d in enumerate(choice))
        raise DeviceError(f"there is no OpenCL device {number} of this kind", hint=names)
    _opened_by.add(os.getpid())
    return OpenClDevice(cl, choice[number])


def _install(wanted: str) -> str:
    if wanted == "mali":
        return "install its driver, or compile it to be tried on a processor: -device=mali -driver=pocl"
    return "install the driver of the device (for processors: the packages pocl-opencl-icd and ocl-icd-libopencl1)"


class OpenClDevice:
    """An open device.

    Args:
        cl: pyopencl.
        device: one of its devices.
    """

    def __init__(self, cl: Any, device: Any) -> None:
        self._cl = cl
        self.device = device
        self.name = str(device.name)
        profiling = cl.command_queue_properties.PROFILING_ENABLE
        with self._told("cannot be opened", "it may be taken, or gone: clinfo lists what is here"):
            self._context = cl.Context([device])
            self._queue = cl.CommandQueue(self._context, device, properties=profiling)
        self._memory: dict[int, Any] = {}
        self._next = UNIT
        self._open = True

    def allocate(self, nbytes: int) -> int:
        address = self._next
        self._memory[address] = self._buffer(nbytes)
        self._next += -(-max(1, nbytes) // UNIT) * UNIT + UNIT
        return address

    def free(self, address: int) -> None:
        found = self._memory.pop(address, None)
        if found is None:
            raise DeviceError(f"nothing is allocated at address {address}")
        found.release()

    def load(self, program: bytes) -> Loaded:
        (read,) = unpack(program)  # which the driver compiles, whatever the device
        self._check(read)
        cl = self._cl
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", cl.CompilerWarning)
                built = cl.Program(self._context, read.source).build(options=["-cl-std=CL1.2"])
        except cl.Error as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            raise DeviceError(f"{self.device.name} cannot build the program: {' | '.join(lines[:6])}") from error
        params = [self._buffer(a.nbytes) for a in read.params]
        for buffer, array in zip(params, read.params, strict=True):
            if array.nbytes:
                self._copy(buffer, array)
        return Loaded(read, built, params, self._buffer(read.workspace_bytes), self._buffer(read.scratch_bytes))

    def write(self, address: int, data: np.ndarray) -> None:
        if data.nbytes:
            buffer, offset = self._at(address, data.nbytes)
            self._copy(buffer, np.ascontiguousarray(data), dst_offset=offset)

    def read(self, address: int, data: np.ndarray) -> None:
        if data.nbytes:
            buffer, offset = self._at(address, data.nbytes)
            self._copy(data, buffer, src_offset=offset)

    def run(self, program: Loaded, addresses: Sequence[int]) -> Report:
        """Runs a program; ``seconds`` are those from the first command's begin to the last one's end.

        Raises:
            DeviceError: the device fails.
        """
        return {"seconds": self._seconds(self._events(program, addresses))}

    def repeat(self, program: Loaded, addresses: Sequence[int], times: int) -> float:
        """Seconds of runs in a row, by their events: handing a run to the driver's threads, and back, is not in them.

        Raises:
            DeviceError: the device fails.
        """
        seconds = 0.0
        for first in range(0, times, IN_A_ROW):
            runs = min(IN_A_ROW, times - first)
            events = self._events(program, addresses, runs)
            size = len(events) // runs
            seconds += sum(self._seconds(events[k * size : (k + 1) * size]) for k in range(runs))
        return seconds

    def profile(self, program: Loaded, addresses: Sequence[int]) -> Report:
        """The same, with the time of every step, which its commands' events say.

        Raises:
            DeviceError: the device fails.
        """
        events = self._events(program, addresses)
        seconds = [0.0] * len(program.program.steps)
        for command, event in zip(program.program.commands, events, strict=True):
            seconds[command.step] += self._seconds([event])
        record = self._record()

        def occupancy(c: Command) -> float | None:
            return None if record is None else record.occupancy(prod(c.block), c.shared + c.declared)

        kernels = profiled(program.program, seconds, record, occupancy)
        return {"seconds": self._seconds(events), "kernels": kernels}

    def _record(self) -> Gpu | None:
        """What is known of the device."""
        if self.device.type & self._cl.device_type.CPU:
            return DEVICES[CPU]
        return DEVICES["mali"] if "mali" in self.device.name.lower() else None

    def _events(self, program: Loaded, addresses: Sequence[int], runs: int = 1) -> list[Any]:
        """Of every command of some runs, which are over."""
        key = tuple(addresses)
        cl = self._cl
        events = []
        with self._told("failed"):
            if key not in program.bound:
                program.bound[key] = [self._bind(program, c, key) for c in program.program.commands]
            for step in program.bound[key] * runs:
                if step.kernel is not None:
                    events.append(cl.enqueue_nd_range_kernel(self._queue, step.kernel, step.threads, step.block))
                else:
                    (source, destination), (begin, to) = step.buffers, step.offsets
                    where = {"src_offset": begin, "dst_offset": to, "byte_count": step.nbytes}
                    events.append(cl.enqueue_copy(self._queue, destination, source, **where))
            self._queue.finish()
        return events

    def _seconds(self, events: Sequence[Any]) -> float:
        """From the first one's begin to the last one's end; a kernel that has failed has none, and then this does."""
        with self._told("failed"):
            return float((events[-1].profile.end - events[0].profile.start) * 1e-9) if events else 0.0

    def close(self) -> None:
        if self._open:
            self._open = False
            with contextlib.suppress(self._cl.Error):  # of a device that is lost, nothing is left to wait for
                self._queue.finish()
                for buffer in self._memory.values():
                    buffer.release()
            self._memory.clear()

    def _check(self, program: GpuProgram) -> None:
        most = self.device.max_work_group_size
        for c in program.commands:
            threads = int(np.prod(c.block)) if c.block else 0
            if threads > most:
                raise DeviceError(
                    f"kernel {c.kernel} runs blocks of {threads} threads, {self.device.name} has {most} at most",
                    hint="compile for this device: -device=",
                )

    def _buffer(self, nbytes: int) -> Any:
        cl = self._cl
        with self._told(f"has no {nbytes} bytes of memory left", "close what else uses it, or take a smaller batch"):
            return cl.Buffer(self._context, cl.mem_flags.READ_WRITE, max(UNIT, nbytes))

    def _copy(self, destination: Any, source: Any, **where: int) -> None:
        with self._told("cannot copy"):
            self._cl.enqueue_copy(self._queue, destination, source, is_blocking=True, **where)

    @contextlib.contextmanager
    def _told(self, what: str, hint: str = "") -> Iterator[None]:
        """What the driver refuses meanwhile is told as what has happened to the device."""
        try:
            yield
        except self._cl.Error as error:
            raise DeviceError(f"{self.name} {what}: {error}", hint=hint) from error

    def _at(self, address: int, nbytes: int) -> tuple[Any, int]:
        """The buffer that an address is in, and the bytes from its begin."""
        base = max((a for a in self._memory if a <= address), default=0)
        buffer = self._memory.get(base)
        if buffer is None or address - base + nbytes > buffer.size:
            raise DeviceError(f"{nbytes} bytes at address {address} are not allocated")
        return buffer, address - base

    def _bind(self, program: Loaded, command: Command, addresses: tuple[int, ...]) -> _Step:
        """A command with its operands in place."""
        places = [self._place(program, o, addresses) for o in command.operands]
        if not command.kernel:
            owners, offsets = zip(*places, strict=True)
            return _Step(None, owners, nbytes=command.operands[0].nbytes, offsets=offsets)
        buffers = tuple(_part(*at, o.nbytes) for at, o in zip(places, command.operands, strict=True))
        kernel = self._cl.Kernel(program.built, command.kernel)
        kernel.set_args(*buffers)
        threads = tuple(g * b for g, b in zip(command.grid, command.block, strict=True))
        return _Step(kernel, buffers, threads, command.block)

    def _place(self, program: Loaded, o: Operand, addresses: tuple[int, ...]) -> tuple[Any, int]:
        """The buffer that an operand is in, and the bytes from its begin."""
        if o.space == "param":
            return program.params[o.at], o.offset
        if o.space in ("workspace", "scratch"):
            return (program.workspace if o.space == "workspace" else program.scratch), o.at
        first = 0 if o.space == "input" else program.program.inputs
        return self._at(addresses[first + o.at] + o.offset, o.nbytes)


def _part(buffer: Any, offset: int, nbytes: int) -> Any:
    """A buffer within a buffer."""
    if offset == 0 and buffer.size <= max(UNIT, nbytes):
        return buffer
    return buffer.get_sub_region(offset, max(1, nbytes))

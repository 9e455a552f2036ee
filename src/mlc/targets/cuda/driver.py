"""The driver ``cuda``: memory, kernels and graphs of launches on an NVIDIA GPU.

Parameters are uploaded once, and a program's launches are captured in a graph, once for the addresses that it is run
with. Inputs and results go through pinned memory, and all goes by one stream: only reading waits.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from mlc.errors import DeviceError
from mlc.runtime.device import Report
from mlc.targets.cuda.api import Cuda, CudaError, bindings
from mlc.targets.cuda.arch import ARCHS, device_named
from mlc.targets.gpu.listing import profiled
from mlc.targets.gpu.program import Command, GpuProgram, Image, Operand, unpack


@dataclass(eq=False)
class Loaded:
    """A program in the device.

    Attributes:
        program: what it does.
        code: the machine code that runs, nothing where the driver has compiled assembly.
        module: the same, loaded.
        functions: its kernels, by name.
        params: addresses of its constants.
        workspace, scratch: addresses of memory of its own.
        graphs: its launches, by the addresses of inputs and outputs,
        profiles: and with events before, between and after them.
    """

    program: GpuProgram
    code: Image | None
    module: Any
    functions: dict[str, Any] = field(default_factory=dict)
    params: list[int] = field(default_factory=list)
    workspace: int = 0
    scratch: int = 0
    graphs: dict[tuple[int, ...], Any] = field(default_factory=dict)
    profiles: dict[tuple[int, ...], tuple[Any, list[Any]]] = field(default_factory=dict)


class Elapsed(Mapping[str, Any]):
    """A report whose ``seconds`` the device is asked for when they are wanted; good until the same is done again."""

    def __init__(self, cuda: Cuda, begin: Any, end: Any) -> None:
        self._cuda, self._begin, self._end = cuda, begin, end

    def __getitem__(self, key: str) -> float:
        if key != "seconds":
            raise KeyError(key)
        return self._cuda.seconds(self._begin, self._end)

    def __iter__(self) -> Iterator[str]:
        yield "seconds"

    def __len__(self) -> int:
        return 1


@dataclass(eq=False)
class _Pinned:
    """Memory that the device reads and writes by itself; ``busy`` while a copy may be under way."""

    address: int
    nbytes: int
    busy: bool = False

    def bytes(self, nbytes: int) -> np.ndarray:
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(self.address))


def open_device(options: Mapping[str, str]) -> CudaDevice:
    """Opens a GPU of this machine, the first one unless ``number`` says otherwise.

    Raises:
        DeviceError: there is no driver, or no such GPU.
    """
    return CudaDevice(Cuda(bindings()), int(options.get("number", "0")))


class CudaDevice:
    """An open GPU.

    Args:
        cuda: the driver.
        number: of the GPU, from 0.
    """

    def __init__(self, cuda: Cuda, number: int = 0) -> None:
        self._cuda = cuda
        self._device = cuda.device(number)
        self.name = cuda.name(self._device)
        self.capability = cuda.capability(self._device)
        self._context = cuda.retain(self._device)
        cuda.enter(self._context)
        self._stream = cuda.stream()
        self._memory: dict[int, int] = {}  # bytes at each address
        self._pinned: dict[int, _Pinned] = {}  # by the address in the device that it goes to or comes from
        self._events: dict[object, tuple[Any, Any]] = {}
        self._programs: list[Loaded] = []
        self._open = True

    def allocate(self, nbytes: int) -> int:
        self._cuda.enter(self._context)
        address = self._cuda.allocate(max(1, nbytes))
        self._memory[address] = nbytes
        return address

    def free(self, address: int) -> None:
        self._cuda.enter(self._context)
        if self._memory.pop(address, None) is None:
            raise DeviceError(f"nothing is allocated at address {address}")
        self._cuda.free(address)

    def load(self, program: bytes) -> Loaded:
        """Puts a program into the device: the newest that it can run, as machine code or as the driver compiles it.

        Raises:
            PackageError: it is damaged.
            DeviceError: it is for other GPUs, or does not fit.
        """
        programs = unpack(program)
        cuda = self._cuda
        cuda.enter(self._context)
        again = f"compile it again: -arch=sm_{self.capability}"
        known = images_for([(p, i) for p in programs for i in p.images], self.capability)
        if not known:
            archs = ", ".join(i.arch for i in sorted((i for p in programs for i in p.images), key=_number)) or "none"
            raise DeviceError(f"the module is compiled for {archs}, {self.name} is sm_{self.capability}", hint=again)
        most = cuda.most_shared(self._device)
        fitting = [(p, i) for p, i in known if shared_bytes(p, i) <= most]
        if not fitting:
            least = min(shared_bytes(p, i) for p, i in known)
            raise DeviceError(
                f"the module's blocks take {least} bytes of shared memory, {self.name} has {most} for one", hint=again
            )
        read, image = fitting[0]
        native = is_native(image, self.capability)
        try:
            module = cuda.load(image.code if native else image.assembly + b"\0")
        except CudaError as error:
            error.message += f"; {self.name} is sm_{self.capability}, its driver knows CUDA {cuda.driver_version()}"
            raise
        loaded = Loaded(read, image if native else None, module)
        self._programs.append(loaded)  # closing gives it back, even if it does not get all that it needs
        self._fill(loaded)
        return loaded

    def _fill(self, loaded: Loaded) -> None:
        """Finds a program's kernels, uploads its constants, and reserves its memory."""
        cuda, program = self._cuda, loaded.program
        loaded.functions = {c.kernel: cuda.function(loaded.module, c.kernel) for c in program.commands if c.kernel}
        for c in program.commands:
            if c.shared:
                cuda.allow_shared(loaded.functions[c.kernel], c.shared)
        for array in program.params:
            loaded.params.append(self.allocate(array.nbytes))
            if array.nbytes:
                cuda.to_device(loaded.params[-1], array.ctypes.data, array.nbytes, self._stream)
        cuda.wait(self._stream)
        loaded.workspace, loaded.scratch = self.allocate(program.workspace_bytes), self.allocate(program.scratch_bytes)

    def write(self, address: int, data: np.ndarray) -> Report | None:
        if not data.nbytes:
            return None
        self._cuda.enter(self._context)
        staged = self._staging(address, data.nbytes)
        staged.bytes(data.nbytes)[:] = data
        staged.busy = True
        return self._timed(
            ("write", address),
            lambda: self._cuda.to_device(address, staged.address, data.nbytes, self._stream),
        )

    def read(self, address: int, data: np.ndarray) -> Report | None:
        if not data.nbytes:
            return None
        self._cuda.enter(self._context)
        staged = self._staging(address, data.nbytes)
        report = self._timed(
            ("read", address),
            lambda: self._cuda.to_host(staged.address, address, data.nbytes, self._stream),
        )
        self._wait()
        data[:] = staged.bytes(data.nbytes)
        return report

    def run(self, program: Loaded, addresses: Sequence[int]) -> Report:
        """Launches a program; ``seconds`` are those of its kernels."""
        graph = self._graph(program, addresses)
        return self._timed(("run", id(program)), lambda: self._cuda.launch_graph(graph, self._stream))

    def repeat(self, program: Loaded, addresses: Sequence[int], times: int) -> float:
        """Seconds from the first run's begin to the last one's end; they follow each other at once."""
        graph = self._graph(program, addresses)

        def launch() -> None:
            for _ in range(times):
                self._cuda.launch_graph(graph, self._stream)

        return float(self._timed(("repeat", id(program)), launch)["seconds"])

    def _graph(self, program: Loaded, addresses: Sequence[int]) -> Any:
        """The program's launches as a graph, captured once for each set of addresses."""
        cuda, key = self._cuda, tuple(addresses)
        cuda.enter(self._context)
        if key not in program.graphs:
            with self._captured() as found:
                for c in program.program.commands:
                    self._launch(program, c, key)
            program.graphs[key] = found[0]
        return program.graphs[key]

    @contextlib.contextmanager
    def _captured(self) -> Iterator[list[Any]]:
        """What is launched meanwhile is not run, but the one graph that is in the list in the end."""
        found: list[Any] = []
        self._cuda.begin_capture(self._stream)
        try:
            yield found
        except CudaError:
            with contextlib.suppress(CudaError):  # what was captured is of no use, and says nothing new
                self._cuda.end_graph(self._cuda.end_capture(self._stream))
            raise
        found.append(self._cuda.end_capture(self._stream))

    def profile(self, program: Loaded, addresses: Sequence[int]) -> Report:
        """Runs a program with the time of each launch; ``seconds`` is their sum.

        The launches are a graph as ever, with events between them: one by one, the host would be slower than they are.
        """
        key, cuda = tuple(addresses), self._cuda
        cuda.enter(self._context)
        commands = program.program.commands
        if key not in program.profiles:
            events = [cuda.event() for _ in range(len(commands) + 1)]
            with self._captured() as found:
                cuda.record_in_graph(events[0], self._stream)
                for c, event in zip(commands, events[1:], strict=True):
                    self._launch(program, c, key)
                    cuda.record_in_graph(event, self._stream)
            program.profiles[key] = found[0], events
        graph, events = program.profiles[key]
        cuda.launch_graph(graph, self._stream)
        self._wait()
        seconds = [0.0] * len(program.program.steps)
        for command, begin, end in zip(commands, events, events[1:], strict=False):
            seconds[command.step] += cuda.seconds(begin, end)
        return {"seconds": sum(seconds), "kernels": self._rows(program, seconds)}

    def _rows(self, program: Loaded, seconds: Sequence[float]) -> list[dict[str, Any]]:
        """What is known of each step on this GPU."""
        arch = ARCHS.get(f"sm_{self.capability}")

        def occupancy(c: Command) -> float | None:
            taken = program.code.resources.get(c.kernel) if program.code is not None else None
            if taken is None or arch is None:
                return None
            return arch.occupancy(prod(c.block), taken.registers, taken.shared + c.shared)

        return profiled(program.program, seconds, device_named(self.name, arch), occupancy)

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        cuda = self._cuda
        try:
            cuda.enter(self._context)
            cuda.wait(self._stream)
            for program in self._programs:
                for graph in (*program.graphs.values(), *(graph for graph, _ in program.profiles.values())):
                    cuda.end_graph(graph)
                for event in (e for _, events in program.profiles.values() for e in events):
                    cuda.end_event(event)
                cuda.unload(program.module)
            for address in self._memory:
                cuda.free(address)
            for pinned in self._pinned.values():
                cuda.unpin(pinned.address)
            for event in (e for pair in self._events.values() for e in pair):
                cuda.end_event(event)
            cuda.end_stream(self._stream)
            cuda.release(self._device)
        except CudaError as error:
            if not error.fatal:
                raise  # of a context that is lost, nothing is left to give back

    def _launch(self, program: Loaded, command: Command, addresses: tuple[int, ...]) -> None:
        places = [self._operand(program, o, addresses) for o in command.operands]
        if not command.kernel:
            source, destination = places
            self._cuda.copy(destination, source, command.operands[0].nbytes, self._stream)
            return
        function = program.functions[command.kernel]
        try:
            self._cuda.launch(function, command.grid, command.block, command.shared, places, self._stream)
        except CudaError as error:
            error.message = f"{command.kernel}: {error.message}"
            raise

    def _operand(self, program: Loaded, o: Operand, addresses: tuple[int, ...]) -> int:
        if o.space == "param":
            return program.params[o.at] + o.offset
        if o.space in ("workspace", "scratch"):
            return (program.workspace if o.space == "workspace" else program.scratch) + o.at
        return addresses[o.at if o.space == "input" else program.program.inputs + o.at] + o.offset

    def _staging(self, address: int, nbytes: int) -> _Pinned:
        """Pinned memory that nothing is copied from or to at present."""
        found = self._pinned.get(address)
        if found is not None and found.busy:
            self._wait()
        if found is None or found.nbytes < nbytes:
            if found is not None:
                self._cuda.unpin(found.address)
                del self._pinned[address]
            found = self._pinned[address] = _Pinned(self._cuda.pin(nbytes), nbytes)
        return found

    def _wait(self) -> None:
        self._cuda.wait(self._stream)
        for p in self._pinned.values():
            p.busy = False

    def _timed(self, key: object, action: Any) -> Elapsed:
        """Does something between two events."""
        if key not in self._events:
            self._events[key] = (self._cuda.event(), self._cuda.event())
        begin, end = self._events[key]
        self._cuda.record(begin, self._stream)
        action()
        self._cuda.record(end, self._stream)
        return Elapsed(self._cuda, begin, end)


def images_for(images: Sequence[tuple[GpuProgram, Image]], capability: int) -> list[tuple[GpuProgram, Image]]:
    """What a device of this capability can run, the best first: what is made for the newest devices that are no newer.

    Code runs on devices of the same major version and no lower minor one; assembly on all that are no older.
    """
    older = [(p, i) for p, i in images if _number(i) <= capability]
    return sorted(older, key=lambda found: -_number(found[1]))


def is_native(image: Image, capability: int) -> bool:
    """Whether a device runs the machine code of an image that it can run; else its driver compiles the assembly."""
    return _number(image) // 10 == capability // 10


def shared_bytes(program: GpuProgram, image: Image) -> int:
    """The most that a block of a program has."""
    declared = {name: r.shared for name, r in image.resources.items()}
    return max((c.shared + declared.get(c.kernel, 0) for c in program.commands), default=0)


def _number(i: Image) -> int:
    return int(i.arch.removeprefix("sm_"))

"""The executor: a ``module.tar`` in memory, ready to run, to be timed, and to be looked into step by step."""

from __future__ import annotations

import ctypes
import os
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from types import TracebackType
from typing import Any, Self

import numpy as np

from mlc.errors import DeviceError, PackageError, UsageError
from mlc.runtime.buffers import Ports, address, aligned_empty
from mlc.runtime.device import CPU, DeviceSide, Report, device_named, device_names
from mlc.runtime.device_spec import PlaceSpec
from mlc.runtime.dtypes import numpy_dtype
from mlc.runtime.manifest import Manifest, StepSpec
from mlc.runtime.native import MAX_THREADS, NativeModel, available_cores, check_device
from mlc.runtime.package import OBJECT, Package, open_package
from mlc.runtime.tensor_spec import ResultSpec, TensorSpec

MAX_SEED = (1 << 64) - 1
_PHASES = {"copy_to": "to device", "run": "kernels", "copy_from": "from device", "": "host"}  # by a step's action


@dataclass(frozen=True)
class StepTime:
    """Measured times of one step, in nanoseconds, one for each repeat; and what its device says of it."""

    step: StepSpec
    ns: tuple[int, ...]
    report: Report = field(default_factory=dict)

    @property
    def median_ns(self) -> float:
        return median(self.ns)

    @property
    def min_ns(self) -> int:
        return min(self.ns)


@dataclass(frozen=True)
class DeviceRun:
    """What a device said of one of its runs."""

    step: StepSpec
    report: Report


class _Frame:
    """The memory of one execution: the arrays and the pointers to them in the order of the native calls.

    ``arena`` is the address of its device memory.
    """

    def __init__(
        self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], workspace: np.ndarray, arena: int = 0
    ) -> None:
        self.inputs, self.outputs, self.workspace, self.arena = inputs, outputs, workspace, arena
        self._input_slots = _slots(inputs)
        self._output_slots = _slots(outputs)
        self.pointers = (ctypes.addressof(self._input_slots), ctypes.addressof(self._output_slots))


class Module:
    """A loaded model. Made by ``load_module``; a context manager.

    It may be used from several threads; since the arena is one, runs wait for each other.

    Attributes:
        manifest: all that the package says about itself.
        inputs, outputs: types, in the model's order; the seed of a model that draws random numbers is not among them.
        input_names, output_names: their names.
        threads: threads that run a model's step, the caller's included.
        device_runs: what the device, where a package needs one, said of its runs the last time the model ran.
        phases: nanoseconds of each run of the last ``benchmark`` by what they went into: ``to device`` and ``from
            device`` (copies), ``kernels`` (by the device's own account, if it has one) and ``host``; nothing without a
            device.
    """

    def __init__(self, package: Package, native: NativeModel, threads: int, device: DeviceSide | None = None) -> None:
        manifest = package.manifest
        self.manifest: Manifest = manifest
        self.threads = threads
        self.inputs: tuple[TensorSpec, ...] = tuple(spec for spec in manifest.inputs if spec.name != manifest.seed)
        self.outputs: tuple[TensorSpec, ...] = manifest.outputs
        self.input_names = tuple(spec.name for spec in self.inputs)
        self.output_names = tuple(spec.name for spec in self.outputs)
        self.device_runs: tuple[DeviceRun, ...] = ()
        self.phases: dict[str, list[int]] = {}
        self._native = native
        self._device = device
        # Also runs when the interpreter ends: the threads must not outlive the code they run.
        self._end = weakref.finalize(self, _close, native, device)
        self._arena = 0 if device is None else device.new_arena()
        self._input_ports = Ports("input", self.inputs)
        self._seed_at = next((i for i, spec in enumerate(manifest.inputs) if spec.name == manifest.seed), None)
        self._output_ports = Ports("output", self.outputs)
        places = {spec.name: j for j, spec in enumerate(manifest.inputs)}
        self._over = {new: places[old] for new, old in manifest.updates.items()}
        self._params = package.params()
        self._workspace = self._new_workspace()
        self._memory = (address(self._params), address(self._workspace), native.pool)
        self._input_slots = (ctypes.c_void_p * len(manifest.inputs))()
        self._output_slots = (ctypes.c_void_p * len(self.outputs))()
        self._call = (ctypes.addressof(self._input_slots), ctypes.addressof(self._output_slots), *self._memory)

    @property
    def draws(self) -> bool:
        """Whether the model draws random numbers by the seed of each run."""
        return self._seed_at is not None

    def run(
        self,
        inputs: Mapping[str, np.ndarray],
        outputs: Mapping[str, np.ndarray] | None = None,
        *,
        seed: int | None = None,
    ) -> dict[str, np.ndarray]:
        """Runs the model once.

        Args:
            inputs: an array for each input, of exactly its element type and shape; strided ones are copied.
            outputs: arrays to write some or all outputs to; contiguous, and apart from the inputs and each other. But
                the input whose next value an output is, as the manifest's ``updates`` say, may be given for that one.
            seed: 0 .. 2^64 - 1, of the random numbers of a model that draws some: the same seed, the same numbers, on
                any number of threads. Unless given, each run draws others.
        Returns:
            an array for each output: the one given, or a fresh one.
        Raises:
            UsageError: an array is missing, unknown or unfit, the seed is no such number, or the module was closed.
        """
        arrays = self._with_seed(self._input_ports.to_read(inputs), seed)
        results = self._output_ports.to_write(outputs, arrays, self._over) if outputs else self._output_ports.empty()
        native = self._native
        with native.lock:
            native.require_open()
            if self._device is not None:
                self._walk(_Frame(arrays, results, self._workspace, self._arena))
                return dict(zip(self.output_names, results, strict=True))
            for i, array in enumerate(arrays):
                self._input_slots[i] = address(array)
            for i, array in enumerate(results):
                self._output_slots[i] = address(array)
            _require_success(native.run(*self._call))
        return dict(zip(self.output_names, results, strict=True))

    def benchmark(
        self, inputs: Mapping[str, np.ndarray], warmup: int = 3, min_seconds: float = 3.0, max_runs: int = 100
    ) -> list[int]:
        """Times the native call alone, on aligned buffers bound beforehand; random numbers are those of seed 0.

        Args:
            inputs: as for ``run``; a simulated device counts by its own account.
            warmup: runs that are not counted.
            min_seconds: stop as soon as the counted runs took this long together,
            max_runs: or when there were this many; at least one is made.
        Returns:
            nanoseconds of each run, in order.
        """
        frame = self._aligned_frame(inputs)
        native, clock = self._native, time.perf_counter_ns
        times: list[int] = []
        call = (*frame.pointers, *self._memory)
        phases = [_PHASES[step.device.action if step.device else ""] for step in self.manifest.steps]
        self.phases = {} if self._device is None else {name: [] for name in _PHASES.values()}
        with native.lock:
            native.require_open()
            for _ in range(warmup):
                self._run_all(frame, call)
            left = min_seconds * 1e9
            while not times or (len(times) < max_runs and left > 0):
                start = clock()
                counted = self._run_all(frame, call)
                took = clock() - start
                simulated = any("cycles" in r.report for r in self.device_runs)
                times.append(sum(counted) if counted is not None and simulated else took)
                left -= took
                for name, column in self.phases.items():
                    column.append(sum(ns for ns, phase in zip(counted or (), phases, strict=True) if phase == name))
        return times

    def _run_all(self, frame: _Frame, call: Sequence[object]) -> list[int] | None:
        """One run; nanoseconds of each step where a device had a part in it, which may count them by its own clock."""
        if self._device is not None:
            return self._walk(frame)
        _require_success(self._native.run(*call))
        return None

    def profile(self, inputs: Mapping[str, np.ndarray], repeats: int = 10) -> list[StepTime]:
        """Times every step of ``repeats`` runs, after one run that is not counted.

        A device's runs count by its own account, where it has one: a simulated device has the real one's times. Where a
        device times kernels one by one, each of them is a step, and so is each part of a step that has some. Random
        numbers are those of seed 0.

        Returns:
            one entry a step, in the model's order.
        """
        if self._device is not None:
            return self._device_profile(inputs, repeats)
        frame = self._aligned_frame(inputs)
        native = self._native
        if native.parts is not None:
            return self._profile_of_parts(frame, repeats)
        times = np.zeros((repeats + 1, len(self.manifest.steps)), np.int64)
        call = (*frame.pointers, *self._memory)
        with native.lock:
            native.require_open()
            for row in times:
                native.profile(*call, address(row))
        return [
            StepTime(step, tuple(column.tolist()))
            for step, column in zip(self.manifest.steps, times[1:].T, strict=True)
        ]

    def _profile_of_parts(self, frame: _Frame, repeats: int) -> list[StepTime]:
        """The same, of a model that has steps with parts."""
        native, steps, call = self._native, self.manifest.steps, (*frame.pointers, *self._memory)
        assert native.parts is not None
        shown = [step for step, _ in self.manifest.calls]
        times = np.zeros((repeats + 1, len(shown)), np.int64)
        with native.lock:
            native.require_open()
            for row in times:
                at = 0
                for i, step in enumerate(steps):
                    slots = row[at : at + (len(step.parts) or 1)]
                    at += len(slots)
                    if step.parts:
                        native.parts(*call, i, address(slots))
                        continue
                    start = time.perf_counter_ns()
                    native.step(*call, i)
                    slots[0] = time.perf_counter_ns() - start
        return [StepTime(step, tuple(column.tolist())) for step, column in zip(shown, times[1:].T, strict=True)]

    def _device_profile(self, inputs: Mapping[str, np.ndarray], repeats: int) -> list[StepTime]:
        """The same, of a model that is on a device for a part."""
        frame = self._aligned_frame(inputs)
        rows: list[list[tuple[StepSpec, int, Report]]] = []
        with self._native.lock:
            self._native.require_open()
            for _ in range(repeats + 1):
                times = self._walk(frame, profile=True)
                runs = iter(self.device_runs)
                row: list[tuple[StepSpec, int, Report]] = []
                for step, took in zip(self.manifest.steps, times, strict=True):
                    report = next(runs).report if step.device is not None and step.device.action == "run" else {}
                    timed = [(_kernel_step(k), round(k["seconds"] * 1e9), k) for k in report.get("kernels", ())]
                    row += timed or [(step, took, {})]
                rows.append(row)
        return [
            StepTime(step, tuple(row[i][1] for row in rows[1:]), report) for i, (step, _, report) in enumerate(rows[0])
        ]

    def trace(self, inputs: Mapping[str, np.ndarray]) -> Iterator[tuple[StepSpec, dict[str, np.ndarray]]]:
        """Runs the model step by step, and gives what each step left behind, in logical index space.

        The arrays are copies taken right after the step, because later steps use the same memory again. The trace has
        an arena of its own, so the module may be run in between. Random numbers are those of seed 0.

        Returns:
            an iterator of each step with its results by name; a step is run when it is asked for.
        """
        arrays = self._with_seed(self._input_ports.to_read(inputs), 0)
        frame = _Frame(arrays, self._output_ports.empty(), self._new_workspace())
        return self._steps(frame)

    def _steps(self, frame: _Frame) -> Iterator[tuple[StepSpec, dict[str, np.ndarray]]]:
        native = self._native
        if self._device is not None:
            frame.arena = self._device.new_arena()
        try:
            for i, step in enumerate(self.manifest.steps):
                with native.lock:
                    native.require_open()
                    self._step(frame, i)
                yield step, {result.name: self._read(result, frame) for result in step.results}
        finally:
            if self._device is not None:
                self._device.free(frame.arena)

    def _step(self, frame: _Frame, i: int, *, profile: bool = False) -> Report | None:
        """One step, the host's or the device's; what the device says of it, if anything."""
        call = self.manifest.steps[i].device
        if call is not None and self._device is not None:
            return self._device.step(call, frame.arena, lambda place: self._bytes(place, frame), profile=profile)
        self._native.step(*frame.pointers, address(self._params), address(frame.workspace), self._native.pool, i)
        return None

    def _walk(self, frame: _Frame, *, profile: bool = False) -> list[int]:
        """All steps; nanoseconds of each."""
        times, reports = [], []
        for i in range(len(self.manifest.steps)):
            start = time.perf_counter_ns()
            reports.append(self._step(frame, i, profile=profile))
            times.append(time.perf_counter_ns() - start)
        runs = []
        for i, (step, report) in enumerate(zip(self.manifest.steps, reports, strict=True)):
            if report is None:
                continue
            told = dict(report)  # a device that works on its own tells its times only now that it is done
            times[i] = round(told["seconds"] * 1e9) if "seconds" in told else times[i]
            if step.device is not None and step.device.action == "run":
                runs.append(DeviceRun(step, told))
        self.device_runs = tuple(runs)
        return times

    def close(self) -> None:
        """Stops the threads and unloads the code. Twice is fine; any use afterwards is a ``UsageError``."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        model = self.manifest.model.name
        return f"<Module {model!r} for {self.manifest.target.string!r}, {self.threads} threads>"

    def _new_workspace(self) -> np.ndarray:
        nbytes = self.manifest.memory.workspace_bytes
        try:
            return aligned_empty((nbytes,), np.uint8)
        except (MemoryError, ValueError):  # ValueError: more than an address can count
            raise DeviceError(f"the model needs {nbytes} bytes of working memory, more than there is") from None

    def _aligned_frame(self, inputs: Mapping[str, np.ndarray]) -> _Frame:
        """Aligned copies of the inputs, and fresh outputs, so that times do not depend on where the caller's lie."""
        copies = self._input_ports.empty()
        for copy, array in zip(copies, self._input_ports.to_read(inputs), strict=True):
            copy[...] = array
        return _Frame(self._with_seed(copies, 0), self._output_ports.empty(), self._workspace, self._arena)

    def _with_seed(self, arrays: list[np.ndarray], seed: int | None) -> list[np.ndarray]:
        """The arrays of all inputs of the native calls."""
        seed = drawn_seed(seed) if self.draws or seed is not None else 0
        if self._seed_at is None:
            return arrays
        return [*arrays[: self._seed_at], np.array(seed, np.uint64), *arrays[self._seed_at :]]

    def _bytes(self, at: PlaceSpec | ResultSpec, frame: _Frame) -> np.ndarray:
        """The bytes of a place in the host's memory."""
        if at.space == "workspace":
            space = frame.workspace
        elif at.space == "params":
            space = self._params
        else:
            array = (frame.outputs if at.space == "output" else frame.inputs)[at.index]
            space = array.reshape(-1).view(np.uint8)
        return space[at.offset : at.offset + at.nbytes]

    def _read(self, result: ResultSpec, frame: _Frame) -> np.ndarray:
        """A copy of a result as it is now, in logical index space."""
        raw = self._bytes(result, frame).view(numpy_dtype(result.dtype))
        return (result.physical.undo(raw) if result.physical else raw.reshape(result.shape)).copy()


def drawn_seed(seed: int | None) -> int:
    """The seed of a run: the one given, or any.

    Raises:
        UsageError: it is no integer from 0 to 2^64 - 1.
    """
    if seed is None:
        return int.from_bytes(os.urandom(8))
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed <= MAX_SEED:
        raise UsageError(f"the seed must be an integer from 0 to {MAX_SEED}, not {seed!r}")
    return int(seed)


def _kernel_step(kernel: Mapping[str, Any]) -> StepSpec:
    """A device's kernel as a step."""
    return StepSpec(kernel["name"], tuple(kernel["sources"]), kernel["flops"], kernel["bytes"], ())


def load_module(path: str | os.PathLike[str], threads: int | None = None, device: str | None = None) -> Module:
    """Loads a ``module.tar`` into this process. A module is native code: load only those you trust.

    Args:
        path: the package.
        threads: threads to run on, the caller's included; all available cores unless given.
        device: where to run what is not the host's, such as ``cuda:1``; the package's own, the first one, unless given.
    Raises:
        UsageError: the file cannot be opened, or ``threads`` or ``device`` makes no sense.
        PackageError: the package is unsound.
        DeviceError: this machine cannot run it.
    """
    if threads is None:
        threads = min(available_cores(), MAX_THREADS)
    elif isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= MAX_THREADS:
        raise UsageError(f"threads must be an integer from 1 to {MAX_THREADS}, not {threads!r}")
    with open_package(path) as package:
        code = package.read(OBJECT)
        try:
            check_device(package.manifest.target)
            # the device first: what it refuses leaves no threads behind
            side = _device_side(package, device)
            parts = any(step.parts for step in package.manifest.steps)
            return Module(package, NativeModel(code, threads, package.manifest.symbols, parts=parts), threads, side)
        except DeviceError as error:
            raise DeviceError(f"{os.fspath(path)}: {error.message}", hint=error.hint) from None
        except PackageError as error:
            raise PackageError(f"{os.fspath(path)}: {OBJECT}: {error.message}") from None


def _device_side(package: Package, wanted: str | None) -> DeviceSide | None:
    """The device that a package needs, open, with the package's programs.

    Raises:
        DeviceError: it cannot be had, or is not the wanted one.
    """
    spec = package.manifest.device
    own = CPU if spec is None else spec.name
    name, number = (own, 0) if wanted is None else device_named(wanted)
    if name != own:
        known = (CPU, *device_names())
        again = f"compile the model again: --target {'x86' if name == CPU else name}"
        raise DeviceError(
            f"the module is for {own}, not for {name}",
            hint=again if name in known else f"drivers here: {', '.join(known)}",
        )
    if spec is None:
        return None
    calls = [step.device for step in package.manifest.steps if step.device is not None]
    return DeviceSide(spec, {c.program: package.read(c.program) for c in calls if c.action == "run"}, number)


def _close(native: NativeModel, device: DeviceSide | None) -> None:
    native.close()
    if device is not None:
        device.close()


def _slots(arrays: Sequence[np.ndarray]) -> ctypes.Array:
    return (ctypes.c_void_p * len(arrays))(*(address(array) for array in arrays))


def _require_success(code: int) -> None:
    if code:
        raise DeviceError(f"the model stopped with code {code}")

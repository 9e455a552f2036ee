"""Inference engines, each in a process of its own that runs a model when told to and sleeps otherwise.

Two thread pools in one process, or two engines busy at once, would disturb each other. Here each engine lives in a
spawned process for as long as its model is measured, and waits on a pipe between measurements; the benchmark can thus
take turns with blocks of a fraction of a second and still pay for loading only once.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import re
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from benchmarks.peers import EngineError, EngineSpec, KernelTime, Session, aligned
from benchmarks.processes import end_with_parent
from benchmarks.stats import Arrays

# No answer for this long means that the engine hangs.
PATIENCE_SECONDS = 300.0
# An engine that is not at rest by then is measured against all the same; the benchmark reports it.
SETTLE_LIMIT_SECONDS = 2.0


@dataclass(frozen=True)
class Memory:
    """Resident sets of an engine's process in MiB; Python, numpy and the engine's own libraries are part of them.

    Args:
        idle: after importing the engine, before the model.
        loading: the most until the end of the first run.
        running: the most in later runs.
    """

    idle: float
    loading: float
    running: float


class Engine:
    """A loaded model in its own process.

    Args:
        spec: which engine.
        file: the model, or what the engine compiled it to.
        threads: how many threads the engine computes with.
        inputs: fed in every run.
        cores: processor cores that its process may use; all that this process may use if empty.
        patience: seconds to wait for an answer.
    Attributes:
        load_seconds: from the file to the end of the first run, without starting Python or importing the engine.
        first_seconds: the first run of it, which may include compiling.
    Raises:
        EngineError: from here and from every method, when the engine fails.
    """

    def __init__(
        self,
        spec: EngineSpec,
        file: Path,
        threads: int,
        inputs: Arrays,
        cores: Sequence[int] = (),
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self.label = spec.label
        self._patience = patience
        self._process, self._pipe = _start(_serve, spec, file, threads, inputs, tuple(cores))
        try:
            self.load_seconds, self.first_seconds = map(float, self._receive())
        except EngineError:
            self.close()
            raise

    def time(self, count: int, warmup: int = 1) -> list[float]:
        """Seconds that each of ``count`` runs took, after ``warmup`` runs that do not count."""
        return list(self._ask("time", count, warmup))

    def outputs(self) -> Arrays:
        """The results of the last run."""
        return dict(self._ask("outputs"))

    def profile(self) -> list[KernelTime]:
        """The kernels of a run, in order; none for an engine that cannot tell."""
        return list(self._ask("profile"))

    def memory(self) -> Memory:
        """What the process has held so far."""
        return Memory(*self._ask("memory"))

    def cpu_seconds(self) -> float:
        """CPU time that all threads of the process have used so far; 0 for a process that has ended."""
        # How Linux numbers the CPU clock of another process (MAKE_PROCESS_CPUCLOCK in its sources); 2: the scheduler's.
        assert self._process.pid is not None
        try:
            return time.clock_gettime((~self._process.pid << 3) | 2)
        except OSError:
            return 0.0

    def close(self) -> None:
        """Ends the process."""
        with contextlib.suppress(OSError):  # It may have ended already.
            self._pipe.send(("stop",))
        _end(self._process)
        self._pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, *request: object) -> Any:
        try:
            self._pipe.send(request)
        except OSError as error:
            raise EngineError(f"{self.label}: its process has ended") from error
        return self._receive()

    def _receive(self) -> Any:
        return _receive(self._pipe, self._process, self.label, self._patience)


def let_settle(engines: Sequence[Engine]) -> None:
    """Waits until none of the engines uses CPU time any more.

    The threads of onnxruntime spin for some 50 ms after a run, and longer on a busy machine, hoping for another one;
    other engines have the same habit.
    """
    step = 0.02
    deadline = time.monotonic() + SETTLE_LIMIT_SECONDS
    before = [engine.cpu_seconds() for engine in engines]
    while time.monotonic() < deadline:
        time.sleep(step)
        after = [engine.cpu_seconds() for engine in engines]
        if max((b - a for a, b in zip(before, after, strict=True)), default=0.0) < 0.05 * step:
            return
        before = after


def compile_apart(
    spec: EngineSpec, model: Path, folder: Path, patience: float = PATIENCE_SECONDS
) -> tuple[Path, float]:
    """Compiles in a process of its own, so that neither its memory nor a crash touches the benchmark.

    An engine that compiles what it loads has nothing to do here.

    Returns:
        what the engine is to load, and the seconds it took, without starting Python or importing the engine; the model
        itself and no time, for an engine that compiles what it loads.
    Raises:
        EngineError: the compiler failed.
    """
    if not spec.peer.ahead:
        return model, 0.0
    process, pipe = _start(_compile, spec, model, folder)
    try:
        file, seconds = _receive(pipe, process, spec.label, patience)
        return Path(file), float(seconds)
    finally:
        _end(process)
        pipe.close()


# Both ends speak in pairs: (True, answer) or (False, reason).


def _start(serve: Callable[..., None], *arguments: object) -> tuple[multiprocessing.process.BaseProcess, Connection]:
    # A forked child would inherit thread pools that no longer have threads.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    # Not a daemon: some compilers start processes of their own.
    process = context.Process(target=serve, args=(theirs, *arguments))
    process.start()
    theirs.close()
    return process, ours


def _end(process: multiprocessing.process.BaseProcess) -> None:
    process.join(timeout=5)
    if process.is_alive():
        process.kill()
        process.join()


def _receive(pipe: Connection, process: multiprocessing.process.BaseProcess, label: str, patience: float) -> Any:
    if not pipe.poll(patience):
        process.kill()
        raise EngineError(f"{label}: no answer in {patience:.0f} s")
    try:
        good, answer = pipe.recv()
    except (EOFError, OSError) as error:
        process.join(timeout=5)
        raise EngineError(f"{label}: its process ended with exit code {process.exitcode}") from error
    if not good:
        raise EngineError(f"{label}: {answer}")
    return answer


def _reason(error: Exception) -> str:
    """What went wrong, shortened to the line that says most, and where."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    # Compilers are quoted at length; their first error counts.
    told = next((line for line in lines if "error:" in line), lines[0])
    return f"{type(error).__name__}: {told[:300]} ({Path(where.filename).name}:{where.lineno})"


def _serve(
    pipe: Connection, spec: EngineSpec, file: Path, threads: int, inputs: Arrays, cores: tuple[int, ...]
) -> None:
    """The life of an engine's process."""
    end_with_parent()
    try:
        # Before the engine is imported: thread pools look at both when they start.
        os.environ["OMP_NUM_THREADS"] = str(threads)
        if cores:
            os.sched_setaffinity(0, cores[:threads])
        module = importlib.import_module(f"benchmarks.peers.{spec.peer.module}")
        bound = {name: aligned(array) for name, array in inputs.items()}
        idle = _resident("VmRSS")
        start = time.perf_counter()
        session: Session = module.load(file, threads, bound, spec.options)
        begin = time.perf_counter()
        session.run()
        end = time.perf_counter()
        loading = _resident("VmHWM")
        _forget_peak()
        pipe.send((True, (end - start, end - begin)))
        while (request := pipe.recv())[0] != "stop":
            if request[0] == "time":
                pipe.send((True, _time(session.run, *request[1:])))
            elif request[0] == "memory":
                pipe.send((True, (idle, loading, _resident("VmHWM"))))
            elif request[0] == "profile":
                pipe.send((True, session.profile()))
            else:
                pipe.send((True, {key: np.array(value) for key, value in session.outputs().items()}))
    except (EOFError, BrokenPipeError):
        pass  # The benchmark has gone away.
    except Exception as error:
        pipe.send((False, _reason(error)))


def _time(run: Callable[[], object], count: int, warmup: int) -> list[float]:
    for _ in range(warmup):
        run()
    times = []
    for _ in range(count):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times


def _compile(pipe: Connection, spec: EngineSpec, model: Path, folder: Path) -> None:
    end_with_parent()
    try:
        module = importlib.import_module(f"benchmarks.peers.{spec.peer.module}")
        start = time.perf_counter()
        file = module.compile(model, folder, spec.options)
        pipe.send((True, (file, time.perf_counter() - start)))
    except Exception as error:
        pipe.send((False, _reason(error)))


def _resident(field: str) -> float:
    """``VmRSS`` (now) or ``VmHWM`` (at most) of this process, in MiB."""
    match = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(match[1]) / 1024 if match else 0.0


def _forget_peak() -> None:
    """Starts ``VmHWM`` anew from what is resident now."""
    with contextlib.suppress(OSError):  # Some containers forbid it; then the peak is that of the whole life.
        Path("/proc/self/clear_refs").write_text("5")

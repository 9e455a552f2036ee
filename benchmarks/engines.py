"""Inference engines, each in a process of its own that runs a model when told to and sleeps otherwise.

Two thread pools in one process, or two engines busy at once, would disturb each other. Here each engine lives in a
spawned process for as long as its model is measured, and waits on a pipe between measurements; the benchmark can thus
take turns with blocks of a fraction of a second and still pay for loading only once.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

Arrays = dict[str, npt.NDArray[Any]]
# Runs the loaded model once.
Runner = Callable[[Arrays], Arrays]

# No answer for this long means that the engine hangs.
PATIENCE_SECONDS = 600.0
# An engine that is not at rest by then is measured against all the same; the benchmark reports it.
SETTLE_LIMIT_SECONDS = 2.0


class EngineError(Exception):
    """An engine could not load or run a model, or its process ended; the message has the reason."""


def load_onnxruntime(file: Path, threads: int) -> Runner:
    """onnxruntime on an ``.onnx`` file, with the settings of its own performance test: everything optimised."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    # Its threads may spin between operators, which it needs for its best times; they go to sleep soon after a run.
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(inputs: Arrays) -> Arrays:
        return dict(zip(names, session.run(names, inputs), strict=True))

    return run


def load_mlc(file: Path, threads: int) -> Runner:
    """This compiler's runtime on a ``module.tar``."""
    from mlc.runtime import load_module

    run: Runner = load_module(file, threads=threads).run
    return run


def compile_mlc(file: Path, package: Path) -> None:
    """Compiles an ``.onnx`` file for this machine's processor into a ``module.tar``."""
    import mlc

    mlc.compile(mlc.load(file), target="x86").save(package)


LOADERS: dict[str, Callable[[Path, int], Runner]] = {"mlc": load_mlc, "onnxruntime": load_onnxruntime}


class Engine:
    """A loaded model in its own process.

    Args:
        name: a key of `LOADERS`.
        file: what that loader reads.
        threads: how many threads the engine computes with.
        inputs: fed in every run.
    Raises:
        EngineError: from here and from every method, when the engine fails.
    """

    def __init__(self, name: str, file: Path, threads: int, inputs: Arrays) -> None:
        self.name = name
        self._process, self._pipe = _start(_serve, name, file, threads, inputs)
        try:
            _receive(self._pipe, self._process, name)
        except EngineError:
            self.close()
            raise

    def time(self, count: int, warmup: int = 1) -> list[float]:
        """Seconds that each of ``count`` runs took, after ``warmup`` runs that do not count."""
        return list(self._ask("time", count, warmup))

    def outputs(self) -> Arrays:
        """The results of one run."""
        return dict(self._ask("outputs"))

    def cpu_seconds(self) -> float:
        """CPU time that all threads of the process have used so far."""
        # How Linux numbers the CPU clock of another process (MAKE_PROCESS_CPUCLOCK in its sources); 2: the scheduler's.
        assert self._process.pid is not None
        return time.clock_gettime((~self._process.pid << 3) | 2)

    def close(self) -> None:
        """Ends the process."""
        with contextlib.suppress(OSError):  # It may have ended already.
            self._pipe.send(("stop",))
        self._process.join(timeout=5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
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
            raise EngineError(f"{self.name}: its process has ended") from error
        return _receive(self._pipe, self._process, self.name)


def let_settle(engines: Sequence[Engine]) -> None:
    """Waits until none of the engines uses CPU time any more.

    The threads of onnxruntime spin for some 50 ms after a run, and longer on a busy machine, hoping for another one.
    """
    step = 0.02
    deadline = time.monotonic() + SETTLE_LIMIT_SECONDS
    before = [engine.cpu_seconds() for engine in engines]
    while time.monotonic() < deadline:
        time.sleep(step)
        after = [engine.cpu_seconds() for engine in engines]
        if max(b - a for a, b in zip(before, after, strict=True)) < 0.05 * step:
            return
        before = after


def compile_apart(file: Path, package: Path) -> float:
    """Compiles in a process of its own, so that neither its memory nor a crash touches the benchmark.

    Returns:
        the seconds it took, without starting Python.
    Raises:
        EngineError: the compiler failed.
    """
    process, pipe = _start(_compile, file, package)
    try:
        return float(_receive(pipe, process, "mlc compile"))
    finally:
        process.join(timeout=5)
        if process.is_alive():
            process.kill()
        pipe.close()


# Both ends speak in pairs: (True, answer) or (False, reason).


def _start(serve: Callable[..., None], *arguments: object) -> tuple[multiprocessing.process.BaseProcess, Connection]:
    # A forked child would inherit thread pools that no longer have threads.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _receive(pipe: Connection, process: multiprocessing.process.BaseProcess, name: str) -> Any:
    if not pipe.poll(PATIENCE_SECONDS):
        process.kill()
        raise EngineError(f"{name}: no answer in {PATIENCE_SECONDS:.0f} s")
    try:
        good, answer = pipe.recv()
    except (EOFError, OSError) as error:
        process.join(timeout=5)
        raise EngineError(f"{name}: its process ended with exit code {process.exitcode}") from error
    if not good:
        raise EngineError(f"{name}: {answer}")
    return answer


def _reason(error: Exception) -> str:
    """The last line of the traceback, and where it came from."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"


def _serve(pipe: Connection, name: str, file: Path, threads: int, inputs: Arrays) -> None:
    """The life of an engine's process."""
    try:
        run = LOADERS[name](file, threads)
        run(inputs)
        pipe.send((True, None))
        while (request := pipe.recv())[0] != "stop":
            if request[0] == "time":
                pipe.send((True, _time(run, inputs, *request[1:])))
            else:
                pipe.send((True, {key: np.array(value) for key, value in run(inputs).items()}))
    except (EOFError, BrokenPipeError):
        pass  # The benchmark has gone away.
    except Exception as error:
        pipe.send((False, _reason(error)))


def _time(run: Runner, inputs: Arrays, count: int, warmup: int) -> list[float]:
    for _ in range(warmup):
        run(inputs)
    times = []
    for _ in range(count):
        start = time.perf_counter()
        run(inputs)
        times.append(time.perf_counter() - start)
    return times


def _compile(pipe: Connection, file: Path, package: Path) -> None:
    try:
        start = time.perf_counter()
        compile_mlc(file, package)
        pipe.send((True, time.perf_counter() - start))
    except Exception as error:
        pipe.send((False, _reason(error)))

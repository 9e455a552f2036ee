"""Worker processes that run cases: a case that hangs or dies takes only its worker with it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path

from .cases import CaseFile
from .check import Result, run_case
from .engines import ENGINES


def _work(pipe: Connection, path: Path, engine: str) -> None:
    # one thread a worker, and silence: what numpy warns of is what the cases are about
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = "1"
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    cases = CaseFile(path)
    while True:
        try:
            name = pipe.recv()
        except EOFError:
            return
        pipe.send(run_case(cases.read(name), ENGINES[engine]))


class _Worker:
    def __init__(self, path: Path, engine: str) -> None:
        # a fresh interpreter: forking a process that has loaded native libraries and threads is asking for trouble
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, path, engine), daemon=True)
        self.process.start()
        theirs.close()
        self.case = ""
        self.deadline = 0.0

    def give(self, name: str, seconds: float) -> None:
        self.case = name
        self.deadline = time.monotonic() + seconds
        self.pipe.send(name)

    def end(self) -> int:
        """Stop the process; gives its exit code."""
        self.pipe.close()
        self.process.join(2)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        return self.process.exitcode or 0


def run_all(path: Path, names: Sequence[str], engine: str, *, jobs: int, timeout: float) -> Iterator[Result]:
    """Results of cases as they come.

    Args:
        path: the archive of cases.
        names: of the cases.
        engine: of :data:`ENGINES`.
        jobs: worker processes.
        timeout: seconds a case may take; a worker's start is not counted.
    """
    cases = CaseFile(path)
    waiting = list(reversed(names))
    workers: list[_Worker] = []
    try:
        while waiting or workers:
            while waiting and len(workers) < jobs:
                workers.append(_Worker(path, engine))
                # the first case pays for the imports
                workers[-1].give(waiting.pop(), timeout + 30)
            patience = min(w.deadline for w in workers) - time.monotonic()
            ready = wait([w.pipe for w in workers], timeout=max(0.0, patience))
            for worker in list(workers):
                if worker.pipe not in ready and time.monotonic() < worker.deadline:
                    continue
                result, alive = _collect(worker, cases, worker.pipe in ready, timeout)
                if not alive:
                    workers.remove(worker)
                elif waiting:
                    worker.give(waiting.pop(), timeout)
                else:
                    workers.remove(worker)
                    worker.end()
                yield result
    finally:
        for worker in workers:
            worker.process.kill()
            worker.end()


def _collect(worker: _Worker, cases: CaseFile, ready: bool, timeout: float) -> tuple[Result, bool]:
    """The result of a worker's case, and whether it lives on."""
    name = worker.case
    kind = cases.index[name]["kind"]
    if not ready:
        worker.process.kill()
        worker.end()
        return Result(name, kind, kind, f"timeout: more than {timeout:g} s"), False
    try:
        result = worker.pipe.recv()
    except EOFError:
        code = worker.end()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return Result(name, kind, kind, f"crash: the process died ({how})"), False
    return result, True

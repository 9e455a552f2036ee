"""The worker from outside: it may crash, hang or lose the device, and is replaced."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.processes import end_with_parent

Job = dict[str, Any]
LOST = "lost"  # key of an answer: the process is of no more use, by the fault of this side, or of an unknown one


class Worker:
    """Does jobs in a process of its own.

    Args:
        log: file that the process's messages are appended to.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def do(self, job: Job, seconds: float) -> Job | None:
        """A job's answer; of a process that ended, what became of it; nothing of one that took too long.

        A process that has lost the device, by whichever job's fault, answers all others with the same error. So it is
        ended, and so is one that has failed in any other way; where the process ended or lost the device, the job is
        done once more by a fresh one before that is its answer. A peer that loses it twice is left out: of what is
        measured without it, ``failed`` says so.

        Args:
            job: for :mod:`benchmarks.gpu.worker`.
            seconds: that it may take, all times together.
        """
        end = time.monotonic() + seconds
        failed: dict[str, str] = {}
        while True:
            answer = self._once(job, end)
            if answer is not None and LOST in answer:
                answer = self._once(job, end)
            if answer is None:
                return None
            peer = answer.get(LOST)
            if peer not in job.get("peers", ()):
                return {**answer, "failed": {**failed, **answer.get("failed", {})}} if failed else answer
            failed[peer] = answer["error"]
            job = {**job, "peers": [name for name in job["peers"] if name != peer]}

    def _once(self, job: Job, end: float) -> Job | None:
        """A job's answer until then; nobody else gets one of a process in which something went wrong."""
        answer = self._ask(job, end)
        if answer is None or "error" in answer or LOST in answer:
            self.close()
        return answer

    def _ask(self, job: Job, end: float) -> Job | None:
        process = self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(job).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            return self._ended()
        line = _line(process, end)
        if line is None:
            return None
        if not line:
            return self._ended()
        return dict(json.loads(line))

    def close(self) -> None:
        """Ends the process; twice is fine."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("ab") as log:
                command = [sys.executable, "-m", "benchmarks.gpu.worker"]
                # What PyTorch compiles is kept beside the log, where the next process finds it; each process compiles
                # alone, since there are as many as cores.
                cache = {"TORCHINDUCTOR_CACHE_DIR": str(self._log.parent.resolve() / "inductor")}
                environment = {**os.environ, **cache, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
                # a benchmark that goes on must not find the device busy with what an earlier call left
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    preexec_fn=end_with_parent,
                    env=environment,
                )
        return self._process

    def _ended(self) -> Job:
        """What is said of a process that has ended; who ended it, the log says at best."""
        assert self._process is not None
        code = self._process.wait()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return {"error": f"the process ended with {how}; see {self._log}", LOST: ""}


def _line(process: subprocess.Popen[bytes], end: float) -> bytes | None:
    """What the process writes next; nothing of it where it ended, ``None`` where it takes too long."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as ready:
        ready.register(process.stdout, selectors.EVENT_READ)
        if not ready.select(max(0.0, end - time.monotonic())):
            return None
    return process.stdout.readline()

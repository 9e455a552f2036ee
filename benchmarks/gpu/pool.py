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

        Args:
            job: for :mod:`benchmarks.gpu.worker`.
            seconds: that it may take.
        """
        process = self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(job).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            return {"error": self._ended()}
        line = _line(process, time.monotonic() + seconds)
        if line is None:
            self.close()
            return None
        if not line:
            return {"error": self._ended()}
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

    def _ended(self) -> str:
        assert self._process is not None
        code = self._process.wait()
        self._process = None
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"the process ended with {how}; see {self._log}"


def _line(process: subprocess.Popen[bytes], end: float) -> bytes | None:
    """What the process writes next; nothing of it where it ended, ``None`` where it takes too long."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as ready:
        ready.register(process.stdout, selectors.EVENT_READ)
        if not ready.select(max(0.0, end - time.monotonic())):
            return None
    return process.stdout.readline()

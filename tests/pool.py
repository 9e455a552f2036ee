"""A pool on the loopback, for tests: parties are forked from the test's process, which has all modules in memory."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlc import api
from mlc.api import tuning
from mlc.cli.main import run as mlc
from mlc.frontend.onnx import importer
from mlc.pool import board, client, cluster, measurer, trial
from mlc.pool.certificates import Authority, Role
from mlc.targets.base import BUILTIN
from mlc.targets.cpu import schedules
from mlc.tuning import drive
from tests.ports import free_port

# in memory before anything is forked
__all__ = ["api", "board", "cluster", "drive", "importer", "measurer", "schedules", "trial", "tuning"]
cluster.prepared()

PATIENCE = 90.0  # seconds, on a machine that does much else


@dataclass
class Party:
    """A process of ours.

    Args:
        pid: leads a group.
        said: file with what it says.
    """

    pid: int
    said: Path
    code: int | None = None

    def wait(self, seconds: float = PATIENCE) -> int:
        """How it ended."""
        until = time.monotonic() + seconds
        while self.code is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self.code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > until:
                raise AssertionError(f"does not end:\n{self.said.read_text()}")
            else:
                time.sleep(0.02)
        return self.code

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def has_said(self, words: str, seconds: float = PATIENCE) -> None:
        until = time.monotonic() + seconds
        while words not in self.said.read_text():
            assert time.monotonic() < until, f"never says {words!r}:\n{self.said.read_text()}"
            assert self.code is not None or not os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT), (
                f"has ended:\n{self.said.read_text()}"
            )
            time.sleep(0.02)


@dataclass
class LocalPool:
    """An authority, a scheduler, boards.

    Args:
        folder: for all that they write.
        targets: that take the place of those of the same name.
    """

    folder: Path
    targets: Mapping[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    parties: list[Party] = field(default_factory=list)
    hub: Party | None = None
    boards: dict[str, Party] = field(default_factory=dict)

    def __post_init__(self) -> None:
        authority = Authority(self.folder / "ca")
        authority.issue("hub", Role.SCHEDULER)
        for name in ("one", "two", "three", "four", "five", "mill"):
            authority.issue(name, Role.BOARD)
        for name in ("ann", "bob", "eve"):
            authority.issue(name, Role.CLIENT)

    @property
    def url(self) -> str:
        return f"tls://127.0.0.1:{self.port}"

    def certificates(self, name: str) -> str:
        return str(self.folder / "ca" / name)

    def start(self, *words: str, environment: Mapping[str, str] | None = None) -> Party:
        """Runs ``mlc`` with some arguments in a process of its own."""
        said = self.folder / f"said-{len(self.parties)}.txt"
        said.touch()
        pid = os.fork()
        if pid == 0:
            self._play(words, said, environment or {})
        party = Party(pid, said)
        self.parties.append(party)
        return party

    def _play(self, words: Sequence[str], said: Path, environment: Mapping[str, str]) -> None:
        code = 70
        try:
            os.setsid()
            out = os.open(said, os.O_WRONLY | os.O_APPEND)
            null = os.open(os.devnull, os.O_RDONLY)
            for source, number in ((null, 0), (out, 1), (out, 2)):
                os.dup2(source, number)
            import sys

            sys.stdout, sys.stderr = (os.fdopen(os.dup(k), "w", buffering=1) for k in (1, 2))
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.environ.update(environment)
            BUILTIN.update(self.targets)
            code = mlc(words)
            sys.stdout.flush()
        finally:
            os._exit(code)

    def scheduler(self) -> Party:
        party = self.start("devices", "scheduler", self.url, "--certificates", self.certificates("hub"))
        party.has_said("a pool at")
        return party

    def board(self, name: str, *options: str, environment: Mapping[str, str] | None = None) -> Party:
        certificate = name if (self.folder / "ca" / name).exists() else "one"
        words = ("devices", "serve", self.url, "--certificates", self.certificates(certificate), "--name", name)
        return self.start(*words, *options, environment=environment)

    def tune(self, who: str, model: Path, records: Path, *options: str, check: bool = False) -> Party:
        words = ("tune", str(model), "-o", str(records), "--pool", self.url, "--certificates", self.certificates(who))
        whole = () if check else ("--no-check",)
        return self.start(*words, "--explorer", "random", "--threads", "1", *whole, *options)

    def asked(self, work: Callable[[client.Pool], Any], who: str = "ann", patience: float = 5.0) -> Any:
        """What a client finds, in a process of its own."""
        from mlc.pool.secure import Address
        from mlc.pool.wish import Wish

        wish = Wish(Address.parse(self.url), Path(self.certificates(who)), 0, patience)
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe(duplex=False)

        def play() -> None:
            BUILTIN.update(self.targets)
            with client.Pool(wish) as pool:
                theirs.send(work(pool))

        child = context.Process(target=play)
        child.start()
        theirs.close()
        try:
            return ours.recv() if ours.poll(PATIENCE) else None
        finally:
            child.kill()
            child.join()

    def close(self) -> None:
        for party in self.parties:
            party.kill(signal.SIGTERM)
        for party in self.parties:
            with contextlib.suppress(AssertionError):
                party.wait(5.0)
            party.kill()
            party.wait(5.0)


@contextlib.contextmanager
def local_pool(folder: Path, targets: Mapping[str, str]) -> Iterator[LocalPool]:
    """A pool that is gone after the block, with all its processes."""
    pool = LocalPool(folder, targets)
    try:
        yield pool
    finally:
        pool.close()

"""A pool as those see it who want work done: which boards there are, and pieces of work on their way."""

from __future__ import annotations

import contextlib
import getpass
import itertools
import logging
import os
import queue
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from mlc import __version__
from mlc.errors import DeviceError, DocumentError
from mlc.pool.certificates import Role
from mlc.pool.cluster import prepared
from mlc.pool.offers import FACTS, MEMORY, BoardInfo, Kind, building_for, mebibytes
from mlc.pool.parcel import Parcel
from mlc.pool.secure import RefusedError, greet, security_of
from mlc.pool.task import work
from mlc.pool.wish import Wish

_LOGGER = logging.getLogger("mlc")
_CONNECT = 10.0
_CLOSE = 3.0
_LOOK = 1.0  # seconds between two looks at what nobody tells


class LostWork(Exception):
    """The boards that took a piece of work were lost with it, again and again."""


@dataclass(eq=False)
class Ticket:
    """A piece of work on its way.

    Args:
        label: whatever whoever asked wants to know it by.
        resource: that it takes.
        future: dask's.
    """

    label: Any
    resource: str
    future: Any


class Pool:
    """A connection to a pool. A context manager. Threads begin with it, so whoever forks does that before.

    Args:
        wish: how to reach it.
        wait: have patience with a scheduler that is not there yet, too.

    Attributes:
        url: of the pool.
        priority: of the work that is sent from now on.
        me: by what name boards are told whose work it is.
    Raises:
        UsageError: there is no certificate for it.
        DeviceError: it cannot be reached, or does not let the user in.
    """

    def __init__(self, wish: Wish, *, wait: bool = False) -> None:
        self._wish = wish
        self.url = wish.address.url
        self.priority = wish.priority
        distributed = prepared()
        security = security_of(wish.address, wish.certificates, Role.CLIENT)
        until = time.monotonic() + (wish.lasting if wait else 0.0)
        while True:
            try:
                greet(wish.address, wish.certificates)
                break
            except RefusedError:
                raise
            except DeviceError:
                if time.monotonic() > until:
                    raise
                time.sleep(_LOOK)
        try:
            self._client: Any = distributed.Client(
                self.url, security=security, timeout=_CONNECT, set_as_default=False, direct_to_workers=False
            )
        except (OSError, TimeoutError) as error:
            raise DeviceError(
                f"{self.url}: cannot be talked to: {error}", hint="is it a pool of this version?"
            ) from None
        self._done: queue.SimpleQueue[Ticket] = queue.SimpleQueue()
        self._numbers = itertools.count()
        self._seen: dict[str, float] = {}  # when there was a board last for what was waited for
        self.me = f"{getpass.getuser()}@{socket.gethostname()}:{os.getpid()}"[:100]

    def boards(self) -> list[BoardInfo]:
        """The boards that are there, by name; workers that tell nonsense are none.

        Raises:
            DeviceError: the pool is gone.
        """
        self._require()
        try:
            workers = self._client.scheduler_info(n_workers=-1)["workers"]
        except (OSError, TimeoutError):
            raise self._gone() from None
        found = []
        for address, facts in workers.items():
            with contextlib.suppress(DocumentError):
                found.append(BoardInfo.from_json(facts.get("metrics", {}).get(FACTS), address))
        return sorted(found, key=lambda b: b.name)

    def wait_for(self, resource: str = "", memory: int = 0, *, otherwise: str = "") -> list[BoardInfo]:
        """The boards that are there for a target, of which there is one at least; for any target unless given.

        Args:
            resource: of the target.
            memory: bytes that they have to give.
            otherwise: another resource that will do where none has the first.

        Raises:
            DeviceError: there is none for as long as the user has patience, which is short while there are others; or
                one has another version.
        """
        begun = alone = time.monotonic()
        told = False
        while True:
            boards = self.boards()
            for wanted in filter(None, (resource, otherwise)) if resource else ("",):
                fitting = [b for b in boards if (not wanted or b.has(wanted, memory)) and not b.draining]
                if fitting:
                    return self._of_this_version(fitting)
            now = time.monotonic()
            others = self._others(resource, boards)
            alone = alone if others else now
            if now - begun > self._wish.lasting or now - alone > self._wish.settling:
                raise self._nobody(resource, boards, memory)
            if not told and now - begun > _LOOK:
                told = True
                _LOGGER.warning("%s: no board%s yet", self.url, f" for {resource}" if resource else "")
            time.sleep(0.2)

    def send(self, parcel: Parcel, resource: str, label: Any = None, board: str = "", memory: int = 0) -> Ticket:
        """Sends a piece of work.

        Args:
            parcel: the work.
            resource: of whom: the resource of a target, or the family of one.
            label: is found in the ticket.
            board: the one that it is for; any that has the resource unless given.
            memory: bytes that it takes.
        Raises:
            DeviceError: the pool is gone.
        """
        self._require()
        wanted = {resource: 1} if resource else {}
        if memory:
            wanted[MEMORY] = mebibytes(memory)
        where = {"workers": [board], "allow_other_workers": False} if board else {}
        future = self._client.submit(
            work,
            parcel.to_bytes(),
            key=f"{parcel.kind}-{self.me}-{next(self._numbers)}",
            pure=False,
            resources=wanted or None,
            priority=self.priority,
            **where,
        )
        ticket = Ticket(label, resource, future)
        future.add_done_callback(lambda _: self._done.put(ticket))
        return ticket

    def ready(self) -> Ticket | None:
        """A piece of work that is done, if there is one."""
        with contextlib.suppress(queue.Empty):
            return self._done.get_nowait()
        return None

    def next(self, *resources: str, board: str = "") -> Ticket:
        """Waits for the next piece of work that is done.

        Args:
            resources: that work takes which is on its way.
            board: the one that it is for, if it is for one.
        Raises:
            DeviceError: the pool is gone, or has had no board with one of the resources for as long as the user has
                patience; or the one that it is for is gone, which has another address when it is back.
        """
        begun = time.monotonic()
        while True:
            with contextlib.suppress(queue.Empty):
                return self._done.get(timeout=_LOOK)
            boards = [b for b in self.boards() if not board or b.address == board]
            if board and not boards:
                if (last := self.ready()) is not None:  # it left right after it had answered
                    return last
                raise DeviceError(f"{self.url}: the board is gone", hint="mlc devices list shows who is there")
            for resource in resources:
                if any(b.has(resource) or not resource for b in boards):
                    self._seen[resource] = time.monotonic()
                elif time.monotonic() - max(begun, self._seen.get(resource, begun)) > self._wish.lasting:
                    raise self._nobody(resource, boards)

    def answer(self, ticket: Ticket) -> Parcel:
        """What came of a piece of work.

        Raises:
            LostWork: every board that took it was lost.
            DeviceError: the pool is gone, or the board refuses such work.
            DocumentError: the answer makes no sense.
        """
        from distributed.scheduler import KilledWorker

        self._seen[ticket.resource] = time.monotonic()
        try:
            data = ticket.future.result(timeout=_CONNECT)
        except KilledWorker as error:
            raise LostWork(f"{error.allowed_failures + 1} boards were lost while they ran it") from None
        except DocumentError:
            raise
        except Exception as error:  # whatever a board of the pool, or dask, has raised there
            self._require()
            raise LostWork(f"{type(error).__name__}: {error}"[:200]) from None
        finally:
            ticket.future.release()
        parcel = Parcel.from_bytes(data)
        if parcel.kind == "refused":
            raise DeviceError(f"{self.url}: refused: {str(parcel.header.get('reason'))[:300]}")
        return parcel

    def ask(self, parcel: Parcel, resource: str, board: str = "", memory: int = 0) -> Parcel:
        """Sends a piece of work and waits for it; arguments as for :meth:`send`.

        Raises:
            DeviceError: the pool is gone, has no such board, refuses it, or lost it.
        """
        ticket = self.send(parcel, resource, board=board, memory=memory)
        try:
            while self.next(resource, board=board) is not ticket:
                pass
            return self.answer(ticket)
        except (LostWork, DocumentError) as error:
            raise DeviceError(f"{self.url}: {error}") from None
        finally:
            self.cancel([ticket])

    def cancel(self, tickets: list[Ticket]) -> None:
        """Gives up pieces of work that are on their way."""
        open_ = [t.future for t in tickets if not t.future.done()]
        if open_ and self._client.status == "running":
            with contextlib.suppress(OSError, TimeoutError):
                self._client.cancel(open_)

    def close(self) -> None:
        """Leaves; what was asked for and is not done will not be. Twice is fine."""
        with contextlib.suppress(OSError, TimeoutError):
            self._client.close(timeout=_CLOSE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _require(self) -> None:
        if self._client.status != "running":
            raise self._gone()

    def _gone(self) -> DeviceError:
        try:
            greet(self._wish.address, self._wish.certificates)
        except RefusedError as error:  # the user's certificate was withdrawn
            return error
        except DeviceError:
            pass
        return DeviceError(f"{self.url}: the pool is gone", hint="start its scheduler again, and repeat the command")

    def _others(self, resource: str, boards: list[BoardInfo]) -> list[BoardInfo]:
        """Those of the boards that might have fitted, since they measure and run, or build, as is asked for."""
        builds = resource.startswith(building_for(""))
        return [b for b in boards if not b.draining and (Kind.BUILD in b.kinds) is builds]

    def _nobody(self, resource: str, boards: list[BoardInfo], memory: int = 0) -> DeviceError:
        offers = sorted({f"{o.target!r} ({o.resource})" for b in self._others(resource, boards) for o in b.offers})
        most = max((b.memory for b in boards if b.has(resource)), default=0)
        if 0 < most < memory:
            return DeviceError(
                f"{self.url}: no board for {resource} gives {mebibytes(memory)} MiB",
                hint=f"the most is {most >> 20} MiB; mlc devices serve --memory gives more",
            )
        hint = f"there are some for {', '.join(offers)}" if offers else ""
        if resource.startswith(building_for("")):
            wanted = resource.removeprefix(building_for(""))
            return DeviceError(
                f"{self.url}: nobody builds for {wanted}",
                hint=hint or "nobody builds at all: mlc devices serve --only build",
            )
        return DeviceError(
            f"{self.url}: no board" + (f" for {resource}" if resource else ""),
            hint=hint or "it has no boards at all: mlc devices serve",
        )

    def _of_this_version(self, boards: list[BoardInfo]) -> list[BoardInfo]:
        for b in boards:
            if b.version != __version__:
                raise DeviceError(
                    f"{self.url}: the board {b.name} has mlc {b.version}, and this is {__version__}",
                    hint="install the same version on both",
                )
        return boards


@contextlib.contextmanager
def connected(wish: Wish) -> Iterator[Pool]:
    """A connection that lasts as long as the block."""
    with Pool(wish) as pool:
        yield pool

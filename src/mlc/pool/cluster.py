"""dask.distributed as a pool uses it: TLS, work for boards, no pages, no orders to run other functions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
import weakref
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path
from typing import Any

from mlc.errors import DeviceError, MissingDependencyError, UsageError
from mlc.pool.board import Board
from mlc.pool.certificates import REVOKED, Role
from mlc.pool.offers import FACTS
from mlc.pool.secure import Address, RefusedError, greet, mend_connections, security_of, withdrawn
from mlc.pool.task import PLUGIN

_LOGGER = logging.getLogger("mlc")
_TTL = 20.0  # seconds of silence after which a board is taken for lost
_AGAIN = 2.0  # seconds until a board looks again for a pool that is gone
_TIDY = 5.0
_LOOK = 1.0  # seconds between two looks at the list of withdrawn certificates
_LEAVE = 10.0  # seconds in which whoever sent the last order has read the answer
# What the scheduler and boards would do for anybody in the pool beside work: run other functions, take plug-ins and
# files, end one another. None of it is needed.
_NOT_OF_SCHEDULERS = [
    "run_function", "register_scheduler_plugin", "unregister_scheduler_plugin", "register_worker_plugin",
    "unregister_worker_plugin", "register_nanny_plugin", "unregister_nanny_plugin", "terminate", "restart",
    "restart_workers", "retire_workers", "scatter", "update_data", "broadcast", "proxy", "dump_cluster_state_to_url",
    "set_resources", "benchmark_hardware",
]  # fmt: skip
_NOT_OF_WORKERS = [
    "run", "run_coroutine", "upload_file", "plugin-add", "plugin-remove", "actor_execute", "actor_attribute",
    "update_data", "benchmark_disk", "benchmark_memory", "benchmark_network",
]  # fmt: skip


def prepared() -> Any:
    """The library, with our settings in place of a user's own.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        import dask.config
    except ImportError:
        raise MissingDependencyError("a pool takes dask.distributed", hint="pip install 'mlc[pool]'") from None
    dask.config.set(
        {
            "distributed.scheduler.http.routes": [],
            "distributed.worker.http.routes": [],
            "distributed.scheduler.preload": [],
            "distributed.worker.preload": [],
            "distributed.client.preload": [],
            "distributed.scheduler.worker-ttl": f"{_TTL:g}s",
            "distributed.scheduler.active-memory-manager.start": False,
            "distributed.worker.profile.enabled": False,
            "distributed.admin.large-graph-warning-threshold": "2GB",
            "distributed.comm.timeouts.connect": "10s",
            "distributed.comm.compression": False,
        }
    )
    import distributed

    mend_connections()
    # what goes wrong there is told in our own words
    for name in ["asyncio", *logging.Logger.manager.loggerDict]:
        if name.partition(".")[0] in ("asyncio", "distributed", "tornado"):
            logging.getLogger(name).handlers.clear()
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    return distributed


def role_of(comm: Any) -> str:
    """The role in the certificate at the other end of a connection; empty where there is none."""
    certificate = comm.extra_info.get("peercert") or {}
    return next((v for part in certificate.get("subject", ()) for k, v in part if k == "organizationalUnitName"), "")


class _Watching:
    """Mixed into a server: knows who is connected to it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.connections: weakref.WeakSet[Any] = weakref.WeakSet()
        super().__init__(*args, **options)

    def handle_comm(self, comm: Any) -> Any:
        self.connections.add(comm)
        return super().handle_comm(comm)  # type: ignore[misc]

    def cut(self, serials: Collection[int]) -> None:
        """Ends connections with certificates of these serial numbers."""
        for comm in list(self.connections):
            number = (comm.extra_info.get("peercert") or {}).get("serialNumber")
            if number is not None and int(number, 16) in serials and not comm.closed():
                comm.abort()


async def _watch(server: _Watching, certificates: Path | None, changed: Callable[[], None] = lambda: None) -> None:
    """Ends connections of certificates that are withdrawn, soon after the list says so; new ones TLS refuses anyway.

    Args:
        server: whose connections.
        certificates: the folder with the list; nothing in clear.
        changed: is called whenever there is another list, in a thread of its own.
    """
    known = None
    while certificates is not None:
        with contextlib.suppress(OSError):
            found = (certificates / REVOKED).stat()
            stamp = found.st_mtime_ns, found.st_ino, found.st_size
            if stamp != known:
                try:
                    server.cut(await asyncio.to_thread(withdrawn, certificates))
                    if known is not None:
                        await asyncio.to_thread(changed)
                    known = stamp
                except UsageError as error:  # it may just be written; until it is whole, nobody gets in
                    _LOGGER.warning("%s", error.message)
        await asyncio.sleep(_LOOK)


@contextlib.asynccontextmanager
async def scheduling(address: Address, certificates: Path | None) -> AsyncIterator[Any]:
    """A scheduler that runs while the block does.

    Args:
        address: where it listens; at all of the machine's where the host is empty.
        certificates: the folder of its certificate.
    Raises:
        UsageError: there are no certificates.
        DeviceError: it cannot listen there.
    """
    distributed = prepared()

    class PoolScheduler(_Watching, distributed.Scheduler):  # type: ignore[name-defined]
        """Lets boards in as boards only, and clients as clients."""

        async def add_worker(self, comm: Any, **more: Any) -> Any:
            return await self._let_in(Role.BOARD, comm, super().add_worker(comm, **more))

        async def add_client(self, comm: Any, **more: Any) -> Any:
            return await self._let_in(Role.CLIENT, comm, super().add_client(comm, **more))

        async def _let_in(self, role: Role, comm: Any, enter: Any) -> Any:
            if address.plain or role_of(comm) == role:
                return await enter
            enter.close()
            comm.abort()

    security = security_of(address, certificates, Role.SCHEDULER)
    try:
        scheduler = PoolScheduler(
            host=address.host.strip("[]") or None,
            port=address.port,
            protocol="tcp" if address.plain else "tls",
            security=security,
            dashboard=False,
            dashboard_address="127.0.0.1:0",
            blocked_handlers=_NOT_OF_SCHEDULERS,
        )
        await scheduler
    except OSError as error:
        raise DeviceError(
            f"{address.url}: cannot be listened at: {error.strerror or error}", hint="is another scheduler there?"
        ) from None
    watch = asyncio.ensure_future(_watch(scheduler, certificates))
    try:
        yield scheduler
    finally:
        watch.cancel()
        await scheduler.close()


async def schedule(address: Address, certificates: Path | None, ready: Callable[[str], None]) -> None:
    """Runs a scheduler until a signal ends it.

    Args:
        address, certificates: see :func:`scheduling`.
        ready: is told the address once it listens.
    """
    stop = _signalled()
    async with scheduling(address, certificates) as scheduler:
        ready(scheduler.address)
        await stop.wait()


async def serve(
    board: Board, address: Address, certificates: Path | None, host: str | None, say: Callable[[str], None]
) -> None:
    """Offers a board to a pool until a signal ends it or a client drains it. Where the pool goes away, it waits for it.

    Args:
        board: the board.
        address: of the pool.
        certificates: the folder of the board's certificate.
        host: address of this machine at which the scheduler reaches it; found out unless given.
        say: is told how it goes on.
    Raises:
        UsageError: there are no certificates.
        DeviceError: the pool does not want it.
    """
    distributed = prepared()
    from distributed.worker import DEFAULT_METRICS

    class BoardPlugin(distributed.WorkerPlugin):  # type: ignore[name-defined]
        """What :func:`mlc.pool.task.work` finds the board by."""

        name = PLUGIN

        def __init__(self) -> None:
            self.board = board

        def setup(self, worker: Any) -> None:
            async def pause() -> None:
                worker.status = distributed.Status.paused

            loop = asyncio.get_running_loop()
            board.leave = lambda: asyncio.run_coroutine_threadsafe(pause(), loop).result(_LEAVE)

    class PoolWorker(_Watching, distributed.Worker):  # type: ignore[name-defined]
        """Ends connections of those whose certificates are withdrawn."""

    def still_welcome() -> None:
        try:
            greet(address, certificates)
        except RefusedError:
            raise
        except DeviceError:
            """It is gone, which others notice."""

    security = security_of(address, certificates, Role.BOARD)
    stop = _signalled()
    missed = False
    while not stop.is_set() and not board.draining:
        try:
            await asyncio.to_thread(greet, address, certificates)
            worker = PoolWorker(
                address.url,
                nthreads=board.at_once,
                name=board.info.name,
                host=host,
                protocol="tcp" if address.plain else "tls",
                resources=board.resources,
                security=security,
                memory_limit=0,
                local_directory=str(board.folder),
                metrics={**DEFAULT_METRICS, FACTS: lambda _worker: board.facts()},
                plugins=(BoardPlugin(),),
                blocked_handlers=_NOT_OF_WORKERS,
                dashboard=False,
                dashboard_address="127.0.0.1:0",
                death_timeout=_TTL,
            )
            await worker
        except (OSError, DeviceError, TimeoutError, RuntimeError, ValueError) as error:
            if isinstance(error, RefusedError):
                raise
            if not missed:
                say(f"{error}; waiting for it")
            missed = True
            await _either(stop, _AGAIN)
            continue
        missed = False
        say(f"{board.info.name} serves {address.url}")
        watch = asyncio.ensure_future(_watch(worker, certificates, still_welcome))
        try:
            await _until_gone(worker, board, stop, watch)
        finally:
            watch.cancel()
        if not stop.is_set() and not board.draining:
            say(f"{address.url} is gone; waiting for it")
            missed = True
            await _either(stop, _AGAIN)


async def _until_gone(worker: Any, board: Board, stop: asyncio.Event, watch: asyncio.Future[None]) -> None:
    """Waits until a worker has ended, or ends it when it shall.

    Raises:
        RefusedError: the scheduler's own certificate was withdrawn, as ``watch`` has found out.
    """
    gone = asyncio.ensure_future(worker.finished())
    tidied = time.monotonic()
    while not gone.done():
        await asyncio.wait([gone, asyncio.ensure_future(stop.wait())], timeout=0.2, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set() or (watch.done() and watch.exception() is not None):
            break
        if board.draining and not worker.state.all_running_tasks:  # the order to leave is work as well
            left = time.monotonic() + _LEAVE
            while worker.data and time.monotonic() < left:  # the answer to it
                await asyncio.sleep(0.05)
            break
        if time.monotonic() - tidied > _TIDY:
            tidied = time.monotonic()
            await asyncio.to_thread(board.tidy)
    await worker.close(timeout=2, executor_wait=False, reason="the board leaves")
    gone.cancel()
    if watch.done() and (error := watch.exception()) is not None:
        raise error


async def _either(stop: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)


def _signalled() -> asyncio.Event:
    """Is set by the signals that end a service."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    return stop

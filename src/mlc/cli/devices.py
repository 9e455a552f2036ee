"""``mlc devices``: a pool of boards shared by several people and jobs: who may be in it, who is, and how they are."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlc.cli import values
from mlc.cli.console import Console, file_bytes, write_json
from mlc.cli.group import Command, LazyGroup, did_you_mean
from mlc.cli.options import json_flag
from mlc.cli.pooling import certificates_options, folder_of, patience_option, wish_of
from mlc.cli.tune import numbers
from mlc.errors import CheckFailedError, UsageError

if TYPE_CHECKING:
    from mlc.pool.offers import BoardInfo

COMMANDS: dict[str, tuple[str, str]] = {
    "ca": ("mlc.cli.devices:ca", "Make certificates for a pool, and withdraw them."),
    "scheduler": ("mlc.cli.devices:scheduler", "Run the scheduler of a pool."),
    "serve": ("mlc.cli.devices:serve", "Offer this machine to a pool as a board."),
    "list": ("mlc.cli.devices:list_boards", "List the boards of a pool."),
    "test": ("mlc.cli.devices:test", "Try boards of a pool with a small product."),
    "drain": ("mlc.cli.devices:drain", "Send boards home once their work is done."),
}
_DAYS = 365
_MAX_DAYS = 3650
_KINDS = ("measure", "run", "build")


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    examples="""
    mlc devices ca pool --scheduler hub --board pi --client ann
    mlc devices scheduler tls://:8786 --certificates pool/hub
    mlc devices serve tls://hub:8786 --certificates pool/pi --target arm -mcpu=cortex-a72
    mlc devices list tls://hub:8786 --certificates pool/ann
    mlc tune model.onnx --target arm -mcpu=cortex-a72 --pool tls://hub:8786 --certificates pool/ann
    """,
)
def group() -> None:
    """Share boards among people and jobs. Whoever has a certificate can run code on all machines of its pool."""


@click.command(
    cls=Command,
    examples="""
    mlc devices ca pool --scheduler hub --board pi1 --board pi2 --client ann --client bob
    mlc devices ca pool --client eve --days 30
    mlc devices ca pool --revoke bob
    mlc devices ca pool
    """,
)
@click.argument("folder")
@click.option("--scheduler", "schedulers", multiple=True, metavar="NAME", help="Who runs the scheduler.")
@click.option("--board", "boards", multiple=True, metavar="NAME", help="Who offers a board; may be repeated.")
@click.option("--client", "clients", multiple=True, metavar="NAME", help="Who asks for work; may be repeated.")
@click.option("--revoke", multiple=True, metavar="NAME", help="Withdraw a certificate; may be repeated.")
@click.option(
    "--days", type=values.Whole(1, _MAX_DAYS), default=_DAYS, show_default=True, metavar="N",
    help="How long new certificates are valid.",
)  # fmt: skip
@json_flag
@click.pass_obj
def ca(
    console: Console,
    folder: str,
    schedulers: tuple[str, ...],
    boards: tuple[str, ...],
    clients: tuple[str, ...],
    revoke: tuple[str, ...],
    days: int,
    json_file: str | None,
) -> None:
    """Make an authority in FOLDER if there is none, certificates for a pool, and withdraw some; then list all.

    Every party gets a folder of its own inside FOLDER, to be copied to its machine by a way that nobody listens to. The
    secret of the authority, ca.key, stays. A withdrawn certificate is named in every crl.pem: copy that of the
    scheduler and of the boards to them, which look at it and let the party go.
    """
    from mlc.pool.certificates import Authority, Role, parties

    authority = Authority(Path(folder))
    if authority.made:
        console.note(f"{folder}: a new authority; keep {Path(folder) / 'ca.key'} to yourself")
    for name in revoke:
        authority.revoke(name)
    for name, role in parties({Role.SCHEDULER: schedulers, Role.BOARD: boards, Role.CLIENT: clients}):
        authority.issue(name, role, days)
    if json_file is not None:
        documents = [
            {"name": i.name, "role": i.role, "serial": i.serial, "expires": i.expires, "revoked": i.revoked}
            for i in authority.issued
        ]
        write_json(console, json_file, "devices ca", {"folder": folder, "certificates": documents})
        return
    rows = [
        (i.name, i.role.value, i.expires[:10], "withdrawn" if i.revoked else str(Path(folder) / i.name))
        for i in authority.issued
    ]
    console.data(console.table(("name", "role", "until", "folder"), rows))
    if revoke:
        console.note("copy crl.pem to the scheduler and the boards, which look at it every second")


@click.command(
    cls=Command,
    examples="""
    mlc devices scheduler tls://:8786 --certificates pool/hub
    mlc devices scheduler tcp://127.0.0.1:8786 --plain
    """,
)
@click.argument("address", metavar="tls://[HOST]:PORT")
@certificates_options
@click.pass_obj
def scheduler(console: Console, address: str, certificates: str | None, plain: bool) -> None:
    """Run the scheduler of a pool at an address until a signal ends it; without HOST, at all of this machine's."""
    import asyncio

    from mlc.pool.cluster import schedule
    from mlc.pool.secure import Address

    where = Address.parse(address, plain=plain)
    asyncio.run(schedule(where, folder_of(certificates), lambda url: console.note(f"a pool at {url}")))


@click.command(
    cls=Command,
    examples="""
    mlc devices serve tls://hub:8786 --certificates pool/pi --target arm -mcpu=cortex-a72
    mlc devices serve tls://hub:8786 --certificates pool/box --target x86 --cores 2-5 --memory 8G
    mlc devices serve tls://hub:8786 --certificates pool/box --target arm -mcpu=cortex-a53 --emulate
    mlc devices serve tls://hub:8786 --certificates pool/big --target arm -mcpu=cortex-a72 --only build
    """,
)
@click.argument("address", metavar="tls://HOST:PORT")
@certificates_options
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="TARGET",
    help="What it is there for; may be repeated.  [default: x86]",
)
@click.option("--name", metavar="NAME", help="Of the board, unique in the pool.  [default: this machine's name]")
@click.option("--cores", metavar="0,2-3", help="Cores that work is done on.  [default: all]")
@click.option("--memory", metavar="SIZE", default="4G", show_default=True, help="That a piece of work may take.")
@click.option(
    "--only",
    type=click.Choice(_KINDS),
    multiple=True,
    help="Do this kind of work only; may be repeated.  [default: measure and run]",
)
@click.option("--emulate", is_flag=True, help="Run programs of another processor family under qemu.")
@click.option(
    "--host", metavar="HOST", help="Address of this machine that the scheduler reaches.  [default: found out]"
)
@click.pass_obj
def serve(
    console: Console,
    address: str,
    certificates: str | None,
    plain: bool,
    targets: tuple[str, ...],
    name: str | None,
    cores: str | None,
    memory: str,
    only: tuple[str, ...],
    emulate: bool,
    host: str | None,
) -> None:
    """Offer this machine to a pool as a board, until a signal ends it or `mlc devices drain` does.

    It does one piece of work at a time, for those targets only that it was started for. Where the pool goes away, it
    waits for it. With --only build, it builds candidates for `mlc tune --pool-build`, one on each core, and nothing
    else. Whoever has a certificate of the pool can run code on this machine as the user who starts this.
    """
    import asyncio

    from mlc.pool.board import KINDS, Board
    from mlc.pool.cluster import serve as offer
    from mlc.pool.offers import Kind
    from mlc.pool.secure import Address

    where = Address.parse(address, plain=plain)
    available = sorted(os.sched_getaffinity(0))
    chosen = available if cores is None else numbers(cores, "--cores")
    if not set(chosen) <= set(available):
        raise UsageError(f"--cores {cores}: are not all available", hint=f"available: {available}")
    made = Board(
        name or socket.gethostname(),
        targets or ("x86",),
        kinds=[Kind(kind) for kind in only] or KINDS,
        cores=tuple(chosen),
        memory=values.size(memory, "--memory"),
        emulated=emulate,
    )
    with made as board:
        asyncio.run(offer(board, where, folder_of(certificates), host, console.note))


@click.command(
    cls=Command,
    name="list",
    examples="""
    mlc devices list tls://hub:8786 --certificates pool/ann
    mlc devices list tls://hub:8786 --certificates pool/ann --json
    """,
)
@click.argument("address", metavar="tls://HOST:PORT")
@certificates_options
@json_flag
@click.pass_obj
def list_boards(console: Console, address: str, certificates: str | None, plain: bool, json_file: str | None) -> None:
    """List the boards of a pool: what they are there for, and what they do now."""
    from mlc.pool.client import Pool

    with Pool(wish_of(address, certificates, plain)) as pool:
        boards = pool.boards()
    if json_file is not None:
        write_json(console, json_file, "devices list", {"pool": pool.url, "boards": [b.to_json() for b in boards]})
        return
    rows = [
        (
            b.name,
            ", ".join(o.target + (" (emulated)" if o.emulated else "") for o in b.offers),
            ", ".join(b.kinds),
            str(b.threads),
            file_bytes(b.memory),
            _state(b),
            str(b.done),
        )
        for b in boards
    ]
    if rows:
        console.data(console.table(("board", "target", "is there to", "threads", "memory", "does", "done"), rows))
    else:
        console.note(f"{pool.url}: has no boards")


@click.command(
    cls=Command,
    examples="""
    mlc devices test tls://hub:8786 --certificates pool/ann
    mlc devices test tls://hub:8786 pi1 pi2 --certificates pool/ann
    """,
)
@click.argument("address", metavar="tls://HOST:PORT")
@click.argument("boards", nargs=-1, metavar="[BOARD]...")
@certificates_options
@patience_option
@json_flag
@click.pass_obj
def test(
    console: Console,
    address: str,
    boards: tuple[str, ...],
    certificates: str | None,
    plain: bool,
    pool_patience: float | None,
    json_file: str | None,
) -> None:
    """Try BOARDs of a pool, or all: a product is built here, checked and timed there; exit code 1 where one fails.

    One that only builds builds it, and one that only runs modules runs it.
    """
    from mlc.pool.client import Pool
    from mlc.pool.trial import try_board

    with Pool(wish_of(address, certificates, plain, patience=pool_patience), wait=True) as pool:
        chosen = _named(pool.wait_for(), boards, address)
        found = [try_board(pool, board, offer) for board in chosen for offer in board.offers]
    if json_file is not None:
        documents = [{"board": t.board, "target": t.target, "seconds": t.seconds, "message": t.message} for t in found]
        write_json(console, json_file, "devices test", {"pool": pool.url, "boards": documents})
    else:
        rows = [(t.board, t.target, "failed" if t.seconds is None else "works", t.message) for t in found]
        console.data(console.table(("board", "target", "result", "about"), rows))
    failed = sorted({t.board for t in found if t.seconds is None})
    if failed:
        raise CheckFailedError(f"{pool.url}: failed: {', '.join(failed)}")


@click.command(
    cls=Command,
    examples="""
    mlc devices drain tls://hub:8786 pi1 --certificates pool/ann
    """,
)
@click.argument("address", metavar="tls://HOST:PORT")
@click.argument("boards", nargs=-1, required=True, metavar="BOARD...")
@certificates_options
@click.pass_obj
def drain(console: Console, address: str, boards: tuple[str, ...], certificates: str | None, plain: bool) -> None:
    """Send BOARDs home: each ends the work that it is at and takes no more, and `mlc devices serve` ends there."""
    from mlc.pool.board import DRAIN
    from mlc.pool.client import Pool
    from mlc.pool.parcel import Parcel
    from mlc.pool.wish import MAX_PRIORITY

    with Pool(wish_of(address, certificates, plain, MAX_PRIORITY + 1)) as pool:
        for board in _named(pool.boards(), boards, address):
            pool.ask(Parcel(DRAIN, {}), "", board.address)
            console.say(f"{board.name} leaves {pool.url}")


def _named(boards: list[BoardInfo], names: tuple[str, ...], address: str) -> list[BoardInfo]:
    """Those that are named; all where none is.

    Raises:
        UsageError: there is none of that name.
    """
    known = {b.name: b for b in boards}
    for name in names:
        if name not in known:
            raise UsageError(f"{address}: there is no board {name!r}", hint=did_you_mean(name, known, "it has none"))
    return [known[name] for name in names] if names else boards


def _state(board: BoardInfo) -> str:
    if board.draining:
        return "leaves"
    return f"works for {board.busy}" if board.busy else "waits"

"""What the user sees: data on standard output, everything about it on standard error.

One ``Console`` is made for a run of ``mlc`` and handed to the subcommand through click's context.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from mlc import __version__
from mlc.errors import OutputError
from mlc.settings import Settings

JSON_SCHEMA = 1
LOGGER = logging.getLogger("mlc")

# A table that goes to a file or a pipe is as wide as its text.
_UNBOUNDED = 10_000


@dataclass
class Console:
    """How much to say, and where.

    Args:
        settings: from the environment.
        verbose: 0, 1 (stages), 2 (details).
        quiet: only errors and what was asked for as data.
        debug: tracebacks of all errors.
        json_on_stdout: the data is JSON: nothing else may go to standard output.
        log_file: gets the whole log, details too.
    """

    settings: Settings = field(default_factory=Settings)
    verbose: int = 0
    quiet: bool = False
    debug: bool = False
    json_on_stdout: bool = False
    log_file: str | None = None
    _handlers: list[logging.Handler] = field(default_factory=list)

    @property
    def interactive(self) -> bool:
        """A person is watching: bars that move make sense."""
        return sys.stderr.isatty() and not self.quiet

    def say(self, text: str = "") -> None:
        """A result for people, on standard output."""
        if not self.quiet and not self.json_on_stdout:
            click.echo(text)

    def data(self, text: str) -> None:
        """What was asked for, on standard output; not silenced by ``-q``."""
        click.echo(text, nl=not text.endswith("\n"))

    def note(self, text: str) -> None:
        """Something worth knowing about the run, on standard error."""
        LOGGER.info(text)
        if not self.quiet and not self._shows(logging.INFO):
            click.echo(text, err=True)

    def error(self, message: str, hint: str = "", error: BaseException | None = None) -> None:
        """``error: …`` and ``hint: …`` on standard error, and with ``--debug`` where it came from."""
        if self.debug and error is not None:
            click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
        text = f"error: {printable(message)}"
        if hint:
            text += f"\nhint: {printable(hint)}"
        click.echo(text, err=True)
        for handler in self._handlers:
            if isinstance(handler, logging.FileHandler):
                handler.emit(logging.LogRecord("mlc", logging.ERROR, "", 0, text, None, None))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]], numbers: Sequence[str] = ()) -> str:
        """Text of a table.

        Args:
            columns: headings.
            rows: cells; model-provided text is made printable.
            numbers: headings of columns to align right.
        """
        return render_table(columns, rows, numbers, sys.stdout.isatty())

    def start_logging(self) -> None:
        """Shows the library's log on standard error as far as ``verbose`` says, warnings at least unless ``quiet``.

        All of it goes to ``log_file``.


        Raises:
            OutputError: the file cannot be written.
        """
        handler: logging.Handler
        if self.quiet and not self.verbose:
            self._add(logging.NullHandler())  # without any handler Python shows warnings by itself
        else:
            handler = logging.StreamHandler(sys.stderr)
            handler.setLevel((logging.WARNING, logging.INFO, logging.DEBUG)[min(self.verbose, 2)])
            handler.setFormatter(logging.Formatter("%(message)s" if self.verbose else "warning: %(message)s"))
            self._add(handler)
        if self.log_file is not None:
            try:
                handler = logging.FileHandler(self.log_file, encoding="utf-8")
            except OSError as error:
                reason = error.strerror or str(error)
                raise OutputError(f"{self.log_file}: cannot be written: {reason}", hint="name another file") from error
            handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
            self._add(handler)

    def close(self) -> None:
        """Takes the log handlers away again."""
        for handler in self._handlers:
            LOGGER.removeHandler(handler)
            handler.close()
        self._handlers.clear()

    def _add(self, handler: logging.Handler) -> None:
        LOGGER.addHandler(handler)
        LOGGER.setLevel(min(LOGGER.level or logging.CRITICAL, handler.level or logging.DEBUG))
        self._handlers.append(handler)

    def _shows(self, level: int) -> bool:
        """The log itself reaches standard error."""
        return any(h.level <= level for h in self._handlers if type(h) is logging.StreamHandler)


def printable(text: str) -> str:
    """Text with control characters escaped; newlines stay. Names in a model may hold anything, terminal codes too."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode("ascii") for c in text)


def one_line(text: object) -> str:
    """Like ``printable``, on one line."""
    return printable(str(text)).replace("\n", "\\n")


def render_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], numbers: Sequence[str] = (), terminal: bool = False
) -> str:
    """Text of a table: folded to the width of a terminal, as wide as it needs elsewhere."""
    from rich.console import Console as RichConsole
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in columns:
        table.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    out = io.StringIO()
    width = None if terminal else _UNBOUNDED
    RichConsole(file=out, force_terminal=terminal, width=width, highlight=False).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def file_bytes(count: int) -> str:
    """A number of bytes for people, e.g. ``44.7 MiB``."""
    power = min(4, max(0, count.bit_length() - 1) // 10)
    return f"{count} B" if power == 0 else f"{count / 1024**power:.1f} {'KMGT'[power - 1]}iB"


def require_writable(*paths: str | os.PathLike[str] | None) -> None:
    """Refuses, before any work is done, files that could not be written after it. ``None`` and ``-`` are skipped.

    Raises:
        OutputError: naming the first such file.
    """
    from mlc.runtime.atomic import atomic_write

    for path in paths:
        if path is None or os.fspath(path) == "-":
            continue
        # The very steps of the real write, given up before the last one: nothing is left, and an older file stays.
        with contextlib.suppress(_Enough), atomic_write(path):
            raise _Enough


class _Enough(Exception):
    """The file could be written."""


def require_folder(path: Path | None) -> None:
    """Refuses a folder that cannot be made.

    Raises:
        OutputError: naming it.
    """
    if path is None:
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{path}: cannot be made: {error.strerror}", hint="name a folder to be created") from error


def write_json(console: Console, path: str | None, command: str, fields: Mapping[str, Any]) -> None:
    """Writes the JSON document of a command to a file, or to standard output for ``-``.

    Every document has ``schema`` (the version of its form), ``mlc`` and ``command``. Numbers that JSON lacks are
    written as the strings ``NaN``, ``Infinity`` and ``-Infinity``.
    """
    if path is None:
        return
    document = {"schema": JSON_SCHEMA, "mlc": __version__, "command": command, **_jsonable(fields)}
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    if path == "-":
        console.data(text)
        return
    from mlc.runtime.atomic import atomic_write

    with atomic_write(path) as file:
        file.write(text.encode())


def _jsonable(value: Any) -> Any:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return "NaN" if value != value else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    return value


@contextlib.contextmanager
def status(console: Console, text: str) -> Iterator[None]:
    """Shows that something takes its time: a spinner for a person, nothing elsewhere."""
    if not console.interactive:
        yield
        return
    from rich.console import Console as RichConsole
    from rich.text import Text

    with RichConsole(stderr=True).status(Text(one_line(text))):
        yield

"""What the user sees: data on standard output, everything about it on standard error.

One ``Console`` is made for a run of ``mlc`` and handed to the subcommand through click's context.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from mlc import __version__
from mlc.errors import OutputError, UsageError
from mlc.settings import Settings

JSON_SCHEMA = 1
LOGGER = logging.getLogger("mlc")


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

    def text(self, text: str) -> None:
        """Data that holds names from a model or a module, which could hold terminal codes."""
        self.data(printable(text))

    def note(self, text: str) -> None:
        """Something worth knowing about the run, on standard error."""
        text = printable(text)
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
    """Text with control characters escaped; newlines and tabs stay. Names in a model may hold anything, even codes."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode("ascii") for c in text)


def one_line(text: object) -> str:
    """Like ``printable``, on one line."""
    return printable(str(text)).replace("\n", "\\n").replace("\t", "\\t")


def render_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], numbers: Sequence[str] = (), terminal: bool = False
) -> str:
    """Text of a table: within the width of a terminal, as wide as it needs elsewhere.

    Where a column has to be narrower than its text, that is broken between words, or else after the signs that names
    are made of, and before their capitals; within a word only where that alone is too long. Where all of that is not
    enough, the table is wider than the terminal.
    """
    cells = [[one_line(cell) for cell in row] for row in (columns, *rows)]
    natural = [max(_width(row[k]) for row in cells) for k in range(len(columns))]
    room = shutil.get_terminal_size().columns - _GAP * (len(columns) - 1) if terminal else sum(natural)
    fixed = [name in numbers for name in columns]
    least = [max(_least(row[k], right) for row in cells) for k, right in enumerate(fixed)]
    widths = _narrowed(natural, least, room)
    lines = []
    for k, row in enumerate(cells):
        parts = [_broken(cell, width) for cell, width in zip(row, widths, strict=True)]
        for i in range(max(map(len, parts), default=0)):
            texts = [part[i] if i < len(part) else "" for part in parts]
            line = (" " * _GAP).join(
                " " * (w - _width(t)) + t if right else t + " " * (w - _width(t))
                for t, w, right in zip(texts, widths, fixed, strict=True)
            )
            lines.append(click.style(line.rstrip(), bold=True) if terminal and k == 0 else line.rstrip())
    return "\n".join(lines)


_GAP = 2  # spaces between columns
_NARROWEST = 10  # characters that a column of text keeps
_LONGEST = 16  # of a word that is not broken
_BREAK = re.compile(r"(?<=[_/.,:;\-])|(?<=[a-z])(?=[A-Z][a-z])")


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _least(text: str, number: bool) -> int:
    """Characters that a cell needs; numbers are broken nowhere, their headings between words."""
    words = text.split(" ")
    if number:
        return max(map(_width, words))
    longest = max(_width(piece) for word in words for piece in _BREAK.split(word))
    return max(_NARROWEST, min(longest, _LONGEST))


def _narrowed(natural: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Widths of columns within ``room`` characters, as far as that can be: the widest texts give way first."""
    widths = [min(width, max(room, low)) for width, low in zip(natural, least, strict=True)]
    while sum(widths) > room:
        wide = [k for k, low in enumerate(least) if widths[k] > low]
        if not wide:
            break
        widths[max(wide, key=lambda k: widths[k])] -= 1
    return widths


def _broken(text: str, width: int) -> list[str]:
    """Lines of a cell."""
    lines = [""]
    for word in text.split(" "):
        line = f"{lines[-1]} {word}" if lines[-1] else word
        if _width(line) <= width:
            lines[-1] = line
            continue
        if lines[-1]:
            lines.append("")
        for piece in [word] if _width(word) <= width else _BREAK.split(word):
            if lines[-1] and _width(lines[-1] + piece) > width:
                lines.append("")
            lines[-1] += piece
            while _width(lines[-1]) > width:
                line = lines[-1]
                kept = next(k for k in range(len(line), 0, -1) if k == 1 or _width(line[:k]) <= width)
                if kept == len(line):
                    break
                lines[-1:] = [line[:kept], line[kept:]]
    return lines


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


def require_distinct(read: Iterable[str | None], written: Iterable[str | None]) -> None:
    """Refuses to write over what is being read, or twice to one file. ``None`` and ``-`` are skipped.

    Raises:
        UsageError: naming the file.
    """

    def place(path: str) -> object:
        try:
            facts = os.stat(path)
        except OSError:
            return os.path.realpath(path)
        return facts.st_dev, facts.st_ino

    inputs = {place(path) for path in read if path not in (None, "-")}
    outputs: set[object] = set()
    for path in written:
        if path is None or path == "-":
            continue
        at = place(path)
        if at in inputs:
            raise UsageError(f"{path}: is read, so it cannot be written", hint="name another file for the output")
        if at in outputs:
            raise UsageError(f"{path}: two outputs cannot go to one file", hint="name another file for one of them")
        outputs.add(at)


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

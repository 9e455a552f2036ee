"""How a result is kept: its numbers as JSON, a page of Markdown, and a picture where matplotlib is installed.

Of rows that are measured one by one, in a folder, the machine is kept beside them, so that a page that is written again
from them stays the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.peers import version
from benchmarks.report import json_ready

RESULTS = Path("benchmarks/papers/results")
_MACHINE = "machine.txt"


def keep_machine(folder: Path, here: Mapping[str, str]) -> None:
    """Keeps the description of the machine that a row of a folder was measured on."""
    (folder / _MACHINE).write_text(described(here) + "\n", encoding="utf-8")


def machine_of(folder: Path) -> str:
    """The machine that the rows of a folder were measured on last, in a line; this one where none is kept."""
    kept = folder / _MACHINE
    return kept.read_text(encoding="utf-8").removesuffix("\n") if kept.exists() else described(machine.describe())


def described(here: Mapping[str, str]) -> str:
    """The description of a machine in a line."""
    return ", ".join(here.values())


def require_records(row: Path, records: Sequence[Path]) -> None:
    """Ends the program where what a row was found by is gone: to decide once more would be to search anew.

    Args:
        row: its file.
        records: the files, which git does not keep; a pattern stands for any that it matches.
    Raises:
        SystemExit: some have nothing; the message is one line, and the exit code 1.
    """
    missing = [r.name for r in records if not any(found.stat().st_size for found in r.parent.glob(r.name))]
    if missing:
        raise SystemExit(
            f"--again takes the records of {row.stem}'s searches, which are not in {row.parent}: {', '.join(missing)}; "
            f"the row has to be searched again: remove {row}, and run without --again"
        )


def keep(
    name: str,
    out: Path,
    numbers: Any,
    page: Callable[[str], str],
    draw: Callable[[Path], None],
    *,
    indent: int | None = 1,
) -> list[str]:
    """Writes the files of a result.

    Args:
        name: of the files, without suffix.
        out: their folder, made if it is not there.
        numbers: what the JSON holds.
        page: the Markdown, given the name of the picture; "" where there is none.
        draw: makes the picture.
        indent: of the JSON; ``None`` for one line.
    Returns:
        the names of the files.
    """
    out.mkdir(parents=True, exist_ok=True)
    picture = f"{name}.png" if version("matplotlib") else ""
    if picture:
        draw(out / picture)
    document = json.dumps(json_ready(numbers), indent=indent, ensure_ascii=False)
    (out / f"{name}.json").write_text(document + "\n", encoding="utf-8")
    (out / f"{name}.md").write_text(page(picture), encoding="utf-8")
    return [f"{name}.md", f"{name}.json", *([picture] if picture else [])]

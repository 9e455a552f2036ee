"""How a result is kept: its numbers as JSON, a page of Markdown, and a picture where matplotlib is installed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers import version
from benchmarks.report import json_ready

RESULTS = Path("benchmarks/papers/results")


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

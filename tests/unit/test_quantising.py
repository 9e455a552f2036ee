"""The commands of ``docs/quantising.md`` print what it shows, but for numbers, which processors round differently."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

from mlc.cli.main import run

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "quantising.md"
LEFT_OUT = "…"


def commands() -> list[tuple[str, list[str]]]:
    """Each command of the page, and the lines that it shows."""
    blocks = re.findall(r"^```console\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    found: list[tuple[str, list[str]]] = []
    for line in "".join(blocks).splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line != LEFT_OUT:
            found[-1][1].append(line)
    return found


def without_numbers(line: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"\b(?:\d[\d.,]*(?:e[+-]?\d+)?|inf)\b", "#", line)).strip()


@pytest.mark.slow
def test_commands_print_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(commands()) > 5
    for command, shown in commands():
        program, *arguments = shlex.split(command)
        if program == "python":
            monkeypatch.setattr(sys, "argv", arguments)
            runpy.run_path(str(ROOT / arguments[0]), run_name="__main__")
            continue
        run(arguments)
        told = capsys.readouterr()
        printed = [without_numbers(line) for line in (told.out + told.err).splitlines()]
        for line in shown:
            assert without_numbers(line) in printed, f"{command}\nprints no more: {line}"

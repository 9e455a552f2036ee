"""The list of layers, and the page of the documentation that repeats it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mlc.cli.main import run

PAGE = Path(__file__).parents[4] / "docs" / "keras-layers.md"


def test_the_page_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ops", "--frontend", "keras", "--markdown"]) == 0
    printed = capsys.readouterr().out
    table = "\n".join(line for line in PAGE.read_text().splitlines() if line.startswith("|"))
    assert table == printed.strip(), "docs: mlc ops --frontend keras --markdown"
    count = re.search(r"(\d+) layers and operations", PAGE.read_text())
    assert count is not None
    assert int(count[1]) == len(printed.strip().splitlines()) - 2

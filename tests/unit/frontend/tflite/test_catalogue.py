"""The list of operators, and the page of the documentation that repeats it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mlc.cli.main import run
from mlc.frontend.base import get_frontend
from mlc.frontend.tflite.schema import enumeration

PAGE = Path(__file__).parents[4] / "docs" / "tflite-operators.md"


def test_the_page_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ops", "--frontend", "tflite", "--markdown"]) == 0
    printed = capsys.readouterr().out
    table = "\n".join(line for line in PAGE.read_text().splitlines() if line.startswith("|"))
    assert table == printed.strip(), "docs: mlc ops --frontend tflite --markdown"
    count = re.search(r"(\d+) operators", PAGE.read_text())
    assert count is not None
    assert int(count[1]) == len(printed.strip().splitlines()) - 2


def test_every_operator_is_one_of_the_format() -> None:
    names = set(enumeration("BuiltinOperator").values())
    found = get_frontend("tflite").supported_operators()
    assert {o.name for o in found if not o.domain} <= names

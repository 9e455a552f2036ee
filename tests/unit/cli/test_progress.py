"""Progress: a bar for a person, lines for a file."""

from __future__ import annotations

import pytest

from mlc.cli.console import Console
from mlc.cli.progress import CompileProgress


def compile_something(progress: CompileProgress) -> None:
    with progress:
        progress.stage("lower")
        progress.kernel(1, 2)
        progress.kernel(2, 2)
        progress.stage("write")
        progress.passed("fold", "text", 0.1)
        progress.passed("fuse", "text", 0.1)


def test_lines_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    progress = CompileProgress(Console())
    compile_something(progress)
    assert [line.partition("] ")[2] for line in capsys.readouterr().err.splitlines()] == ["lower", "write"]
    assert progress.passes == ["fold", "fuse"]


def test_a_bar_that_goes_away_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Console, "interactive", True)
    compile_something(CompileProgress(Console()))
    # rich draws on terminals only; there must be no lines beside the bar
    assert capsys.readouterr().err.strip() == ""


def test_nothing_when_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    compile_something(CompileProgress(Console(quiet=True)))
    assert capsys.readouterr().err == ""

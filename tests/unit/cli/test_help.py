"""The help texts, as users see them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mlc.cli.group import COMMANDS
from tests.unit.cli.conftest import Result


def test_help_of_mlc(mlc: Callable[..., Result], golden: Callable[[str], None]) -> None:
    golden(mlc("--help").out)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_command(mlc: Callable[..., Result], golden: Callable[[str], None], command: str) -> None:
    result = mlc(command, "-h")
    assert result.code == 0
    assert "Examples:\n  " in result.out
    golden(result.out)

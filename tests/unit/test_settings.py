"""The environment, read once."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlc.errors import UsageError
from mlc.settings import Observer, Settings


def test_defaults() -> None:
    assert Settings.from_environment({}) == Settings() == Settings(None, 0, False, 0)


def test_values() -> None:
    environment = {"MLC_DUMP": "ir", "MLC_DEBUG": "2", "MLC_VERIFY": "1", "MLC_SEED": " 42 "}
    assert Settings.from_environment(environment) == Settings(Path("ir"), 2, True, 42)
    assert Settings.from_environment(dict.fromkeys(environment, "")) == Settings()


@pytest.mark.parametrize(
    "name, value, most",
    [
        ("MLC_DEBUG", "3", 2),
        ("MLC_DEBUG", "yes", 2),
        ("MLC_VERIFY", "2", 1),
        ("MLC_SEED", "-1", (1 << 63) - 1),
        ("MLC_SEED", "9" * 30, (1 << 63) - 1),
        ("MLC_SEED", "٣", (1 << 63) - 1),
    ],
)
def test_other_values_are_refused(name: str, value: str, most: int) -> None:
    with pytest.raises(UsageError, match=f"variable {name} must be an integer from 0 to {most}, not '{value}'"):
        Settings.from_environment({name: value})


def test_an_observer_need_not_care() -> None:
    observer = Observer()
    observer.stage("optimise")
    observer.passed("fold", "program", 0.1)
    observer.kernel(1, 2)


def test_the_table_names_every_variable() -> None:
    import mlc.settings

    for name in ("MLC_DUMP", "MLC_DEBUG", "MLC_VERIFY", "MLC_SEED"):
        assert f"``{name}``" in (mlc.settings.__doc__ or "")

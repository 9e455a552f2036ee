"""Options of a target as words of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

from mlc.cli.main import cli
from mlc.cli.target_words import join_targets, target_options
from tests.unit.cli.conftest import Result


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--target arm -mcpu=a -mattr=+b,-c m", ["--target", "arm -mcpu=a -mattr=+b,-c", "m"]),
        ("--target=arm -mcpu=a -o m", ["--target=arm -mcpu=a", "-o", "m"]),
        ("--target x -a_b=1 --target y -cd=2", ["--target", "x -a_b=1", "--target", "y -cd=2"]),
        ("--target x -o=y", ["--target", "x", "-o=y"]),  # one letter is the command's
        ("--target x -O3 -abc", ["--target", "x", "-O3", "-abc"]),
        ("--target x --name=y", ["--target", "x", "--name=y"]),
        ("--target x m -ab=1", ["--target", "x", "m", "-ab=1"]),
        ("-ab=1 --targets=x -ab=1", ["-ab=1", "--targets=x", "-ab=1"]),
        ("--target", ["--target"]),
        ("-- --target x -ab=1", ["--", "--target", "x", "-ab=1"]),
        ("--target x -- -ab=1", ["--target", "x", "--", "-ab=1"]),
    ],
)
def test_only_words_right_behind_a_target_are_its_options(typed: str, meant: list[str]) -> None:
    assert join_targets(typed.split(), ["--target"]) == meant


@pytest.mark.parametrize(
    "words",
    [
        ("--target", "x86", "-mcpu=haswell", "-mattr=+f16c"),
        ("--target=x86", "-mcpu=haswell", "-mattr=+f16c"),
        ("--target", "x86 -mcpu=haswell", "-mattr=+f16c"),
    ],
)
def test_a_target_need_not_be_quoted(
    mlc: Callable[..., Result], model: Path, fake_build: dict[str, Any], words: tuple[str, ...]
) -> None:
    assert mlc("compile", *words, "-o", "module.tar", "line.onnx").code == 0
    facts = fake_build["target"].describe()
    assert (facts["cpu"], "f16c" in facts["features"]) == ("haswell", True)
    assert Path("module.tar").exists()


@pytest.mark.parametrize(
    "command",
    [
        "tune line.onnx --target arm -mcpu=cortex-m4 --list",
        "import line.onnx -o out.mlc --quantize int8 --calibrate d.npz --quantize-for arm -mcpu=cortex-m4",
        "devices serve tcp://127.0.0.1:9 --plain --target x86 -mcpu=haswell --target arm -mcpu=cortex-m4",
    ],
    ids=lambda command: command.split()[0],
)
def test_other_commands_read_a_target_alike(mlc: Callable[..., Result], model: Path, command: str) -> None:
    np.savez("d.npz", x=np.ones((4, 3, 5), np.float32))
    result = mlc(*command.split())
    assert (result.code, result.out) == (2, "")
    assert "unknown processor 'cortex-m4'" in result.err


@pytest.mark.parametrize("name", ["compile", "train", "tune", "devices serve", "import"])
def test_every_option_for_a_target_is_one(name: str) -> None:
    command: click.Command | None = cli
    for word in name.split():
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), word)
    assert command is not None
    assert target_options(command.params) == ["--quantize-for" if name == "import" else "--target"]

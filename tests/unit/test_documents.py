"""What the documents promise is what the program does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from mlc.cli.group import COMMANDS
from mlc.cli.main import cli
from mlc.errors import ExitCode
from mlc.frontend.base import get_frontend
from mlc.frontend.onnx.registry import CONVERTERS, converter
from mlc.harness.compare import TOLERANCES
from mlc.ir.interp.graph import run_graph
from mlc.ops import registry
from mlc.runtime.dtypes import ELEMENTS

ROOT = Path(__file__).parents[2]
TEXTS = {
    name: (ROOT / name).read_text() for name in ("README.md", "docs/cli.md", "docs/coming-from-tvmc.md", "docs/vdla.md")
}


def options_of(*words: str) -> set[str]:
    """The options of a command, which the first word names, and where that is a group, the second."""
    found = cli.get_command(click.Context(cli), words[0])
    if isinstance(found, click.Group):
        found = found.get_command(click.Context(found), words[1])
    assert found is not None, words
    return {name for param in (*found.params, *cli.params) for name in (*param.opts, *param.secondary_opts)} | {
        "--help",
        "-h",
    }


def commands() -> Iterator[tuple[str, ...]]:
    """Every command by the words that call it."""
    for name in COMMANDS:
        found = cli.get_command(click.Context(cli), name)
        yield from (
            ((name, inner) for inner in found.list_commands(click.Context(found)))
            if isinstance(found, click.Group)
            else ((name,),)
        )


@pytest.mark.parametrize("name", TEXTS)
def test_every_command_line_in_the_documents_can_be_parsed(name: str) -> None:
    lines = re.findall(r"^(?:\$ )?(mlc [a-z].*)$", TEXTS[name], re.MULTILINE)
    for line in lines:
        words = re.sub(r"\s#.*", "", line).split()
        assert words[1] in COMMANDS, line
        flags = {word.partition("=")[0] for word in words if re.fullmatch(r"--[a-z-]+.*|-[a-z]", word)}
        assert flags <= options_of(*words[1:]), line


@pytest.mark.parametrize("name", TEXTS)
def test_every_option_in_the_documents_exists(name: str) -> None:
    known = set().union(*(options_of(*words) for words in commands()))
    text = TEXTS[name]
    if name == "docs/coming-from-tvmc.md":
        # the first column is tvmc's own
        text = "\n".join(row.split("|")[2] for row in text.splitlines() if row.startswith("|"))
    # pip's and make's own are not ours
    for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text):
        assert flag in known, flag


def test_exit_codes_are_all_listed() -> None:
    listed = set(map(int, re.findall(r"^\| (\d+) \|", TEXTS["docs/cli.md"], re.MULTILINE)))
    assert {int(code) for code in ExitCode} <= listed


def test_tolerances_are_those_of_the_table() -> None:
    short = {element.numpy: name for name, element in reversed(ELEMENTS.items())}
    for dtype, tolerance in TOLERANCES.items():
        (row,) = re.findall(
            rf"^\| {short.get(dtype, dtype).replace('_', ' ')} \| (\S+) \| (\S+) \|$",
            TEXTS["docs/cli.md"],
            re.MULTILINE,
        )
        assert tuple(map(float, row)) == (tolerance.absolute, tolerance.relative)


def test_the_operator_of_the_readme_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlc import load

    get_frontend("onnx").supported_operators()  # imports every converter; the table that is copied must have them
    monkeypatch.setattr(registry, "_OPERATORS", dict(registry._OPERATORS))
    monkeypatch.setattr(CONVERTERS, "entries", dict(CONVERTERS.entries))
    blocks = [
        block for block in re.findall(r"```python\n(.*?)```", TEXTS["README.md"], re.DOTALL) if "squared" in block
    ]
    assert len(blocks) == 2
    for block in blocks:
        exec(block, {"converter": converter})
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    node = helper.make_node("SquaredRelu", ["x"], ["y"], domain="com.example")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    onnx.save(
        helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets, ir_version=9),
        tmp_path / "m.onnx",
    )
    data = np.array([-2, 0, 1, 3], np.float32)
    result = run_graph(load(tmp_path / "m.onnx").graph, {"x": data})["y"]
    np.testing.assert_array_equal(result, [0, 0, 1, 9])


def test_links_lead_somewhere() -> None:
    for name, text in TEXTS.items():
        for link in re.findall(r"\]\(([^)#:]+)", text):
            assert ((ROOT / name).parent / link).exists(), f"{name}: {link}"

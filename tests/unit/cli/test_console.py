"""Tables, sizes, and outputs that are refused before the work."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import click
import pytest

from mlc.cli.console import (
    Console,
    file_bytes,
    one_line,
    printable,
    render_table,
    require_distinct,
    require_folder,
    require_writable,
    write_json,
)
from mlc.errors import OutputError, UsageError


def test_table_of_names_that_no_terminal_should_see() -> None:
    text = render_table(("name", "n"), [("[red]a\x1b[31m\nb", 1), ("x" * 200, 1234)], numbers=("n",))
    lines = text.splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("[red]a\\x1b[31m\\nb")
    assert lines[2] == f"{'x' * 200}  1234"
    assert not any(line.endswith(" ") for line in lines)


def test_table_on_a_terminal_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert len(render_table(("name",), [("x" * 100,)], terminal=True).splitlines()) >= 4


def test_headings_are_text_as_well() -> None:
    assert render_table(("y[/foo]", "[red]"), [("a", 1)]).splitlines()[0] == "y[/foo]  [red]"


def test_names_break_between_their_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    names = "/layer1/block/conv1/Conv, /layer1/block/relu/Relu, /layer2/down/conv2/Conv"
    table = render_table(("kernel", "ms", "nodes"), [("k0_conv_add_relu_max_pool", 0.1, names)], ("ms",), terminal=True)
    assert all(len(line) <= 60 for line in table.splitlines()[1:])
    pieces = [word for line in table.splitlines()[1:] for word in line.split()]
    assert set("".join(pieces).replace(",", "/").split("/")) >= {"layer1", "conv1", "Conv", "down"}
    for piece in pieces:
        assert piece in names + " 0.1 k0_conv_add_relu_max_pool"
        assert piece.endswith(("_", "/", ",", "Conv", "Relu", "pool", "0.1"))


def test_words_stay_whole_where_numbers_take_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    columns = ("against onnxruntime", "type", "max error", "relative", "allowed", "largest", "tolerance", "")
    name = "module/StatefulPartitionedCall/convolution_0"
    row = (name, "f32[1,10]", 3.87e-07, 1.29e-07, 0.000301, 3.01, "float32", "ok")
    table = click.unstyle(render_table(columns, [row], columns[2:6], terminal=True))
    assert [line.split(" ")[0] for line in table.splitlines()] == [
        "against", "onnxruntime", "module/", "Stateful", "Partitioned", "Call/", "convolution_", "0"
    ]  # fmt: skip
    assert [" ".join(line.split()) for line in table.splitlines()[:3]] == [
        "against type max relative allowed largest tolerance",
        "onnxruntime error",
        "module/ f32[1,10] 3.87e-07 1.29e-07 0.000301 3.01 float32 ok",
    ]


def test_one_output_is_no_input_and_no_other_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a").write_text("a")
    Path("link").symlink_to("a")
    require_distinct(["a", None, "missing"], ["b", None, "-", "-", "c"])
    for read, written in ((["a"], ["link"]), ([], ["new", "./new"]), ([], ["a", "link"]), (["gone"], ["gone"])):
        with pytest.raises(UsageError):
            require_distinct(read, written)


def test_escapes() -> None:
    assert printable("a\nb\tc\x9b") == "a\nb\tc\\x9b"
    assert one_line("ü\n\t\u202e") == "ü\\n\\t\\u202e"


@pytest.mark.parametrize(
    "count, text",
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (46_800_000, "44.6 MiB"),
        (1 << 30, "1.0 GiB"),
        (1 << 50, "1024.0 TiB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert file_bytes(count) == text


def test_unwritable_files_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    require_writable(tmp_path / "new", tmp_path / "old", None, "-")
    assert os.listdir(tmp_path) == ["old"]
    assert (tmp_path / "old").read_text() == "old"
    with pytest.raises(OutputError, match="cannot be written: No such file or directory"):
        require_writable(tmp_path / "none" / "x")
    with pytest.raises(OutputError, match="it is a directory"):
        require_writable(tmp_path)


def test_folders_are_made_or_refused(tmp_path: Path) -> None:
    require_folder(None)
    require_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="file: cannot be made: File exists"):
        require_folder(tmp_path / "file")


def test_json_documents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fields = {"a": float("nan"), "b": [float("inf"), -float("inf")], "c": (1, "x"), "d": {"e": None}}
    write_json(Console(), str(tmp_path / "x.json"), "run", fields)
    write_json(Console(quiet=True), "-", "run", fields)
    write_json(Console(), None, "run", fields)
    text = (tmp_path / "x.json").read_text()
    assert capsys.readouterr().out == text
    document = json.loads(text)
    assert (document.pop("schema"), document.pop("command")) == (1, "run")
    del document["mlc"]
    assert document == {"a": "NaN", "b": ["Infinity", "-Infinity"], "c": [1, "x"], "d": {"e": None}}


@pytest.mark.parametrize("quiet", [False, True])
def test_warnings_of_the_library_are_shown_unless_quiet(quiet: bool, capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(quiet=quiet)
    console.start_logging()
    try:
        logging.getLogger("mlc").warning("a file was left out")
        logging.getLogger("mlc").info("a detail")
    finally:
        console.close()
    assert capsys.readouterr().err == ("" if quiet else "warning: a file was left out\n")

"""``mlc vdla``: programs to text and back, and the checker's verdict as an exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mlc.vdla.config import PROFILES
from mlc.vdla.program import Program
from mlc.vdla.sim import Device
from tests.unit.cli.conftest import Result
from tests.unit.runtime.conftest import Parts
from tests.unit.vdla.streams import pipelined_program, token_pairs, with_tokens, without

Mlc = Callable[..., Result]


@pytest.fixture
def program(tmp_path: Path) -> bytes:
    """A valid program, which is also in ``good.vdla``; ``broken.vdla`` lacks one of its token pairs."""
    made = with_tokens(pipelined_program(np.random.default_rng(0), PROFILES["full"], tiles=2))
    pushing, push, popping, pop = token_pairs(made)[1]
    (tmp_path / "broken.vdla").write_bytes(without(made, (pushing, push), (popping, pop)).to_bytes())
    (tmp_path / "good.vdla").write_bytes(made.to_bytes())
    return made.to_bytes()


def test_text_and_back(mlc: Mlc, program: bytes) -> None:
    text = mlc("vdla", "disasm", "good.vdla").out
    assert mlc("vdla", "disasm", "good.vdla", "-o", "good.s") == Result(0, "", "")
    assert Path("good.s").read_text() == text
    result = mlc("vdla", "asm", "good.s", "-o", "again.vdla")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("again.vdla: 21 instructions (LD 6, CMP 11, ST 4), 32 micro-ops, ")
    assert Path("again.vdla").read_bytes() == program
    document = json.loads(mlc("vdla", "asm", "good.s", "-o", "again.vdla", "--json", "-").out)
    assert (document["command"], document["bytes"], document["profile"]) == ("vdla asm", len(program), "full")


def test_the_instructions_alone(mlc: Mlc, program: bytes) -> None:
    lines = mlc("vdla", "disasm", "good.vdla", "--code").out.splitlines()
    assert len(lines) == 21
    assert lines[1] == "0001 LD.WGT s=0 d=@w+0 y=1 x=1 st=1"
    document = json.loads(mlc("vdla", "disasm", "good.vdla", "--json").out)
    assert document["stream"][1] == {"index": 1, "unit": "LD", "text": lines[1][5:]}
    assert document["buffers"][0]["name"] == "x"
    assert document["micro_ops"][1] == {"dst": 1, "src": 1, "wgt": 0, "first": 0}


def test_a_valid_stream(mlc: Mlc, program: bytes) -> None:
    expected = "21 instructions (LD 6, CMP 11, ST 4), 32 micro-ops\nthe stream is valid\n"
    assert mlc("vdla", "check", "good.vdla") == Result(0, expected, "")
    assert mlc("vdla", "check", "good.vdla", "--profile", "full", "--vdla", "dram_latency=9").code == 0
    mlc("vdla", "disasm", "good.vdla", "-o", "good.s")
    assert mlc("vdla", "check", "good.s", "--profile", "full") == Result(0, expected, "")
    document = json.loads(mlc("vdla", "check", "good.vdla", "--json").out)
    assert (document["valid"], document["violations"]) == (True, [])


def test_a_broken_stream_names_both_instructions(mlc: Mlc, program: bytes) -> None:
    result = mlc("vdla", "check", "broken.vdla", "--limit", "1")
    assert result.code == 1
    assert result.err == "error: broken.vdla: the stream is not valid: 1 or more faults\n"
    first, *texts = result.out.splitlines()
    assert first.startswith("RAW: CMP may read inp[")
    assert [text.split()[1] for text in texts] == ["LD.INP", "GEMM.ACC"]
    document = json.loads(mlc("vdla", "check", "broken.vdla", "--json").out)
    assert not document["valid"]
    assert document["violations"][0]["kind"] == "RAW"
    assert document["violations"][0]["first"] < document["violations"][0]["second"]


def test_what_is_no_program(mlc: Mlc, program: bytes) -> None:
    Path("cut.vdla").write_bytes(program[:100])
    Path("text.s").write_text(".config full\nNOP\n")
    Path("noise").write_bytes(b"\xff\xfe")
    for arguments, code, message in [
        (["check", "cut.vdla"], 3, "error: cut.vdla: the program is damaged: its CRC-32 does not match\n"),
        (["check", "text.s"], 3, "error: text.s: line 2: no instruction is called 'NOP'; expected one of ALU.ADD, "),
        (["disasm", "noise"], 3, "error: noise: neither a VDLA program nor assembly text\n"),
        (["asm", "gone.s", "-o", "x"], 2, "error: gone.s: cannot be read: No such file or directory\n"),
        (["check", "good.vdla", "--profile", "osdi18"], 3, "error: good.vdla: the program is for configuration "),
        (["check", "good.vdla", "--profile", "ful"], 2, "error: no profile is called 'ful'\nhint: profiles: osdi18, "),
        (["check", "good.vdla", "--vdla", "x=1"], 2, "error: the accelerator has no field 'x'\n"),
        (["chek", "good.vdla"], 2, "error: there is no command 'chek'\nhint: did you mean check?\n"),
        (["asm", "text.s", "-o", "no/where"], 2, "error: no/where: cannot be written: "),
    ]:
        result = mlc("vdla", *arguments)
        assert (result.code, result.out) == (code, "")
        assert result.err.startswith(message)


def test_programs_in_a_module(mlc: Mlc, program: bytes, parts: Parts) -> None:
    broken = Path("broken.vdla").read_bytes()
    for name, programs in [("none", {}), ("one", {"r0": program}), ("two", {"r0": program, "r1": broken})]:
        members = {f"device/{region}.vdla": data for region, data in programs.items()}
        replace(parts, members={**parts.members, **members}).write(Path(f"{name}.tar"))
    text = mlc("vdla", "disasm", "good.vdla").out
    assert mlc("vdla", "disasm", "one.tar").out == text
    assert mlc("vdla", "disasm", "two.tar", "--region", "r0").out == text
    assert mlc("vdla", "check", "one.tar").code == 0
    assert mlc("vdla", "check", "two.tar", "--region", "r1").code == 1
    for arguments, code, message in [
        (["check", "none.tar"], 2, "error: none.tar: has no programs for VDLA\nhint: compile it with --target vdla\n"),
        (["check", "two.tar"], 2, "error: two.tar: has 2 programs\nhint: choose with --region: r0, r1\n"),
        (["check", "two.tar", "--region", "r2"], 2, "error: two.tar: there is no region 'r2'\nhint: known: r0, r1"),
        (["check", "good.vdla", "--region", "r2"], 2, "error: good.vdla: is no module.tar, so it has no region 'r2'"),
        (["check", "one.tar", "--profile", "osdi18"], 3, "error: one.tar: device/r0.vdla: the program is for "),
    ]:
        result = mlc("vdla", *arguments)
        assert (result.code, result.out) == (code, "")
        assert result.err.startswith(message)


def test_the_group_alone_shows_its_help(mlc: Mlc) -> None:
    result = mlc("vdla")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("Usage: mlc vdla")


def test_text_to_a_file_and_json_to_the_screen(mlc: Mlc, program: bytes) -> None:
    result = mlc("vdla", "disasm", "good.vdla", "-o", "code.s", "--code", "--json")
    assert json.loads(result.out)["instructions"] == 21
    assert Path("code.s").read_text().startswith("0000 LD.UOP ")


def test_help_of_each(mlc: Mlc) -> None:
    for name in ("disasm", "asm", "check", "sim"):
        result = mlc("vdla", name, "--help")
        assert result.code == 0
        assert f"mlc vdla {name} " in result.out.partition("Examples:")[2]


def test_a_simulation_shows_cycles_layers_and_assumptions(mlc: Mlc, program: bytes) -> None:
    result = mlc("vdla", "sim", "good.vdla")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0].startswith("21 instructions, ")
    assert lines[0].endswith(" ms (full)")
    assert "layer  cycles     ms  busy %  useful %  eta %  GOPS  op/B  roof %  bound by" in lines
    assert any("DRAM latency 48 cycles" in line for line in lines)
    quiet = mlc("vdla", "sim", "good.vdla", "-q", "--vdla", "dram_latency=500")
    assert quiet.out.endswith("(full, other times)\n")
    document = json.loads(mlc("vdla", "sim", "good.vdla", "--json", "-").out)
    assert (document["command"], document["executed"], document["instructions"]) == ("vdla sim", True, 21)
    assert lines[0].startswith(f"21 instructions, {document['cycles']} cycles = ")


def test_a_simulation_computes_what_the_device_does(mlc: Mlc, program: bytes) -> None:
    loaded = Program.from_bytes(program)
    x = np.random.default_rng(1).integers(0, 256, loaded.buffer("x").nbytes, np.uint8)
    np.savez("x.npz", x=x)
    y = np.zeros(loaded.buffer("y").nbytes // 4, np.int32)
    device = Device(loaded.config)
    device.bind("x", x)
    device.bind("y", y)
    device.run(loaded)
    assert mlc("vdla", "sim", "good.vdla", "-i", "x.npz", "-o", "y.npz").code == 0
    with np.load("y.npz") as found:
        assert found["y"].dtype == np.int32
        np.testing.assert_array_equal(found["y"], y)
    for seed, same in (("0", True), ("1", False)):
        mlc("vdla", "sim", "good.vdla", "-o", "first.npz")
        mlc("vdla", "sim", "good.vdla", "-o", "second.npz", "--seed", seed)
        assert (Path("first.npz").read_bytes() == Path("second.npz").read_bytes()) == same


def test_a_simulation_writes_its_files(mlc: Mlc, program: bytes) -> None:
    pytest.importorskip("matplotlib")
    files = ("--trace", "t.json", "--roofline", "r.png", "--report", "r.json")
    assert mlc("vdla", "sim", "good.vdla", "--no-exec", *files).code == 0
    names = {event["name"] for event in json.loads(Path("t.json").read_text())["traceEvents"]}
    assert {"LOAD INP", "GEMM ZERO", "STORE ACC", "FINISH", "ld->cmp"} <= names
    assert Path("r.png").read_bytes().startswith(b"\x89PNG")
    assert not json.loads(Path("r.json").read_text())["executed"]


def test_what_cannot_be_simulated(mlc: Mlc, program: bytes) -> None:
    np.savez("z.npz", z=np.zeros(4))
    np.savez("short.npz", x=np.zeros(4, np.int8))
    for arguments, code, message in [
        (["broken.vdla"], 1, "error: broken.vdla: the stream is not valid: RAW: CMP may read inp["),
        (["good.vdla", "-i", "z.npz"], 2, "error: z.npz: the program has no input 'z'\nhint: known: x"),
        (["good.vdla", "-i", "short.npz"], 2, "error: short.npz: 'x' has 4 bytes; expected 256"),
        (["good.vdla", "--no-exec", "-o", "y.npz"], 2, "error: --no-exec computes nothing: "),
        (["good.vdla", "--roofline", "r.gif"], 2, "error: --roofline r.gif: expected one of .svg, .png, .pdf\n"),
        (["good.vdla", "--vdla", "acc_bytes=65536"], 3, "error: the program is for configuration "),
        (["good.vdla", "--vdla", "speed"], 2, "error: 'speed' is not FIELD=VALUE\n"),
    ]:
        result = mlc("vdla", "sim", *arguments)
        assert (result.code, result.out) == (code, "")
        assert result.err.startswith(message)
    assert mlc("vdla", "sim", "broken.vdla", "--no-check").code == 0

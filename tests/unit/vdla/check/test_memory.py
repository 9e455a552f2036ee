"""Faults of single accesses, written as text."""

from __future__ import annotations

import pytest

from mlc.vdla.assembly import assemble
from mlc.vdla.check import Kind, check

HEAD = """
.config full
.buffer x in 1024 align=256
.buffer u uop 12 align=256
.buffer w const 256 align=256 offset=0
.buffer t temp 1024 align=256
"""
DATA = (
    "".join(f".const {64 * k}: {'00' * 64}\n" for k in range(4)) + ".uop 0: 0,0,0 f\n.uop 1: 5,0,0\n.uop 2: 2047,0,0\n"
)
UOPS = "LD.UOP s=0 d=@u+0 y=1 x=3 st=3\n"


OUT = ".buffer y out 48 align=256\n"


def faults(text: str) -> list[str]:
    """Those of a stream, that outputs are not written excepted."""
    head = HEAD + (OUT if "@y" in text else "")
    return [str(v) for v in check(assemble(head + DATA + text)) if v.kind is not Kind.UNWRITTEN]


def test_loads_compute_and_a_store_in_order() -> None:
    text = UOPS + (
        "LD.INP s=0 d=@x+0 y=2 x=2 st=4 pad=1,0,0,1\n"
        "LD.WGT s=3 d=@w+0 y=1 x=1 st=1 {>n}\n"
        "LD.UOP s=5 d=@u+0 y=1 x=1 st=1 {<p}\n"
        "GEMM.SET u=0:1 o=1 i=3 dst=0,1 src=0,1 wgt=0,0 {>n}\n"
        "ST.OUT s=0 d=@y+0 y=1 x=3 st=3 sh=1 {<p >p}\n"
        "FINISH {<n}\n"
    )
    assert faults(text) == ["UNINIT: instruction 4: wgt[0] is read, and nothing wrote it"]
    assert faults(text.replace("s=3", "s=0")) == []


@pytest.mark.parametrize(
    "text, expected",
    [
        (
            "LD.INP s=2040 d=@x+0 y=1 x=9 st=9 {>n}\nFINISH {<p}",
            "BOUNDS: instruction 0: inp[2040:2049] of 2048 elements",
        ),
        (
            "LD.INP s=0 d=@x+60 y=2 x=2 st=4 {>n}\nFINISH {<p}",
            "BOUNDS: instruction 0: byte 1055 of buffer 'x', which has 1024",
        ),
        ("LD.WGT s=0 d=0x7fffffff y=1 x=1 st=1 {>n}\nFINISH {<p}", "ABSOLUTE: instruction 0: byte 54975581363"),
        ("LD.INP s=0 d=@t+3 y=1 x=1 st=1 {>n}\nFINISH {<p}", "UNINIT: instruction 0: byte 48 of buffer 't' is read"),
        ("LD.UOP s=0 d=@x+0 y=1 x=1 st=1\nFINISH", "UNKNOWN: instruction 0: the micro-ops come from a buffer"),
        ("LD.UOP s=0 d=0 y=1 x=1 st=1\nFINISH", "ABSOLUTE: instruction 0: byte 0 of DRAM, whatever lies there"),
        (
            "ST.ACC s=0 d=@y+0 y=1 x=1 st=1 {>p}\nFINISH {<n}",
            "UNINIT: instruction 0: acc[0] is read, and nothing wrote",
        ),
        (
            UOPS + "GEMM.ZERO u=2:3 o=2 i=1 dst=1,0 src=0,0 wgt=0,0\nFINISH",
            "BOUNDS: instruction 1: acc[2048] of 2048 elements",
        ),
        ("GEMM.ZERO u=0:1 o=1 i=1 dst=0,0 src=0,0 wgt=0,0\nFINISH", "UNINIT: instruction 0: uop[0] is read"),
        (
            UOPS + "ALU.ADDI u=1:2 o=1 i=1 dst=0,0 src=0,0 imm=1\nFINISH",
            "UNINIT: instruction 1: acc[5] is read, and nothing wrote it",
        ),
        (
            UOPS
            + "GEMM.ZERO u=0:1 o=1 i=1 dst=0,0 src=0,0 wgt=0,0 {>n}\n"
            + "ST.ACC s=0 d=@w+0 y=1 x=1 st=1 {<p >p}\nFINISH {<n}",
            "READONLY: instruction 2: buffer 'w' of kind const is stored to",
        ),
    ],
)
def test_faults_of_one_instruction(text: str, expected: str) -> None:
    found = faults(text)
    assert found
    assert found[0].startswith(expected)


def test_micro_ops_in_a_constant_are_understood() -> None:
    text = "LD.UOP s=0 d=@w+0 y=1 x=4 st=4\nGEMM.ZERO u=3:4 o=1 i=1 dst=0,0 src=0,0 wgt=0,0\nFINISH"
    assert faults(text) == []


def test_a_transfer_of_nothing_touches_nothing() -> None:
    assert faults("LD.UOP s=9999 d=0 y=9 x=0 st=0\nST.ACC s=0 d=0 y=9 x=0 st=0 {>p}\nFINISH {<n}") == []


def test_overlapping_slots_of_one_unit_are_its_own_order() -> None:
    assert faults(UOPS + "LD.ACC s=0 d=@x+0 y=1 x=4 st=4\nLD.ACC s=2 d=@x+0 y=1 x=4 st=4\nFINISH") == []


CLEARED = UOPS + "GEMM.ZERO u=0:1 o=1 i=12 dst=0,1 src=0,0 wgt=0,0 {>n}\n"


@pytest.mark.parametrize("address", [0, 16, 64, 1 << 20])
def test_an_address_that_nothing_relocates_is_an_error(address: int) -> None:
    text = f"ST.ACC s=0 d={address // 4} y=1 x=1 st=1 {{<p >p}}\nFINISH {{<n}}\n"
    (found,) = faults(CLEARED + text)
    what = f"byte {address // 4 * 64} of DRAM, whatever lies there: nothing relocates it"
    assert found == f"ABSOLUTE: instruction 2: {what}"


@pytest.mark.parametrize(
    "stores, expected",
    [
        (["s=0 d=@y+0 y=1 x=12 st=12"], None),
        (["s=0 d=@y+0 y=2 x=3 st=6", "s=6 d=@y+3 y=2 x=3 st=6"], None),
        (["s=0 d=@y+0 y=2 x=6 st=0", "s=0 d=@y+6 y=1 x=6 st=6"], None),
        (["s=0 d=@y+0 y=1 x=11 st=11"], "16 of the 192 bytes of output 'y' are never written, byte 176 the first"),
        (["s=0 d=@y+0 y=2 x=3 st=6"], "96 of the 192 bytes of output 'y' are never written, byte 48 the first"),
        ([], "192 of the 192 bytes of output 'y' are never written, byte 0 the first"),
    ],
)
def test_outputs_are_written_to_their_last_byte(stores: list[str], expected: str | None) -> None:
    lines = [f"ST.OUT {line} sh=0 {{>p}}" for line in stores] or ["ST.OUT s=0 d=0 y=0 x=0 st=0 sh=0 {>p}"]
    lines = [line.replace("{>p}", "") for line in lines[:-1]] + lines[-1:]
    lines[0] = lines[0].replace("{>p}", "{<p >p}") if "{" in lines[0] else f"{lines[0]}{{<p}}"
    head = HEAD + OUT.replace("48", "192") + DATA
    found = [str(v) for v in check(assemble(head + CLEARED + "\n".join([*lines, "FINISH {<n}"])))]
    if expected is None:
        assert found == []
    else:
        (only,) = found
        assert only.startswith(f"UNWRITTEN: instruction {2 + len(lines)}: {expected}")

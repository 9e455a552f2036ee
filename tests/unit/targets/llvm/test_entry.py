"""Entry points: what is written once for all steps, and the calls of each."""

from __future__ import annotations

import re

import pytest

from mlc.targets.base import CallSpec, JoinSpec, LoopSpec, RowSpec
from mlc.targets.llvm.entry import entry_points


def step(k: int) -> CallSpec:
    return CallSpec("relu", (("input", 0), ("workspace", 64 * k)), 128)


@pytest.mark.parametrize("count", [0, 1, 1000])
def test_calls_are_walked_not_written_out(count: int) -> None:
    """A basic block with a call for every step takes LLVM the square of their number."""
    text = entry_points([step(k) for k in range(count)])
    assert text.count("define internal void @mlc.step") == count
    assert text.count("call void %step(") == 3
    assert f"@mlc.steps = internal constant [{count} x ptr] [" in text


def test_a_candidate_is_only_run() -> None:
    text = entry_points([step(0)], whole=False)
    assert re.findall(r"define .*@([\w.]+)\(", text) == ["mlc.step0", "mlc_run"]
    assert entry_points([step(0)]).startswith(text)


def test_step_passes_addresses_in_order() -> None:
    text = entry_points([CallSpec("k0", (("input", 2), ("param", 64), ("workspace", 128), ("output", 1)), 256)])
    body = re.search(r"define internal void @mlc.step0.*?\n}", text, re.S)
    assert body
    lines = [line.strip() for line in body[0].splitlines()[1:-1]]
    assert lines == [
        "%q0 = getelementptr inbounds ptr, ptr %inputs, i64 2",
        "%a0 = load ptr, ptr %q0, align 8",
        "%a1 = getelementptr inbounds i8, ptr %params, i64 64",
        "%a2 = getelementptr inbounds i8, ptr %workspace, i64 128",
        "%q3 = getelementptr inbounds ptr, ptr %outputs, i64 1",
        "%a3 = load ptr, ptr %q3, align 8",
        "%scratch = getelementptr inbounds i8, ptr %workspace, i64 256",
        "call void @k0(ptr %a0, ptr %a1, ptr %a2, ptr %a3, ptr %scratch, ptr %pool)",
        "ret void",
    ]


def test_copy_is_a_move_of_bytes_and_of_nothing_when_empty() -> None:
    copy = CallSpec("", (("param", 0), ("output", 0)), nbytes=12)
    assert "call void @llvm.memmove.p0.p0.i64(ptr %a1, ptr %a0, i64 12, i1 false)" in entry_points([copy])
    assert "call void @llvm.memmove" not in entry_points([CallSpec("", (("param", 0), ("output", 0)), nbytes=0)])


def test_a_join_is_a_table_however_many_operands_it_has() -> None:
    def text(count: int) -> str:
        return entry_points([JoinSpec(((("input", 3), 8), (("param", 64), 12)) * count, ("workspace", 128), 5)])

    few, many = text(1), text(1000)
    assert "[2 x [3 x i64]] [[3 x i64] [i64 0, i64 3, i64 8], [3 x i64] [i64 2, i64 64, i64 12]]" in few
    assert "%row.at = mul i64 %r, 20" in few
    assert len(many.splitlines()) == len(few.splitlines())


def test_a_loop_has_functions_and_a_table_of_its_own_steps() -> None:
    inner = CallSpec("k", (("input", 0), ("input", 1), ("output", 0)))
    rows = RowSpec(("input", 3), 8, True)
    loop = LoopSpec(7, (inner, inner), ((("input", 0), ("output", 0), 64, 128),), (rows,), (("param", 32),), (), 256)
    text = entry_points([loop])
    names = re.findall(r"define (?:internal )?void @([\w.]+)\(", text)
    assert names == [
        "mlc.step0.0",
        "mlc.step0.1",
        "mlc.step0",
        "mlc_step",
        "mlc_profile",
        "mlc.step0.timed",
        "mlc_parts",
    ]
    assert "@mlc.step0.steps = internal constant [2 x ptr] [ptr @mlc.step0.0, ptr @mlc.step0.1]" in text
    assert "%back = sub i64 6, %t" in text
    assert "mul i64 %back, 8" in text


def test_parts_of_loops_are_timed_by_functions_of_their_own() -> None:
    inner = CallSpec("k", (("input", 0), ("output", 0)))
    loop = LoopSpec(
        3, (inner, inner), (), (RowSpec(("input", 0), 8, False),), (), (RowSpec(("output", 0), 8, False),), 0
    )
    text = entry_points([step(0), loop, step(1), loop])
    assert "switch i64 %i, label %done [ i64 1, label %loop1 i64 3, label %loop3 ]" in text
    plain, timed = (re.search(rf"define internal void @mlc.step1{end}\(.*?\n}}", text, re.S) for end in ("", ".timed"))
    assert plain
    assert timed
    more = [line for line in timed[0].splitlines() if line not in plain[0].splitlines()]
    assert [line.split(" #0")[0].strip() for line in more[1:]] == [
        "%before = call i64 @mlc.now()",
        "%after = call i64 @mlc.now()",
        "%took = sub i64 %after, %before",
        "%slot = getelementptr inbounds i64, ptr %ns, i64 %i",
        "%old = load i64, ptr %slot, align 8",
        "%new = add i64 %old, %took",
        "store i64 %new, ptr %slot, align 8",
    ]
    assert "mlc_parts" not in entry_points([step(0)])
    assert "timed" not in entry_points([loop], whole=False)

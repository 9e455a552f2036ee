"""Cycles that kernels are expected to take, and the loops of their assembly."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import mlc
from mlc.api import estimates
from mlc.cli.main import run
from mlc.errors import UsageError
from mlc.runtime import open_package
from mlc.targets.cpu.cost import fits_registers
from mlc.targets.cpu.loops import InnerLoop, analysed, heaviest_loop, inner_loops
from tests.e2e.compiled import load, network

RNG = np.random.default_rng(0)


def product(rows: int, depth: int, columns: int) -> onnx.ModelProto:
    feeds = {"x": np.zeros((rows, depth), np.float32)}
    stored = {"w": RNG.standard_normal((depth, columns)).astype(np.float32)}
    return network([helper.make_node("MatMul", ["x", "w"], ["y"])], feeds, ["y"], stored)


def estimated(model: onnx.ModelProto, target: str, folder: Path):
    mlc.compile(load(model), target, records=[]).save(folder / "m.tar")
    with open_package(folder / "m.tar") as package:
        return estimates(package)


@pytest.mark.parametrize(
    "target", ["arm -mcpu=cortex-a76", "arm -mcpu=cortex-a53", "x86 -mcpu=znver4", "x86 -mcpu=haswell"]
)
def test_a_large_product_takes_little_more_than_its_multiply_adds(target: str, tmp_path: Path) -> None:
    (found,) = estimated(product(240, 256, 240), target, tmp_path)
    assert 0.8 < found.share <= 1
    assert found.bound == "multiply-adds"
    assert found.steps == 1
    assert found.multiply_adds > 8


def test_a_sum_waits_for_memory(tmp_path: Path) -> None:
    feeds = {"x": np.zeros((64, 4096), np.float32), "z": np.zeros((64, 4096), np.float32)}
    model = network([helper.make_node("Add", ["x", "z"], ["y"])], feeds, ["y"])
    (found,) = estimated(model, "arm -mcpu=cortex-a72", tmp_path)
    assert found.bound == "memory"
    assert found.share < 0.1


def test_twice_the_units_take_half_the_cycles(tmp_path: Path) -> None:
    (narrow,) = estimated(product(96, 128, 80), "arm -mcpu=cortex-a72", tmp_path)
    (wide,) = estimated(product(96, 128, 80), "arm -mcpu=cortex-a76", tmp_path)
    assert 1.6 < narrow.cycles / wide.cycles < 2.4


def test_a_core_in_order_has_registers_for_the_next_step() -> None:
    from mlc.targets.arm.record import record_for

    assert fits_registers(5, 5, record_for("cortex-a76"))
    assert not fits_registers(5, 5, record_for("cortex-a53"))
    assert fits_registers(5, 4, record_for("cortex-a53"))


ARM = """
k:
	mov	x1, xzr
.LBB0_1:
	mov	x2, xzr
.LBB0_2:
	ldr	s1, [x0, x2]
	// a comment
	fmla	v0.4s, v2.4s, v1.s[0]
	fmla	v3.4s, v2.4s, v1.s[0]
	b.ne	.LBB0_2
	cbnz	x1, .LBB0_1
.LBB0_3:
	subs	x1, x1, #1
	b.ne	.LBB0_3
"""
X86 = """
k:
.LBB0_1:
	vfmadd231ps	(%rax), %zmm0, %zmm1
	jne	.LBB0_1                         # it goes on
"""


def test_innermost_loops_of_an_assembly() -> None:
    assert [(len(each.text), each.multiply_adds) for each in inner_loops(ARM)] == [(4, 2), (2, 0)]
    found = heaviest_loop(ARM)
    assert found is not None
    assert found.text[0] == "ldr	s1, [x0, x2]"
    assert [each.multiply_adds for each in inner_loops(X86)] == [1]
    assert heaviest_loop("k:\n\tret\n") is None


def test_without_the_analyser_there_are_no_cycles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = InnerLoop(("nop", "b.ne .L"), 1)
    assert analysed(found, "aarch64-unknown-linux-gnu", "cortex-a55") is found
    (tmp_path / "llvm-mca").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "llvm-mca").chmod(0o755)
    assert analysed(found, "aarch64-unknown-linux-gnu", "cortex-a55") is found


@pytest.mark.skipif(shutil.which("llvm-mca") is None, reason="no llvm-mca")
def test_the_analyser_grants_an_inner_loop_its_products(tmp_path: Path) -> None:
    """Of a core that it takes to start one multiply-add a cycle; none of the slots is lost."""
    for model in (product(240, 256, 240), product(7, 512, 160)):
        (found,) = estimated(model, "arm -mcpu=cortex-a76", tmp_path)
        assert found.loop_cycles is not None
        assert found.multiply_adds / found.loop_cycles > 0.9


def test_what_has_no_estimates_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = product(4, 8, 16)
    with pytest.raises(UsageError, match="holds no estimates: it was compiled for the machine at hand"):
        estimated(model, "x86", tmp_path)
    onnx.save(model, tmp_path / "m.onnx")
    assert run(["inspect", str(tmp_path / "m.onnx"), "--estimate"]) == 2
    assert "is a model; only a module.tar has kernels" in capsys.readouterr().err


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mlc.compile(load(product(64, 64, 64)), "arm -mcpu=cortex-a53").save(tmp_path / "m.tar")
    assert run(["inspect", str(tmp_path / "m.tar"), "--estimate"]) == 0
    shown = capsys.readouterr().out
    assert "cycles expected of one core, arm -mcpu=cortex-a53" in shown
    assert "multiply-adds" in shown
    assert run(["inspect", str(tmp_path / "m.tar"), "--estimate", "--json"]) == 0
    assert '"kind": "estimate"' in capsys.readouterr().out

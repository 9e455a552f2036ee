"""Modules: their text does not depend on the order of asking, and LLVM's refusals become errors."""

from __future__ import annotations

import pytest

from mlc.errors import ToolchainError
from mlc.ir.expr import Load, binary, call
from mlc.ir.index import Var, as_index
from mlc.ir.loop import Buffer, For, ForKind, Function, Store
from mlc.ir.types import f32, i32
from mlc.targets.llvm.function import emit_function
from mlc.targets.llvm.module import Machine, ModuleText, assembly_of, compile_text, target_machine
from tests.unit.targets.llvm.host import machine

K = Var("k", 0, 3)
HASWELL = Machine("x86_64-unknown-linux-gnu", "haswell", "", 256)


def root(fn: str = "exp") -> Function:
    x, out = Buffer("x", (4,), f32), Buffer("out", (4,), f32)
    body = Store(out, (as_index(K),), call(fn, Load(x, (as_index(K),))))
    return Function("kernel", (x, out), 1, For(K, 4, ForKind.SERIAL, body))


def text_of(fn: Function, target: Machine = HASWELL) -> str:
    module = ModuleText()
    emit_function(fn, module)
    return module.text(target)


def test_text_names_the_target_and_what_it_uses() -> None:
    text = text_of(root())
    assert text.startswith('target triple = "x86_64-unknown-linux-gnu"\n')
    assert "define internal float @mlc.exp.v1f32" in text
    assert '"prefer-vector-width"="256"' in text
    assert "@mlc.ipow" not in text


def test_integer_powers_are_defined_when_used() -> None:
    x, out = Buffer("x", (4,), i32), Buffer("out", (4,), i32)
    load = Load(x, (as_index(K),))
    body = Store(out, (as_index(K),), binary("pow", load, load))
    text = text_of(Function("kernel", (x, out), 1, For(K, 4, ForKind.SERIAL, body)))
    assert "define internal i32 @mlc.ipow.i32" in text
    assert compile_text(text, HASWELL)


def test_declarations_appear_once() -> None:
    module = ModuleText()
    for _ in range(2):
        module.declare("declare float @llvm.sqrt.f32(float)")
    assert module.text(HASWELL).count("llvm.sqrt") == 1


def test_equal_modules_have_equal_text() -> None:
    assert text_of(root("tanh")) == text_of(root("tanh"))


def test_stages_of_compilation_are_told() -> None:
    stages: list[str] = []
    compile_text(text_of(root()), machine(), on_stage=stages.append)
    assert stages == ["parse", "optimise", "emit"]
    stages.clear()
    compile_text(text_of(root()), machine(), opt_level=0, on_stage=stages.append)
    assert stages == ["parse", "emit"]


def test_assembly_is_readable() -> None:
    exported = text_of(root("sqrt")).replace("define internal void @kernel", "define void @kernel")
    assert "vsqrtss" in assembly_of(exported, HASWELL)


def test_text_that_llvm_refuses_is_a_bug_of_ours() -> None:
    with pytest.raises(ToolchainError, match=r"LLVM refused the generated code: [\s\S]*expected type") as caught:
        compile_text("define nonsense", HASWELL)
    assert "bug in mlc" in caught.value.hint


def test_unknown_triple_is_refused() -> None:
    with pytest.raises(ToolchainError, match="LLVM has no target 'abacus'"):
        target_machine(Machine("abacus", "", "", 128))

"""A processor that is emulated as a bench: what it computes, and what becomes of kernels that misbehave there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mlc.errors import DeviceError, PackageError
from mlc.ir.graph import Node
from mlc.pipeline.machine import Processor
from mlc.rewrite.fuse import group_each
from mlc.targets.arm.target import ArmTarget
from mlc.targets.base import CallSpec
from mlc.targets.bench import Program, StrayWriteError
from mlc.targets.cpu.bench.emulated import EmulatedStand
from mlc.targets.llvm.module import compile_text
from mlc.targets.x86.target import X86Target
from tests.emulated import needs_emulator
from tests.unit.targets.cpu.bench.test_kernel import product

ARGUMENTS = "ptr %inputs, ptr %outputs, ptr %params, ptr %workspace, ptr %pool"


@pytest.fixture(scope="module")
def target() -> ArmTarget:
    return ArmTarget.from_options({"mcpu": "cortex-a53"})


@pytest.fixture(scope="module")
def stand(target: ArmTarget) -> EmulatedStand:
    return target.emulated_bench().open(2)


@pytest.fixture(scope="module")
def node() -> Node:
    (node,) = group_each(product()).nodes
    return node


def inputs() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(np.float32) for shape in ((4, 6), (6, 5))]


@needs_emulator
def test_a_kernel_is_run_and_timed(target: ArmTarget, stand: EmulatedStand, node: Node) -> None:
    machine = Processor(target)
    call = CallSpec("kernel", (("input", 0), ("input", 1), ("output", 0)))
    emitted = machine.emit({"kernel": machine.kernel(node, "kernel", {})})
    loaded = stand.load(Program(target.codegen(emitted, [call], opt_level=3, whole=False).obj), node, (False, False))
    a, b = inputs()
    for fill in (0xFF, 0x5A):
        assert loaded.run([a, b], fill) > 0
        np.testing.assert_allclose(loaded.results()[0], a @ b, rtol=1e-5, atol=1e-6)
    loaded.check()
    assert 0 < loaded.sample(1) < loaded.sample(2000)
    assert stand.peak() == 0
    loaded.close()
    assert not list(Path(stand._folder.name).glob("candidate*"))


@needs_emulator
@pytest.mark.parametrize(
    "body, error, words",
    [
        ("  store volatile i32 1, ptr null\n  ret i32 0", DeviceError, "died of SIGSEGV"),
        ("  call void @llvm.trap()\n  ret i32 0", DeviceError, "died of SIG"),
        ("  call void @exit(i32 7)\n  ret i32 0", DeviceError, "ended its process with code 7"),
        ("  ret i32 3", DeviceError, "gave the code 3"),
        (
            "  %out = load ptr, ptr %outputs\n  %p = getelementptr float, ptr %out, i64 20\n"
            "  store float 1.0, ptr %p\n  ret i32 0",
            StrayWriteError,
            "0 bytes past the end of buffer 2",
        ),
        (
            "  %in = load ptr, ptr %inputs\n  store float 7.0, ptr %in\n  ret i32 0",
            StrayWriteError,
            "it changed input 0",
        ),
    ],
    ids=["null", "trap", "exit", "code", "beyond", "input"],
)
def test_a_kernel_that_misbehaves_is_found_out(
    target: ArmTarget, stand: EmulatedStand, node: Node, body: str, error: type[Exception], words: str
) -> None:
    text = f"declare void @llvm.trap()\ndeclare void @exit(i32)\ndefine i32 @mlc_run({ARGUMENTS}) {{\n{body}\n}}\n"
    loaded = stand.load(Program(compile_text(text, target._machine())), node, (False, False))
    with pytest.raises(error, match=words):
        loaded.run(inputs(), 0)
    loaded.close()


@needs_emulator
def test_what_is_no_object_is_not_linked(stand: EmulatedStand, node: Node) -> None:
    with pytest.raises(PackageError, match="cannot be linked"):
        stand.load(Program(b"nothing"), node, (False, False))


def test_a_machine_that_is_here_is_not_emulated() -> None:
    with pytest.raises(DeviceError, match="nothing is to be emulated"):
        X86Target.from_options({}).emulated_bench()

"""Tools for packages of other machines: which are found, and what is said where they are missing."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import numpy as np
import pytest

import mlc
from mlc.errors import DeviceError, MissingDependencyError, PackageError, UsageError
from mlc.runtime import emulate_module
from mlc.runtime.toolchain import compiler_for, emulator_for, run_tool

TRIPLE = "sparc-unknown-linux-gnu"


def _tool(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH, and no ziglang."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr("mlc.runtime.toolchain.find_spec", lambda name: None)
    return folder


def test_compilers_in_their_order(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiler_for(TRIPLE) is None
    monkeypatch.setattr("mlc.runtime.toolchain.find_spec", lambda name: name)
    assert compiler_for(TRIPLE) == (sys.executable, "-m", "ziglang", "cc", "-target", "sparc-linux-gnu")
    assert (compiler_for(TRIPLE, static=True) or ())[-1] == "sparc-linux-musl"
    assert (compiler_for("sparc-unknown-linux-musl") or ())[-1] == "sparc-linux-musl"
    _tool(path, "sparc-linux-gnu-gcc", "exit 0")
    _tool(path, "cc", "exit 0")
    assert compiler_for(TRIPLE, static=True) == (f"{path}/sparc-linux-gnu-gcc", "-static")
    assert compiler_for(f"{platform.machine()}-unknown-linux-gnu") == (f"{path}/cc",)
    assert (compiler_for(f"{platform.machine()}-unknown-linux-musl") or ())[-1].endswith("-linux-musl")
    _tool(path, "sparc-linux-musl-gcc", "exit 0")
    assert compiler_for("sparc-unknown-linux-musl") == (f"{path}/sparc-linux-musl-gcc",)


def test_an_emulator_runs_processors_it_does_not_know_as_one_with_everything(path: Path) -> None:
    assert emulator_for(TRIPLE, "leon3") is None
    _tool(path, "qemu-sparc", "echo 'Available CPUs:'; echo '  leon3'")
    assert emulator_for(TRIPLE, "leon3") == (f"{path}/qemu-sparc", "-cpu", "leon3")
    assert emulator_for(TRIPLE, "niagara") == (f"{path}/qemu-sparc", "-cpu", "max")


def test_a_tool_says_why_it_failed(path: Path) -> None:
    _tool(path, "t", "echo one >&2; echo two >&2; exit 3")
    assert run_tool([f"{path}/t"]) == (3, "two")
    _tool(path, "silent", "exit 4")
    assert run_tool([f"{path}/silent"]) == (4, "exit status 4")


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package for a processor that this machine is not."""
    from onnx import helper, save

    family = "x86 -mcpu=x86-64" if platform.machine() == "aarch64" else "arm"
    info = [helper.make_tensor_value_info(n, 1, [2]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", info[:1], info[1:])
    folder = tmp_path_factory.mktemp("foreign")
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), folder / "m.onnx")
    mlc.compile(mlc.load(folder / "m.onnx"), family).save(folder / "m.tar")
    return folder / "m.tar"


def test_what_is_missing_is_named(foreign: Path, path: Path) -> None:
    with pytest.raises(MissingDependencyError, match="no emulator of") as caught:
        emulate_module(foreign)
    assert caught.value.hint == "install qemu-user-static"
    machine = "x86_64" if platform.machine() == "aarch64" else "aarch64"
    _tool(path, f"qemu-{machine}", "exit 0")
    with pytest.raises(MissingDependencyError, match="nothing here links programs for") as caught:
        emulate_module(foreign)
    assert "pip install ziglang" in (caught.value.hint or "")
    _tool(path, f"{machine}-linux-gnu-gcc", "echo no such library >&2; exit 1")
    with pytest.raises(PackageError, match=r"cannot be linked for \w+: no such library"):
        emulate_module(foreign)


def test_a_program_that_fails_says_so(foreign: Path, path: Path) -> None:
    machine = "x86_64" if platform.machine() == "aarch64" else "aarch64"
    _tool(path, f"qemu-{machine}", "echo segmentation fault >&2; exit 11")
    _tool(path, f"{machine}-linux-gnu-gcc", "exit 0")
    with (
        emulate_module(foreign) as module,
        pytest.raises(DeviceError, match="the emulated program failed: segmentation fault"),
    ):
        module.run({"x": np.zeros(2, np.float32)})


def test_a_module_of_this_machine_needs_no_emulator(tmp_path: Path, foreign: Path) -> None:
    mlc.compile(mlc.load(foreign.parent / "m.onnx"), "x86" if platform.machine() == "x86_64" else "arm").save(
        tmp_path / "own.tar"
    )
    with pytest.raises(UsageError, match="which this machine is"):
        emulate_module(tmp_path / "own.tar")

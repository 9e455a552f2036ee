"""The C header and example: they compile without a warning, and compute what the executor computes."""

from __future__ import annotations

import doctest
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.runtime import TensorSpec, c_example, c_header, cheader, load_module, open_package
from mlc.runtime.cheader import mangle
from tests.fuzz import examples

CC = shutil.which("cc")
needs_cc = pytest.mark.skipif(CC is None, reason="no C compiler")
STRICT = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]

EVIL = 'a */ int x; /* ??/\n\\ "quoted" \u2603 \U0001f600 %d {0}'


def cc(*arguments: object) -> None:
    run = subprocess.run([CC, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr


def test_mangle_documents_itself() -> None:
    assert doctest.testmod(cheader).failed == 0


@given(st.lists(st.text(max_size=80) | st.text("aA_-0", max_size=6), max_size=8, unique=True))
@examples(50)
def test_mangled_names_are_safe_and_distinct(names: list[str]) -> None:
    mangled = [mangle(name) for name in names]
    assert all(re.fullmatch("[a-z0-9_]{1,64}", name) for name in mangled)
    assert len(set(mangled)) == len(mangled)


def test_a_name_that_looks_mangled_is_mangled_too() -> None:
    assert mangle(mangle("Data")) != mangle("Data")


def test_the_header_states_sizes_and_order(handmade: Any) -> None:
    header = c_header(handmade.manifest)
    for line in (
        "#define MLC_WORKSPACE_BYTES 144u",
        "#define MLC_PARAMS_BYTES 128u",
        "#define MLC_STEP_COUNT 2",
        '    MLC_INPUT_x = 0, /* "x" f32[3,5]: float, 60 bytes */',
        "    MLC_OUTPUT_COUNT = 1",
        "#define MLC_OUTPUT_BYTES {60u}",
    ):
        assert line in header.splitlines()


def test_the_header_says_which_outputs_may_lie_over_inputs(handmade: Any) -> None:
    assert "next values" not in c_header(handmade.manifest)
    header = c_header(replace(handmade.manifest, updates={"y": "x"}, symbols="net"))
    assert " * NET_OUTPUT_y over NET_INPUT_x" in header.splitlines()


def test_the_header_has_a_call_for_loops_where_there_are_some(handmade: Any) -> None:
    assert "mlc_parts" not in c_header(handmade.manifest)
    first, last = handmade.manifest.steps
    parts = (replace(first, results=()),)
    header = c_header(replace(handmade.manifest, steps=(first, replace(last, parts=parts * 2)), symbols="net"))
    assert "/* Runs step i, one of 1, and adds to ns[k] the nanoseconds of its part k, of all rounds" in header
    assert "there are\n * 2. */\nvoid net_parts(" in header


@needs_cc
def test_the_example_gives_the_executor_s_results(handmade: Any, handmade_tar: Path, tmp_path: Path) -> None:
    with open_package(handmade_tar) as package:
        for name in package.names():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(package.read(name))
    examples = tmp_path / "examples"
    cc(
        *STRICT,
        "-I",
        tmp_path / "include",
        examples / "main.c",
        tmp_path / "lib/model.o",
        "-o",
        examples / "main",
        "-lm",
    )

    x = np.random.default_rng(1).standard_normal((3, 5), np.float32)
    x.tofile(examples / "x.bin")
    for arguments, value in ((["-t", "2", "x.bin"], x), (["x.bin"], x), ([], np.zeros_like(x))):
        command = ["./main", "../params.safetensors", *arguments]
        run = subprocess.run(command, cwd=examples, capture_output=True, text=True, timeout=60)
        assert (run.returncode, run.stdout) == (0, "output0.bin: 60 bytes\n"), run.stderr
        y = np.fromfile(examples / "output0.bin", np.float32).reshape(3, 5)
        with load_module(handmade_tar, 1) as module:
            np.testing.assert_array_equal(y, module.run({"x": value})["y"])

    (examples / "short.bin").write_bytes(b"abc")
    for arguments, message in (
        (["../params.safetensors", "short.bin"], "error: short.bin: is not of the expected size\n"),
        (["../params.safetensors", "none.bin"], "error: none.bin: cannot be opened\n"),
        (["../params.safetensors", "x.bin", "x.bin"], "error: x.bin: is one input too many\n"),
        (["short.bin"], "error: short.bin: is not a safetensors file\n"),
        (["../params.safetensors", "-t", "0"], "error: mlc_pool_create: cannot start the threads\n"),
    ):
        run = subprocess.run(["./main", *arguments], cwd=examples, capture_output=True, text=True, timeout=60)
        assert (run.returncode, run.stderr) == (1, message)


@needs_cc
def test_any_name_makes_a_header_that_compiles(handmade: Any, make_package: Callable, tmp_path: Path) -> None:
    ports = (TensorSpec(EVIL, "bf16", (0,)), TensorSpec("a", "i64", ()), TensorSpec("A", "bool", (3,)))
    for inputs, outputs in ((ports, ()), ((), ports)):
        manifest = handmade.but(inputs=inputs, outputs=outputs, steps=()).manifest
        target = type(manifest.target)(EVIL, "", "")
        model = type(manifest.model)(EVIL, "", "")
        manifest = type(manifest)(EVIL, target, model, inputs, outputs, (), manifest.memory)
        (tmp_path / "mlc_model.h").write_text(c_header(manifest), "ascii")
        (tmp_path / "main.c").write_text(c_example(manifest), "ascii")
        cc(*STRICT, "-trigraphs", "-c", tmp_path / "main.c", "-o", tmp_path / "main.o")
        cc("-x", "c++", "-Wall", "-Werror", "-fsyntax-only", tmp_path / "mlc_model.h") if shutil.which("c++") else None

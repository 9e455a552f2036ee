"""Packages in C programs: what a linker and a C compiler make of one, and of two together."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mlc
from mlc.api import Model
from mlc.errors import UsageError
from mlc.frontend.base import ModelSource
from mlc.ir.graph import Builder
from mlc.ir.types import TensorType, f32, u64
from mlc.ops import get
from mlc.runtime import open_package

CC = shutil.which("cc")
needs_cc = pytest.mark.skipif(CC is None, reason="no C compiler")

# Both models on one pool, each with the parameters of its own package; the second reads what the first gave.
PROGRAM = r"""
#include "detector_model.h"
#include "Classifier_model.h"
#include <stdio.h>
#include <stdlib.h>

static void *params(const char *path, long bytes) {
    unsigned char head[8];
    long skip = 0;
    FILE *file = fopen(path, "rb");
    void *at = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    if (!file || fread(head, 1, 8, file) != 8) exit(3);
    for (int i = 7; i >= 0; i--) skip = skip << 8 | head[i];
    if (fseek(file, 8 + skip, SEEK_SET) || fread(at, 1, bytes, file) != (size_t)bytes) exit(3);
    fclose(file);
    return at;
}

int main(int argc, char **argv) {
    static float x[300 * 40], hidden[300 * 40], y[300 * 40];
    const void *first_in[DETECTOR_INPUT_COUNT], *second_in[CLASSIFIER_INPUT_COUNT];
    void *first_out[DETECTOR_OUTPUT_COUNT], *second_out[CLASSIFIER_OUTPUT_COUNT];
    void *first_work = aligned_alloc(DETECTOR_ALIGNMENT, DETECTOR_WORKSPACE_BYTES + 64 & -64);
    void *second_work = aligned_alloc(CLASSIFIER_ALIGNMENT, CLASSIFIER_WORKSPACE_BYTES + 64 & -64);
    mlc_pool *pool = detector_pool_create(2);
    if (argc < 3 || !pool) return 3;
    for (int i = 0; i < 300 * 40; i++) x[i] = (float)(i % 17) - 8;
    first_in[DETECTOR_INPUT_x] = x;
    first_out[DETECTOR_OUTPUT_y] = hidden;
    second_in[CLASSIFIER_INPUT_x] = hidden;
    second_out[CLASSIFIER_OUTPUT_y] = y;
    void *first = params(argv[1], DETECTOR_PARAMS_BYTES), *second = params(argv[2], CLASSIFIER_PARAMS_BYTES);
    for (int i = 0; i < 20; i++) {
        if (detector_run(first_in, first_out, first, first_work, pool)) return 4;
        if (Classifier_run(second_in, second_out, second, second_work, pool)) return 4;
    }
    Classifier_pool_destroy(pool);
    return fwrite(y, sizeof y, 1, stdout) == 1 ? 0 : 5;
}
"""


def _model(op: str, weights: np.ndarray) -> Model:
    """``op(x @ weights)``."""
    g = Builder("net")
    x = g.input("x", TensorType((300, 40), f32))
    (p,) = g.add(get("matmul"), [x, g.constant(weights, "w")])
    (y,) = g.add(get(op), [p], names=["y"])
    return Model(g.finish([y], ["y"]), ModelSource("test", "", "net", "", "0" * 64, (), ()), "test")


def _unpack(path: Path, folder: Path) -> Path:
    with open_package(path) as package:
        for name in package.names():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(package.read(name))
    return folder


@needs_cc
def test_two_named_packages_share_a_program_and_its_pool(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    weights = [rng.standard_normal((40, 40), np.float32) / 8 for _ in range(2)]
    models = {"detector": _model("relu", weights[0]), "Classifier": _model("tanh", weights[1])}
    folders = {}
    for name, model in models.items():
        mlc.compile(model, name=name).save(tmp_path / f"{name}.tar")
        folders[name] = _unpack(tmp_path / f"{name}.tar", tmp_path / name)
        listed = subprocess.run(["nm", "-g", folders[name] / "lib/model.o"], capture_output=True, text=True, check=True)
        exported = re.findall(r" [A-TV-Z] (\S+)", listed.stdout)
        assert exported, listed.stdout
        assert all(symbol.startswith((f"{name}_", "__")) for symbol in exported)
    (tmp_path / "main.c").write_text(PROGRAM)
    objects = [folder / "lib/model.o" for folder in folders.values()]
    includes = [f"-I{folder / 'include'}" for folder in folders.values()]
    command = [CC, "-std=c11", "-O1", "-Wall", "-Wno-parentheses", "-Werror", *includes, tmp_path / "main.c", *objects]
    made = subprocess.run([*command, "-o", tmp_path / "main", "-lm", "-lpthread"], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    run = subprocess.run(
        [tmp_path / "main", *(folder / "params.safetensors" for folder in folders.values())], capture_output=True
    )
    assert run.returncode == 0
    x = (np.arange(300 * 40) % 17 - 8).astype(np.float32).reshape(300, 40)
    expected = np.tanh(np.maximum(x @ weights[0], 0) @ weights[1])
    np.testing.assert_allclose(np.frombuffer(run.stdout, np.float32).reshape(300, 40), expected, atol=2e-5)


@needs_cc
def test_a_named_package_s_own_example_compiles_and_python_runs_it(tmp_path: Path) -> None:
    package = mlc.compile(_model("relu", np.eye(40, dtype=np.float32)), name="detector")
    package.save(tmp_path / "d.tar")
    folder = _unpack(tmp_path / "d.tar", tmp_path / "d")
    strict = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{folder / 'include'}"]
    sources = [folder / "examples/main.c", folder / "lib/model.o"]
    made = subprocess.run([CC, *strict, *sources, "-o", tmp_path / "main", "-lm", "-lpthread"], capture_output=True)
    assert made.returncode == 0, made.stderr
    assert b"mlc_run" not in (folder / "examples/main.c").read_bytes()
    x = np.random.default_rng(1).standard_normal((300, 40), np.float32)
    np.testing.assert_array_equal(package.load(1).run({"x": x})["y"], np.maximum(x, 0))


@needs_cc
def test_python_and_numpy_alone_run_a_package(tmp_path: Path) -> None:
    package = mlc.compile(_model("relu", np.eye(40, dtype=np.float32)), name="detector")
    package.save(tmp_path / "d.tar")
    program = _unpack(tmp_path / "d.tar", tmp_path / "d") / "examples/main.py"
    x = np.random.default_rng(1).standard_normal((300, 40), np.float32)
    np.savez(tmp_path / "in.npz", x=x)
    # isolated from the folder of mlc, and nothing but numpy can be imported of what is installed
    blocked = (
        "import sys; sys.modules.update(dict.fromkeys(('mlc', 'llvmlite', 'safetensors', 'onnx', 'click', 'rich')))"
    )
    script = f"{blocked}; import runpy; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-I", "-c", script, str(program), *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    for threads in ("1", "2"):
        done = run("in.npz", "out.npz", "--threads", threads)
        assert done.returncode == 0, done.stderr
        with np.load(tmp_path / "out.npz") as out:
            np.testing.assert_array_equal(out["y"], np.maximum(x, 0))
    np.savez(tmp_path / "in.npz", x=x[:2])
    done = run("in.npz", "out.npz")
    assert (done.returncode, done.stderr) == (
        1, "error: input 'x' is float32[2, 40], the model takes float32[300, 40]\n"
    )  # fmt: skip
    np.savez(tmp_path / "in.npz", other=x)
    assert run("in.npz", "out.npz").stderr == "error: no input 'other'; there are x\n"
    assert run("none.npz", "out.npz").stderr.startswith("error: [Errno 2]")


@needs_cc
def test_a_c_program_gives_the_seed_of_what_a_model_draws(tmp_path: Path) -> None:
    g = Builder("dice")
    key = g.input("seed", TensorType((), u64))
    (y,) = g.add(get("uniform"), [key], {"shape": (300,)}, names=["y"])
    package = mlc.compile(Model(g.finish([y], ["y"]), ModelSource("test", "", "dice", "", "0" * 64, (), ()), "test"))
    package.save(tmp_path / "dice.tar")
    folder = _unpack(tmp_path / "dice.tar", tmp_path / "dice")
    assert "uint64_t of input MLC_INPUT_seed" in (folder / "include/mlc_model.h").read_text()
    sources = [folder / "examples/main.c", folder / "lib/model.o"]
    command = [CC, "-Wall", "-Werror", f"-I{folder / 'include'}", *sources, "-o", tmp_path / "main", "-lm", "-lpthread"]
    assert subprocess.run(command).returncode == 0
    with package.load(1) as module:
        for seed in (3, (1 << 64) - 1):
            np.array(seed, np.uint64).tofile(tmp_path / "seed.bin")
            run = subprocess.run(["./main", folder / "params.safetensors", "seed.bin"], cwd=tmp_path)
            assert run.returncode == 0
            drawn = np.fromfile(tmp_path / "output0.bin", np.float32)
            np.testing.assert_array_equal(drawn, module.run({}, seed=seed)["y"])


@pytest.mark.parametrize("name", ["", "2nd", "my model", "_x", "a-b", "é", "a" * 65])
def test_a_name_that_cannot_begin_an_identifier_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="cannot begin a C identifier"):
        mlc.compile(_model("relu", np.eye(40, dtype=np.float32)), name=name)

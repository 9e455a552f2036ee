"""``mlc compile``, with a package made by hand in the place of the compiler's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from mlc.runtime import load_module
from tests.e2e.compiled import network
from tests.unit.cli.conftest import Result

Mlc = Callable[..., Result]
Asked = dict[str, Any]


def test_summary_and_package(mlc: Mlc, model: Path, fake_build: Asked, tmp_path: Path) -> None:
    result = mlc("compile", "line.onnx", "-o", "line.tar")
    assert result.code == 0
    assert re.fullmatch(
        r"line\.tar: [\d.]+ KiB\n"
        r"  target +x86\n"
        r"  kernels +2, called in 2 steps\n"
        r"  parameters +128 B\n"
        r"  workspace +144 B\n"
        r"  compiled in +[\d.]+ s, [\d.]+ [MG]iB at most\n",
        result.out,
    )
    assert re.findall(r"\] (.*)", result.err) == ["optimise", "generate code", "write"]
    with load_module(tmp_path / "line.tar", threads=1) as module:
        assert module.manifest.model.source == "line.onnx"
        assert module.manifest.model.name == "line"


def test_options_reach_the_compiler(mlc: Mlc, model: Path, fake_build: Asked) -> None:
    result = mlc(
        "compile", "line.onnx", "--target", "x86 -mcpu=haswell", "-O1", "--name", "n", "--disable-pass", "a,b",
        "--disable-pass", "c", "--verify-passes", "--max-memory", "1K",
    )  # fmt: skip
    assert result.code == 0
    options = fake_build["options"]
    assert (options.name, options.opt_level, options.verify) == ("n", 1, True)
    assert options.disabled_passes == ("a", "b", "c")
    assert options.max_memory == 1024
    assert fake_build["target"].describe()["cpu"] == "haswell"


def test_the_environment_is_the_default(
    mlc: Mlc, model: Path, fake_build: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLC_DUMP", "ir")
    monkeypatch.setenv("MLC_VERIFY", "1")
    assert mlc("compile", "line.onnx").code == 0
    assert fake_build["options"].verify
    assert sorted(p.name for p in (tmp_path / "ir").iterdir()) == ["01-fold.txt", "02-fuse.txt"]


def test_dumps_and_prints(mlc: Mlc, model: Path, fake_build: Asked, tmp_path: Path) -> None:
    result = mlc("compile", "line.onnx", "--dump-ir", "a/b", "--print-ir-after", "fuse")
    assert (tmp_path / "a/b/02-fuse.txt").read_text() == "graph after fuse\n"
    assert result.out.startswith("# after fuse\ngraph after fuse\n")
    result = mlc("compile", "line.onnx", "--print-ir-after", "fuze")
    assert result.code == 2
    assert result.err.endswith("error: --print-ir-after: no pass 'fuze' ran\nhint: did you mean fuse?\n")


def test_times_of_passes(mlc: Mlc, model: Path, fake_build: Asked) -> None:
    lines = mlc("compile", "line.onnx", "--time-passes").out.splitlines()
    assert lines[0].split() == ["pass", "ms", "%"]
    assert [line.split()[:2] for line in lines[1:3]] == [["fold", "250.0"], ["fuse", "500.0"]]
    assert lines[3].startswith("all ")


def test_dry_run_writes_nothing(mlc: Mlc, model: Path, fake_build: Asked, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    result = mlc("compile", "line.onnx", "--dry-run", "-o", "none/x.tar")
    assert result.code == 0
    assert result.out.startswith("nothing is written\n")
    assert sorted(tmp_path.iterdir()) == before


def test_json(mlc: Mlc, model: Path, fake_build: Asked, tmp_path: Path) -> None:
    result = mlc("compile", "line.onnx", "-o", "line.tar", "--json", "-")
    document = json.loads(result.out)
    assert document["output"] == "line.tar"
    assert document["bytes"] == (tmp_path / "line.tar").stat().st_size
    assert (document["kernels"], document["steps"]) == (2, 2)
    assert document["passes"] == [{"name": "fold", "seconds": 0.25}, {"name": "fuse", "seconds": 0.5}]
    assert document["memory"]["workspace_bytes"] == 144


def test_quiet(mlc: Mlc, model: Path, fake_build: Asked) -> None:
    result = mlc("-q", "compile", "line.onnx")
    assert (result.code, result.out, result.err) == (0, "", "")


def test_target_help_lists_the_targets(mlc: Mlc) -> None:
    result = mlc("compile", "none.onnx", "--target", "help")
    assert result.code == 0
    assert any(line.startswith("x86 ") for line in result.out.splitlines())


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (("-o", "line.onnx"), 2, "error: line.onnx: is read, so it cannot be written"),
        (("-o", "none/x.tar"), 2, "error: none/x.tar: cannot be written"),
        (("--dump-ir", "line.onnx"), 2, "error: line.onnx: cannot be made"),
        (("--target", "x68"), 2, "error: unknown target 'x68'\nhint: did you mean x86?"),
        (("--target", "x86 -mcpu=i386"), 2, "error: unknown processor 'i386'"),
        (("--max-memory", "lots"), 2, "error: --max-memory: 'lots' is no size"),
        (("--quantize", "int8"), 2, "error: --quantize needs typical inputs to find scales with\nhint: --calibrate"),
        (("--quantize", "int8", "--calibrate", "none.npz"), 2, "error: none.npz: there is no such file"),
        (
            ("--calibrate", "x.npz"),
            2,
            "error: --calibrate is only for --quantize\nhint: add --quantize int8, or leave it out",
        ),
        (("--quantize-weights", "channel"), 2, "error: --quantize-weights is only for --quantize"),
        (("--accuracy-on", "x.npz"), 2, "error: --accuracy-on is only for --weights, --bf16, --fp16 and --tf32\nhint"),
        (
            ("--accuracy-report",),
            2,
            "error: --accuracy-report is only for --weights, --bf16, --fp16 and --tf32\nhint: "
            "add one of these, or leave it out; what --quantize loses, --quantize-report shows",
        ),
        (("--keep-f32", "add"), 2, "error: there is nothing to be kept in float32\nhint: --keep-f32 is for --fp16"),
        (("--fp16",), 4, "error: the target 'x86' computes no faster in half precision\nhint: --fp16 is for"),
        (("--fp16", "--bf16", "--target", "opencl"), 2, "error: --fp16 contradicts --weights and --bf16\nhint: leave"),
        (("--tf32",), 2, "error: --tf32 is for Tensor Cores, which the target 'x86' has not\nhint: --target cuda"),
        (
            ("--tf32", "--target", "opencl -device=mali"),
            2,
            "error: --tf32 is for Tensor Cores, which the target 'opencl -device=mali' has not\nhint: --target cuda",
        ),
        (("--tf32", "--target", "cuda -arch=sm_75"), 2, "error: target cuda: sm_75 has no Tensor Cores for tf32\nhint"),
        (("--target", "cuda -tf32=maybe"), 2, "error: target cuda: -tf32=maybe is neither on nor off"),
        (("--keep-float", "a"), 2, "error: --keep-float is only for --quantize"),
        (("--keep-ends",), 2, "error: --quantize-ends is only for --quantize"),
        (("--calibration", "mse"), 2, "error: --calibration is only for --quantize"),
        (("--quantize-report",), 2, "error: --quantize-report is only for --quantize"),
        (("--reduce-range",), 2, "error: --reduce-range is only for --quantize"),
        (("--full-range",), 2, "error: --full-range is only for --quantize"),
        (
            ("--quantize", "int8", "--calibration", "minmix"),
            2,
            "error: no way to calibrate is called 'minmix'\nhint: did",
        ),
        (("--dump-offloads",), 2, "error: --dump-offloads: the target 'x86' has no accelerator"),
        (("--check-regions",), 2, "error: --check-regions: the target 'x86' has no accelerator"),
    ],
)
def test_refused_before_the_work(
    mlc: Mlc, model: Path, fake_build: Asked, arguments: tuple[str, ...], code: int, message: str
) -> None:
    result = mlc("compile", "line.onnx", *arguments)
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith(message)
    assert not fake_build


def test_records_that_are_none_are_refused(mlc: Mlc, model: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("remember the milk\n")
    result = mlc("compile", "line.onnx", "--records", "notes.txt", "--dry-run")
    assert result.code == 2
    assert "notes.txt: holds no records" in result.err


def test_the_error_of_small_weights_is_told(mlc: Mlc, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(1, 32)).astype(np.float32)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    onnx.save(network(nodes, feeds, ["y"], {"w": rng.normal(size=(32, 16)).astype(np.float32)}), tmp_path / "m.onnx")
    result = mlc("compile", "m.onnx", "--weights", "int8", "--json", "-")
    assert result.code == 0
    (found,) = json.loads(result.out)["accuracy"]
    assert 0 < found["error"] < 0.02
    np.savez(tmp_path / "zeros.npz", x=np.zeros((2, 32), np.float32))
    result = mlc("compile", "m.onnx", "--weights", "bf16", "--accuracy-on", "zeros.npz", "--dry-run")
    assert result.code == 0
    assert "against the model in full precision, on zeros.npz:" in result.out
    result = mlc("compile", "m.onnx", "--weights", "int4", "--accuracy-report", "--dry-run", "--json", "r.json")
    assert re.search(r"^layer +operator +SNR dB +largest error +mean error$", result.out, re.MULTILINE)
    (layer,) = json.loads((tmp_path / "r.json").read_text())["layers"]
    assert (layer["operator"], layer["reason"]) == ("matmul", "")
    result = mlc("compile", "m.onnx", "--weights", "f16", "--target", "x86 -mcpu=bdver4", "--dry-run")
    assert result.code == 0
    assert "warning: what this costs in accuracy is not known" in result.err
    result = mlc("compile", "m.onnx", "--weights", "int3")
    assert result.code == 2


def test_targets_that_store_weights_as_they_are_say_so(mlc: Mlc, model: Path) -> None:
    result = mlc("compile", "line.onnx", "--weights", "int8", "--target", "opencl", "--dry-run")
    assert result.code == 4
    assert "error: the target 'opencl' multiplies by weights as they are" in result.err


def test_processors_without_products_of_bf16_say_so(mlc: Mlc, model: Path) -> None:
    result = mlc("compile", "line.onnx", "--bf16", "--target", "x86 -mcpu=haswell", "--dry-run")
    assert result.code == 4
    assert "-mcpu=haswell' has no instruction for products of bf16\nhint: --allow-emulation" in result.err
    result = mlc("tune", "line.onnx", "--bf16", "--target", "x86 -mcpu=haswell", "--list")
    assert result.code == 4
    result = mlc("compile", "line.onnx", "--bf16", "--target", "x86 -mcpu=haswell", "--dry-run", "--allow-emulation")
    assert result.code == 0
    assert "largest error, % of its range" in result.out
    result = mlc("compile", "line.onnx", "--allow-emulation")
    assert result.code == 2
    assert "error: there is nothing to emulate\nhint: --allow-emulation is for --bf16" in result.err

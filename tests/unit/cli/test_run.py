"""``mlc run``, on a module made by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from mlc.runtime import ModelSpec
from tests.unit.cli.conftest import WEIGHTS, Result, onnx_model
from tests.unit.runtime.conftest import Parts

Mlc = Callable[..., Result]


@pytest.fixture
def x(tmp_path: Path) -> np.ndarray:
    """The input, also in x.npz and x.npy."""
    x = np.linspace(-1, 1, 15, dtype=np.float32).reshape(3, 5)
    np.savez(tmp_path / "x.npz", x=x)
    np.save(tmp_path / "x.npy", x)
    return x


@pytest.fixture
def wrong_module(parts: Parts, model: Path, tmp_path: Path) -> Path:
    """A module whose weights are not those of the model."""
    params = {**parts.params, "w": np.arange(2, 7, dtype=np.float32)}
    from hashlib import sha256

    spec = ModelSpec("line", sha256(model.read_bytes()).hexdigest(), str(model))
    return replace(parts, params=params).but(model=spec).write(tmp_path / "wrong.tar")


@pytest.mark.parametrize("given", ["x.npz", "x=x.npy"])
def test_outputs_from_files(mlc: Mlc, module: Path, x: np.ndarray, tmp_path: Path, given: str) -> None:
    result = mlc("run", "module.tar", "--inputs", given, "-o", "out.npz", "--threads", "1")
    assert result.code == 0
    assert result.out.splitlines()[0].split() == ["output", "type", "min", "max", "mean", "nan", "inf"]
    assert result.out.splitlines()[1].startswith("y       f32[3,5]")
    assert result.err == ""
    with np.load(tmp_path / "out.npz") as saved:
        np.testing.assert_allclose(saved["y"], x * WEIGHTS["w"] + WEIGHTS["b"], rtol=1e-6)


def test_random_inputs_follow_the_seed(mlc: Mlc, module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def output(*arguments: str) -> bytes:
        result = mlc("run", "module.tar", "-o", "out.npz", *arguments)
        assert result.code == 0
        return (tmp_path / "out.npz").read_bytes()

    assert mlc("run", "module.tar").err == "inputs: random, seed 0\n"
    first = output()
    assert output("--seed", "0") == first
    assert output("--seed", "1") != first
    monkeypatch.setenv("MLC_SEED", "1")
    assert output() == output("--seed", "1")
    assert output("--range", "x=2:2") == output("--range", "2:2")
    assert mlc("run", "module.tar", "--fill", "zeros").err == "inputs: zeros\n"


def test_top_entries_with_labels(mlc: Mlc, module: Path, x: np.ndarray, tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("zero\none\ntwo\nthree\nfour\n")
    result = mlc("run", "module.tar", "-i", "x.npz", "--top", "2", "--labels", "labels.txt")
    rows = [line.split() for line in result.out.splitlines()[3:]]
    assert rows[0] == ["row", "rank", "index", "value", "y"]
    assert [row[:3] + row[4:] for row in rows[1:3]] == [["0", "1", "0", "zero"], ["0", "2", "1", "one"]]
    assert [row[:3] + row[4:] for row in rows[5:]] == [["2", "1", "4", "four"], ["2", "2", "3", "three"]]


def test_verified_against_onnxruntime_with_the_module_alone(mlc: Mlc, module: Path) -> None:
    result = mlc("run", "module.tar", "--verify", "onnxruntime", "--json", "run.json")
    assert result.code == 0
    assert re.search(r"^against onnxruntime .*\ny .* ok$", result.out, re.MULTILINE)
    document = json.loads(Path("run.json").read_text())
    assert document["verify"]["ok"] is True
    assert document["verify"]["outputs"][0]["relative_error"] < 1e-6
    assert document["inputs"] == [{"name": "x", "dtype": "f32", "shape": [3, 5], "from": "random, seed 0"}]


def test_a_difference_is_exit_code_1(mlc: Mlc, wrong_module: Path) -> None:
    result = mlc("run", "wrong.tar", "--verify", "onnxruntime", "--json", "run.json", "-o", "out.npz")
    assert result.code == 1
    assert "error: output 'y' differs from onnxruntime: " in result.err
    assert result.err.endswith("hint: find the first step that differs with --verify-layers\n")
    assert "beyond the tolerance" in result.out
    assert json.loads(Path("run.json").read_text())["verify"]["ok"] is False
    assert Path("out.npz").exists()
    assert mlc("run", "wrong.tar", "--verify", "onnxruntime", "--rtol", "10").code == 0


def test_the_first_wrong_step_is_named(mlc: Mlc, wrong_module: Path, module: Path) -> None:
    result = mlc("run", "wrong.tar", "--verify-layers", "--json", "run.json")
    assert result.code == 1
    assert "the first step to differ is 0 (scale), tensor 't', from Mul_0: " in result.err
    layers = json.loads(Path("run.json").read_text())["layers"]
    assert layers["first_wrong"]["name"] == "t"
    assert [layer["name"] for layer in layers["layers"]] == ["t", "y"]
    result = mlc("run", "module.tar", "--verify-layers")
    assert result.code == 0
    assert result.out.endswith("2 tensors compared, 0 differ; 0 are not in the original model\n")


def test_a_program_that_does_not_run_the_format_is_refused(mlc: Mlc, module: Path) -> None:
    result = mlc("run", "module.tar", "--verify", "tflite")
    assert result.code == 2
    assert "tflite does not run onnx models, of which this is one" in result.err


def test_verified_against_a_file(mlc: Mlc, module: Path, x: np.ndarray, tmp_path: Path) -> None:
    y = x * WEIGHTS["w"] + WEIGHTS["b"]
    np.savez(tmp_path / "good.npz", y=y)
    np.savez(tmp_path / "bad.npz", y=y + np.float32(1))
    np.savez(tmp_path / "other.npz", z=y)
    assert mlc("run", "module.tar", "-i", "x.npz", "--verify", "good.npz").code == 0
    bad = mlc("run", "module.tar", "-i", "x.npz", "--verify", "bad.npz")
    assert (bad.code, bad.err.splitlines()[-1]) == (1, "hint: widen it with --rtol")
    assert mlc("run", "module.tar", "-i", "x.npz", "--verify", "bad.npz", "--atol", "2").code == 0
    other = mlc("run", "module.tar", "-i", "x.npz", "--verify", "other.npz")
    assert (other.code, other.err) == (2, "error: the reference has no output 'y'\nhint: it has: 'z'\n")


def test_the_original_model_must_be_the_same_file(mlc: Mlc, module: Path, model: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved.onnx"
    model.rename(moved)
    result = mlc("run", "module.tar", "--verify", "onnxruntime")
    assert result.code == 2
    assert re.search(r"was compiled from .*line\.onnx, which is not there any more\nhint: name the orig", result.err)
    assert mlc("run", "module.tar", "--verify", "onnxruntime", "--model", "moved.onnx").code == 0
    onnx.save(onnx_model("rows"), model)
    assert "which was changed since" in mlc("run", "module.tar", "--verify", "onnxruntime").err
    result = mlc("run", "module.tar", "--verify", "onnxruntime", "--model", model)
    assert result.code == 0
    assert "warning: " in result.err
    assert "is not the very file that module.tar was compiled from" in result.err
    result = mlc("run", "module.tar", "--verify", "onnxruntime", "--model", "none.onnx")
    assert (result.code, result.err.splitlines()[0]) == (2, "error: none.onnx: there is no such file")


def test_bench(mlc: Mlc, module: Path) -> None:
    result = mlc("run", "module.tar", "--bench", "--warmup", "0", "--iterations", "7", "--json", "b.json")
    assert result.code == 0
    assert "p99 ms" in result.out
    bench = json.loads(Path("b.json").read_text())["bench"]
    assert bench["n"] == 7
    assert bench["min"] <= bench["p50"] <= bench["max"]
    assert isinstance(bench["noisy"], bool)
    assert json.loads(mlc("run", "module.tar", "--bench", "--duration", "0", "--json", "-").out)["bench"]["n"] == 1


def test_profile_and_trace(mlc: Mlc, module: Path) -> None:
    result = mlc("run", "module.tar", "--profile", "--trace", "t.json", "--json", "p.json")
    assert result.code == 0
    assert re.search(r"step +ms +% +GFLOP/s +GB/s +kernel +nodes of the model", result.out)
    profile = json.loads(Path("p.json").read_text())["profile"]
    assert [(row["kernel"], row["sources"]) for row in profile] == [("scale", ["Mul_0"]), ("shift", ["Add_1"])]
    assert sum(row["share"] for row in profile) == pytest.approx(1)
    events = json.loads(Path("t.json").read_text())["traceEvents"]
    assert [event["name"] for event in events] == ["process_name", "scale", "shift"]


def test_a_model_is_compiled_in_memory(mlc: Mlc, model: Path, fake_build: dict[str, Any]) -> None:
    result = mlc("run", "line.onnx", "--verify", "onnxruntime", "--shape", "x=3,5")
    assert result.code == 0
    assert "line.onnx is a model: compiled in memory" in result.err


def test_a_model_in_memory_is_compiled_for_the_threads_that_run_it(
    mlc: Mlc, model: Path, fake_build: dict[str, Any]
) -> None:
    for threads, left_out in (("8", ()), ("9", ("slices",))):
        assert mlc("run", "line.onnx", "--shape", "x=3,5", "--threads", threads).code == 0
        assert fake_build["options"].disabled_passes == left_out


def test_devices(mlc: Mlc, module: Path) -> None:
    for arguments in (("module.tar",), ()):  # what is here does not depend on a module
        assert re.match(r"cpu: \d+ cores\n", mlc("run", *arguments, "--device", "list").out)
    result = mlc("run", "--device", "cpu")
    assert (result.code, result.err.splitlines()[0]) == (2, "error: Missing argument 'MODULE.tar'")
    assert mlc("run", "module.tar", "--device", "cpu").code == 0
    result = mlc("run", "module.tar", "--device", "cuda")
    said = "error: module.tar: the module is for cpu, not for cuda\nhint: compile the model again: --target cuda\n"
    assert (result.code, result.err) == (6, said)
    result = mlc("run", "module.tar", "--device", "CUDA 1")
    assert (result.code, result.err.splitlines()[0]) == (2, "error: 'CUDA 1' is no device")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--model", "m.onnx"), "error: --model, --atol and --rtol are only for a comparison"),
        (("--verify", "caffe"), "error: --verify caffe: there is no such reference"),
        (("--warmup", "1"), "error: --warmup, --duration and --iterations are only for --bench"),
        (("--labels", "l.txt"), "error: --labels is only for --top"),
        (("--top", "1", "--labels", "l.txt"), "error: l.txt: there is no such file"),
        (("--shape", "x=3,5"), "error: --shape, --dim, --input-layout and --model-format are for a model"),
        (("--const", "k=3"), "error: --const is only for a model, or for a comparison with it"),
        (("--outputs", "none/o.npz"), "error: none/o.npz: cannot be written"),
        (("--trace", "none/t.json"), "error: none/t.json: cannot be written"),
        (("-i", "x.npz", "--range", "0:1"), "error: --range is for random inputs, and there are none"),
        (("--range", "z=0:1"), "error: a range is given for 'z', which is not an input"),
        (("-i", "none.npz"), "error: none.npz: there is no such file"),
        (("-i", "x.npz", "-i", "x=x.npy"), "error: --inputs: 'x' is given twice"),
        (("-i", "z=x.npy"), "error: unknown input 'z'"),
        (("-i", "module.tar.npz"), "error: module.tar.npz: there is no such file"),
    ],
)
def test_refusals(mlc: Mlc, module: Path, x: np.ndarray, arguments: tuple[str, ...], message: str) -> None:
    result = mlc("run", "module.tar", *arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(message)


def test_a_missing_module_is_named(mlc: Mlc) -> None:
    result = mlc("run", "none.tar")
    assert (result.code, result.err) == (
        2,
        "error: none.tar: cannot be read: No such file or directory\nhint: check the path\n",
    )


def test_a_damaged_module_is_refused(mlc: Mlc, module: Path) -> None:
    data = bytearray(module.read_bytes())
    data[-1400] ^= 1
    module.write_bytes(data)
    result = mlc("run", "module.tar")
    assert result.code == 3
    assert "does not match its SHA-256" in result.err


@pytest.fixture
def dice(tmp_path: Path) -> Path:
    """A model that draws."""
    node = onnx.helper.make_node("RandomUniform", [], ["y"], shape=[64])
    output = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [64])
    graph = onnx.helper.make_graph([node], "dice", [], [output])
    opsets = [onnx.helper.make_opsetid("", 18)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "dice.onnx")
    return tmp_path / "dice.onnx"


def test_random_numbers_follow_the_seed_and_not_the_compilation(mlc: Mlc, dice: Path, tmp_path: Path) -> None:
    def output(*arguments: str) -> np.ndarray:
        result = mlc("run", "dice.tar", "-o", "out.npz", *arguments)
        assert result.code == 0
        assert "random numbers: seed" in result.err
        with np.load(tmp_path / "out.npz") as saved:
            return saved["y"]

    assert mlc("compile", dice, "-o", "dice.tar").code == 0
    np.testing.assert_array_equal(output("--seed", "3"), output("--seed", "3", "--threads", "1"))
    assert (output("--seed", "3") != output("--seed", "4")).any()
    (tmp_path / "out.npz").rename(tmp_path / "four.npz")
    assert mlc("run", "dice.tar", "--seed", "4", "--verify", "four.npz").code == 0
    assert mlc("run", "dice.tar", "--seed", "5", "--verify", "four.npz").code == 1


def test_random_numbers_are_not_compared_with_another_program_s(mlc: Mlc, dice: Path) -> None:
    assert mlc("compile", dice, "-o", "dice.tar").code == 0
    result = mlc("run", "dice.tar", "--verify", "onnxruntime")
    assert result.code == 2
    assert "draws random numbers" in result.err


@pytest.mark.parametrize("option", ["--outputs", "--trace", "--json"])
@pytest.mark.parametrize("file", ["module.tar", "x.npz"])
def test_what_is_read_is_not_written_over(mlc: Mlc, module: Path, x: np.ndarray, option: str, file: str) -> None:
    before = Path(file).read_bytes()
    result = mlc("run", "module.tar", "--inputs", "x.npz", option, file)
    assert result.code == 2
    assert f"{file}: is read, so it cannot be written" in result.err
    assert Path(file).read_bytes() == before


def test_an_output_s_name_is_no_markup(mlc: Mlc, tmp_path: Path) -> None:
    x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [3]) for n in ("x", "y[/foo]"))
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y[/foo]"])], "markup", [x], [y])
    onnx.save(onnx.helper.make_model(graph, ir_version=9), tmp_path / "m.onnx")
    result = mlc("run", "m.onnx", "--top", "1")
    assert result.code == 0
    assert "y[/foo]" in result.out


@pytest.mark.parametrize("arguments", [("--verify", "nope.npz"), ("--verify", "onnxruntime", "--model", "nope.onnx")])
def test_a_reference_that_is_not_there_is_noticed_before_the_run(
    mlc: Mlc, module: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setattr("mlc.runtime.load_module", lambda *given: pytest.fail("it was loaded"))
    result = mlc("run", "module.tar", *arguments)
    assert result.code == 2
    assert f"{arguments[-1]}: there is no such file" in result.err


def test_a_range_of_what_is_not_random_is_refused(mlc: Mlc, module: Path) -> None:
    result = mlc("run", "module.tar", "--fill", "ones", "--range", "0:1")
    assert result.code == 2
    assert "--fill ones makes none" in result.err


def test_a_comparison_remembers_the_inputs_that_were_fixed(mlc: Mlc, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    make, float32 = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    nodes = [onnx.helper.make_node("Mul", ["x", "scale"], ["s"]), onnx.helper.make_node("Add", ["s", "bias"], ["y"])]
    inputs = [make("x", float32, [3]), make("scale", float32, []), make("bias", float32, [3])]
    graph = onnx.helper.make_graph(nodes, "fixed", inputs, [make("y", float32, [3])])
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "m.onnx")
    np.save(tmp_path / "bias.npy", np.float32([1, 2, 3]))
    fixed = ("--const", "scale=0.1", "--const", "bias=bias.npy")
    assert mlc("compile", "m.onnx", *fixed, "-o", "m.tar").code == 0
    assert mlc("import", "m.onnx", *fixed, "-o", "m.mlc").code == 0
    assert mlc("compile", "m.mlc", "-o", "saved.tar").code == 0
    for module in ("m.tar", "saved.tar"):
        result = mlc("run", module, "--verify", "onnxruntime", "--model", "m.onnx")
        assert result.code == 0, result.err
    assert mlc("run", "m.tar", "--verify", "onnxruntime", "--const", "scale=0.2").code == 1

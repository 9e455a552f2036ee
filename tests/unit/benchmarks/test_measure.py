"""Engines in processes of their own, taking turns, and the command line around them."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks import command, machine
from benchmarks.engines import Engine, _reason, compile_apart, let_settle
from benchmarks.measure import Plan, Result, compare_outputs, summarise, take_turns
from benchmarks.peers import EngineError, parse_engine
from benchmarks.stats import largest_error
from benchmarks.zoo import MODELS, build, original_of, sample_inputs

ORT = parse_engine("onnxruntime")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    file = tmp_path / "c2.onnx"
    onnx.save(build("C2", small=True), file)
    return file


def test_the_best_peer_is_never_one_of_ours() -> None:
    result = Result("a", "operator", 1, ours=["mlc", "mlc[x=1]"])
    summarise(result, {"mlc": [[1.0], [1.0]], "mlc[x=1]": [[4.0], [4.0]], "p": [[2.0], [2.0]], "q": [[9.0], []]})
    assert result.best_peer == "p"
    assert {label: v.speedup.median for label, v in result.versus.items()} == {"mlc": 2.0, "mlc[x=1]": 0.5}


def test_without_a_peer_there_is_no_speed_up() -> None:
    result = Result("a", "operator", 1, ours=["mlc"])
    summarise(result, {"mlc": [[1.0]]})
    compare_outputs(result, {"mlc": {"y": np.ones(2)}})
    assert (result.best_peer, result.versus, result.reference, result.error) == ("", {}, "", {})


def test_outputs_are_compared_with_onnxruntime_first() -> None:
    result = Result("a", "operator", 1, ours=["mlc"])
    outputs = {"mlc": {"y": np.array([1.0])}, "openvino": {"y": np.array([2.0])}, "onnxruntime": {"y": np.array([4.0])}}
    compare_outputs(result, outputs)
    assert result.reference == "onnxruntime"
    assert result.error == {"mlc": 0.75, "openvino": 0.5}


def test_the_reason_of_a_failure_is_a_compilers_first_error() -> None:
    with pytest.raises(RuntimeError) as caught:
        raise RuntimeError("the tool failed\nsome.c:1: error: too deep\nsome.c:2: error: too wide")
    assert _reason(caught.value).startswith("RuntimeError: some.c:1: error: too deep (test_measure.py:")


def test_machine_is_described() -> None:
    about = machine.describe()
    assert {"cpu", "cores", "flags", "packages"} <= about.keys()
    assert f"numpy {np.__version__}" in about["packages"]


@pytest.mark.slow
def test_engines_take_turns(model: Path) -> None:
    inputs = sample_inputs(onnx.load(model))
    with Engine(ORT, model, 1, inputs) as first, Engine(ORT, model, 2, inputs) as second:
        second.label = "other"
        failures: dict[str, str] = {}
        blocks, idle_share = take_turns([first, second], Plan(rounds=3, block_seconds=0.02), failures)
        assert [len(rounds) for rounds in blocks.values()] == [3, 3]
        assert idle_share >= 0
        assert not failures
        assert largest_error(first.outputs(), second.outputs()) < 1e-5
        memory = first.memory()
        assert 1 < memory.idle <= memory.loading
        assert memory.running > 1
        let_settle([first, second])
        assert second.cpu_seconds() > 0


class Sloth:
    """Stands in for an engine that takes minutes a run."""

    label, first_seconds = "sloth", 99.0

    def time(self, count: int, warmup: int = 1) -> list[float]:
        raise AssertionError("it was run again")

    def cpu_seconds(self) -> float:
        return 0.0


def test_an_engine_of_minutes_a_run_is_not_run_again() -> None:
    blocks, _ = take_turns([Sloth()], Plan(rounds=3, block_seconds=0.1), {})
    assert blocks == {"sloth": [[99.0], [], []]}


@pytest.mark.slow
def test_an_engine_that_dies_is_left_out_and_reported(model: Path) -> None:
    inputs = sample_inputs(onnx.load(model))
    with Engine(ORT, model, 1, inputs) as first, Engine(ORT, model, 1, inputs) as second:
        second.label = "other"
        second._process.kill()
        second._process.join()
        failures: dict[str, str] = {}
        blocks, _ = take_turns([first, second], Plan(rounds=2, block_seconds=0.01), failures)
        assert list(blocks) == ["onnxruntime"]
        assert "process" in failures["other"]


@pytest.mark.slow
def test_an_engine_that_cannot_load_says_why(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"onnxruntime: .*missing\.onnx"):
        Engine(ORT, tmp_path / "missing.onnx", 1, {})


@pytest.mark.slow
def test_an_unknown_option_of_the_compiler_is_reported(model: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"no_such_option"):
        compile_apart(parse_engine("mlc[no_such_option=1]"), model, tmp_path)


@pytest.mark.slow
def test_command_line_writes_reports(tmp_path: Path) -> None:
    arguments = ["--models", "C2", "--small", "--threads", "1", "--engines", "mlc,mlc[opt_level=0],onnxruntime"]
    out = tmp_path / "out"
    assert command.main([*arguments, "--rounds", "2", "--seconds", "0.01", "--out", str(out)]) == 0
    (result,) = json.loads((out / "bench.json").read_text())["results"]
    assert result["model"] == "C2"
    assert result["milliseconds"]["onnxruntime"]["median"] > 0
    assert result["error"]["mlc[opt_level=0]"] < 1e-5
    assert set(result["versus"]) == {"mlc", "mlc[opt_level=0]"}
    assert "| C2 | 1 |" in (out / "bench.md").read_text()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--models", "resnet19"], "resnet19"),
        (["--engines", "tensorrt"], "no engine is called 'tensorrt'"),
        (["--threads", "2", "--cores", "0"], "2 threads need as many cores"),
        (["--threads", "0"], "invalid"),
    ],
)
def test_command_line_refuses(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(arguments)
    assert message in capsys.readouterr().err


def test_groups_hold_every_model_once() -> None:
    whole = [name for names in command.GROUPS.values() for name in names if original_of(name) is None]
    assert sorted(whole) == sorted(MODELS)
    assert command.GROUPS.keys() - {"int8", "int7"} == command.KINDS.keys()


def test_a_network_in_8_bits_is_measured_beside_its_original(tmp_path: Path) -> None:
    work = command.workload("resnet8.int8", Namespace(batch=1, small=True), tmp_path)
    assert (work.name, work.kind) == ("resnet8.int8", "int8")
    assert work.flops > 0
    assert work.original is not None
    kinds = [{node.op_type for node in onnx.load(file).graph.node} for file in (work.file, work.original)]
    assert ["QuantizeLinear" in found for found in kinds] == [True, False]
    assert command.workload("resnet8", Namespace(batch=1, small=True), tmp_path).original is None


def test_the_group_of_8_bits_is_not_named_twice(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--int8", "--models", "C2"])
    assert "--int8 names the models already" in capsys.readouterr().err

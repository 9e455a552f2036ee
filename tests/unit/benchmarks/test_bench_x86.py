"""The benchmark's statistics, comparison and report, and its engines' processes."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks import bench_x86, machine
from benchmarks.bench_x86 import Plan, Result, Spread, largest_error, main, markdown, measure, paired_ratio, remarks
from benchmarks.engines import Engine, EngineError, let_settle
from benchmarks.zoo import build, sample_inputs


@pytest.fixture
def model(tmp_path: Path) -> Path:
    file = tmp_path / "c2.onnx"
    onnx.save(build("C2", small=True), file)
    return file


def test_spread_is_median_and_median_deviation() -> None:
    assert Spread.of([1.0, 2.0, 10.0]) == Spread(median=2.0, mad=1.0, count=3)


def test_ratio_pairs_neighbouring_blocks() -> None:
    # The machine becomes three times slower between the rounds; the ratio does not care.
    ratio = paired_ratio([[1.0, 1.0], [3.0, 3.0]], [[2.0, 2.0], [6.0, 6.0]])
    assert (ratio.median, ratio.mad) == (0.5, 0.0)


def test_error_is_relative_to_the_largest_magnitude() -> None:
    expected = {"y": np.array([4.0, -8.0], np.float32)}
    assert largest_error({"y": np.array([4.0, -7.0], np.float32)}, expected) == pytest.approx(0.125)


@pytest.mark.parametrize(
    "ours",
    [
        {"y": np.array([np.nan, 1.0])},
        {"y": np.array([1.0])},
        {"z": np.array([1.0, 1.0])},
        {"y": np.array([np.inf, 1.0])},
    ],
)
def test_error_is_infinite_when_outputs_cannot_be_compared(ours: dict[str, np.ndarray]) -> None:
    assert largest_error(ours, {"y": np.array([1.0, 1.0])}) == math.inf


def test_report_names_failures_and_restless_engines() -> None:
    fine = Result(
        "a", 1, 1, {"mlc": Spread(2.0, 0.1, 9), "onnxruntime": Spread(4.0, 0.2, 9)}, Spread(0.5, 0.01, 3), 1e-6
    )
    broken = Result("b", 1, 2, failures=["mlc: lost"], idle_share=0.5)
    assert [line.split(":")[0] for line in remarks([fine, broken])] == ["b", "b, 2 threads"]
    text = markdown([fine, broken], {"cpu": "some"})
    assert "| a | 1 | 2.000 ±5.0% | 4.000 ±5.0% | 0.500 ±2.0% | 1.0e-06 | - |" in text
    assert "- cpu: some" in text
    assert "mlc: lost" in text


def test_machine_is_described() -> None:
    about = machine.describe()
    assert {"cpu", "cores", "flags", "packages"} <= about.keys()
    assert f"numpy {np.__version__}" in about["packages"]


@pytest.mark.slow
def test_engines_take_turns_and_rest_meanwhile(model: Path) -> None:
    inputs = sample_inputs(onnx.load(model))
    with Engine("onnxruntime", model, 1, inputs) as first, Engine("onnxruntime", model, 2, inputs) as second:
        second.name = "other"
        blocks, idle_share = measure([first, second], Plan(rounds=3, block_seconds=0.02))
        assert [len(rounds) for rounds in blocks.values()] == [3, 3]
        assert idle_share < 0.5
        assert largest_error(first.outputs(), second.outputs()) < 1e-5
        let_settle([first, second])
        before = second.cpu_seconds()
        time.sleep(0.1)
        assert second.cpu_seconds() - before < 0.05


@pytest.mark.slow
def test_an_engine_that_cannot_load_says_why(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"onnxruntime: .*missing\.onnx"):
        Engine("onnxruntime", tmp_path / "missing.onnx", 1, {})


@pytest.mark.slow
def test_an_engine_whose_process_dies_is_reported(model: Path) -> None:
    with Engine("onnxruntime", model, 1, sample_inputs(onnx.load(model))) as engine:
        engine._process.kill()
        with pytest.raises(EngineError, match=r"process (has )?ended"):
            engine.time(1)


@pytest.mark.slow
def test_command_line_writes_both_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_x86, "QUICK", Plan(rounds=2, block_seconds=0.01))
    reports = tmp_path / "r.json", tmp_path / "r.md"
    arguments = ["C2", "--small", "--quick", "--threads", "1", "--engines", "onnxruntime"]
    assert main([*arguments, "--json", str(reports[0]), "--markdown", str(reports[1])]) == 0
    (result,) = json.loads(reports[0].read_text())["results"]
    assert result["model"] == "C2"
    assert result["milliseconds"]["onnxruntime"]["median"] > 0
    assert "| C2 | 1 | - |" in reports[1].read_text()


def test_command_line_refuses_unknown_models(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["resnet19"])
    assert "resnet19" in capsys.readouterr().err

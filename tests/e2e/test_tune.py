"""Tuning from the command line: search, records, resume, and compiling with what was found."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mlc
from mlc.cli.main import run
from mlc.records.best import Found
from mlc.records.files import read_records
from mlc.records.measurement import Failure
from mlc.records.record import DECIDED, encode
from mlc.tuning import whole
from mlc.tuning.check import Check
from mlc.tuning.measure import MeasureOptions, Rule
from mlc.tuning.measure.candidate import CandidateError, difference
from mlc.tuning.options import TuneOptions

HASTY = ["--repeat", "3", "--min-repeat-ms", "0.1"]  # times that say little, where they decide nothing


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole models are compared for moments: which of two is faster is not for these tests to say."""
    monkeypatch.setattr(whole, "SECONDS", 0.2)
    monkeypatch.setattr(whole, "ROUNDS", 3)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Two products and a convolution, small enough that a trial takes little."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)

    def weights(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((rng.standard_normal(shape) / 8).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "convolve", kernel_shape=[1, 1]),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("Reshape", ["r", "shape"], ["f"], "flatten"),
        helper.make_node("MatMul", ["f", "a"], ["m"], "first"),
        helper.make_node("MatMul", ["m", "b"], ["y"], "second"),
    ]
    shape = numpy_helper.from_array(np.array([16, 49], np.int64), "shape")
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 24, 7, 7])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [16, 40])],
        [weights("w", 16, 24, 1, 1), shape, weights("a", 49, 64), weights("b", 64, 40)],
    )
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=10), "m.onnx")
    return "m.onnx"


def test_tuning_from_python(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    loaded = mlc.load(model)
    options = TuneOptions(explorer="random", batch=4)
    measure = MeasureOptions(rule=Rule(sample_seconds=1e-4, samples=3))
    for trials in (8, 12):  # the name stays a function once the tuner is imported
        tuning = mlc.tune(loaded, trials=trials, options=options, measure=measure, threads=1, check_whole=False)
    assert tuning.outcome.trials == 4
    assert tuning.records.is_relative_to(tmp_path / "cache")
    assert sum(len(s.trials) for s in tuning.outcome.states) == 12
    assert {f.found for f in mlc.compile(loaded, threads=1).findings} == {Found.HIT}


def test_tune_resume_and_compile(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tune = ["-q", "tune", model, "--threads", "1", "-o", "r.jsonl", "--seed", "3", "--explorer", "opevo", *HASTY]
    tune += ["--batch", "4"]
    assert run([*tune, "--trials", "12", "--json", "t.json", "--report", "t.html"]) == 0
    tuned = json.loads((tmp_path / "t.json").read_text())
    assert tuned["trials"] == 12
    assert sum(t["trials"] for t in tuned["tasks"]) == 12
    assert tuned["whole"]["error"] < 1e-4
    assert all(t["config"] is not None for t in tuned["tasks"])
    html = (tmp_path / "t.html").read_text()
    assert html.count("<svg") == len(tuned["tasks"])
    assert "http" not in html

    lines = (tmp_path / "r.jsonl").read_bytes().count(b'"kind":"trial"')
    assert run([*tune, "--trials", "16", "--json", "again.json", "--no-check"]) == 0
    assert json.loads((tmp_path / "again.json").read_text())["trials"] == 4
    assert (tmp_path / "r.jsonl").read_bytes().count(b'"kind":"trial"') >= lines + 4

    tuned_only = ["--records", "r.jsonl", "--require-tuned"]
    assert run(["-q", "compile", model, *tuned_only, "-o", "m.tar", "--json", "c.json"]) == 0
    compiled = json.loads((tmp_path / "c.json").read_text())
    assert {f["found"] for f in compiled["tuned"]} == {"hit"}
    assert len(compiled["tuned"]) == len(tuned["tasks"])
    assert run(["-q", "run", "m.tar", "--verify", "onnxruntime", "--model", model]) == 0


def test_where_no_operator_has_layouts_to_choose_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    ends = [helper.make_tensor_value_info(v, TensorProto.FLOAT, [8, 32]) for v in "xy"]
    w = numpy_helper.from_array(np.ones((32, 32), np.float32), "w")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "one", ends[:1], ends[1:], [w])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), "m.onnx")
    tune = ["-q", "tune", "m.onnx", "--layouts", "--threads", "1", "--explorer", "random", "--trials", "2"]
    assert run([*tune, *HASTY, "-o", "r.jsonl"]) == 0
    assert "no operator here has layouts to choose" in caplog.text


def test_layouts_are_tuned_recorded_and_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    nodes, weights = [], []
    for k, v in enumerate(("x", "r0")):
        w = (rng.standard_normal((16, 16, 3, 3)) / 12).astype(np.float32)
        weights.append(numpy_helper.from_array(w, f"w{k}"))
        nodes.append(helper.make_node("Conv", [v, f"w{k}"], [f"c{k}"], f"conv{k}", pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{k}"], [f"r{k}"], f"relu{k}"))
    ends = [helper.make_tensor_value_info(v, TensorProto.FLOAT, [1, 16, 8, 8]) for v in ("x", "r1")]
    graph = helper.make_graph(nodes, "two", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), "m.onnx")
    tune = ["-q", "tune", "m.onnx", "--layouts", "--no-winograd", "--threads", "1", "--explorer", "random", *HASTY]
    assert run([*tune, "--trials", "24", "--batch", "8", "--seed", "1", "-o", "r.jsonl", "--json", "t.json"]) == 0
    assert json.loads((tmp_path / "t.json").read_text())["whole"]["error"] < 1e-4
    records = read_records(["r.jsonl"]).records
    searched = {(r.workload, tuple(sorted(r.layouts.items()))) for r in records if r.layouts}
    assert searched  # how many are looked at is for the search to say: those of a kernel so small gain little
    capsys.readouterr()
    assert run(["inspect", "r.jsonl", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert all(bool(t["layouts"]) == ("layout" in t["config"]) for t in shown["tasks"])

    # whatever lost in the model, what was measured compiles: the fastest searched layout of each operator is settled
    best = {r.workload: r for r in sorted(records, key=lambda r: -(r.result.seconds or 1.0)) if r.layouts}
    (tmp_path / "s.jsonl").write_bytes(b"".join(encode(replace(r, explorer=DECIDED)) for r in best.values()))
    capsys.readouterr()
    assert run(["inspect", "s.jsonl"]) == 0
    assert "searched layout" in capsys.readouterr().out
    assert run(["compile", "m.onnx", "--no-winograd", "--records", "s.jsonl", "-o", "m.tar", "--dump-layouts"]) == 0
    assert "searched" in capsys.readouterr().out
    assert run(["-q", "run", "m.tar", "--verify", "onnxruntime", "--model", "m.onnx"]) == 0


@pytest.mark.slow
def test_tuning_with_empty_caches(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tune = ["tune", model, "--threads", "1", "-o", "r.jsonl", "--explorer", "random", "--batch", "4", "--trials", "12"]
    assert run([*tune, "--flush-cache", "--json", "t.json", "--report", "t.html"]) == 0
    assert "kernels were timed with empty caches" in capsys.readouterr().out
    assert "timed with empty caches" in (tmp_path / "t.html").read_text()
    tuned = json.loads((tmp_path / "t.json").read_text())
    assert (tuned["flush_cache"], tuned["trials"]) == (True, 12)
    assert all(r.flushed for r in read_records(["r.jsonl"]).records)
    # they serve a compilation where there are no others, and no other run
    assert run(["-q", "compile", model, "--records", "r.jsonl", "--require-tuned", "-o", "m.tar"]) == 0
    assert run([*tune, "--no-check", "--json", "t.json"]) == 0
    assert json.loads((tmp_path / "t.json").read_text())["trials"] == 12
    assert run([*tune, "--flush-cache", "--no-check", "--json", "t.json"]) == 0
    assert json.loads((tmp_path / "t.json").read_text())["trials"] == 0
    capsys.readouterr()
    assert run(["inspect", "r.jsonl"]) == 0
    shown = capsys.readouterr().out
    assert "1 thread, with empty caches" in shown


def test_every_configuration_computes_the_same(model: str, tmp_path: Path) -> None:
    """No trial of a random search is wrong: the measurer checks each of them."""
    tune = ["-q", "tune", model, "--threads", "1", "-o", "r.jsonl", "--explorer", "random", "--no-check"]
    assert run([*tune, *HASTY, "--trials", "12", "--batch", "4", "--json", "t.json"]) == 0
    failures = [t["failures"] for t in json.loads((tmp_path / "t.json").read_text())["tasks"]]
    assert not any({"wrong_output", "wrong_memory", "run_crash"} & set(f) for f in failures), failures


def test_list(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(["tune", model, "--list", "--json", "l.json"]) == 0
    out = capsys.readouterr().out
    tasks = json.loads((tmp_path / "l.json").read_text())["tasks"]
    assert len(tasks) == 3
    for t in tasks:
        assert t["name"] in out
        assert t["configurations"] > 10
    assert {"convolve"} <= {s for t in tasks for s in t["sources"]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tasks", "7"], "there is no task 7"),
        (["--tasks", "a"], "is no number and no range"),
        (["--time-budget", "soon"], "is no duration"),
        (["--explorer", "luck"], "unknown explorer"),
        (["--trials", "0"], "not a whole number"),
        (["--repeat", "2"], "not a whole number"),
        (["--target", "x86 -mcpu=bdver4"], "lacks fma4"),  # which no other family has had
        (["--report", "r.jsonl"], "two outputs cannot go to one file"),
        (["--json", "m.onnx"], "is read, so it cannot be written"),
        (["--cost-model", "luck"], "unknown cost model"),
        (["--transfer", "t.jsonl"], "nothing to transfer"),
        (["--explorer", "opevo", "--explorer-option", "luck=1"], "unexpected keyword argument 'luck'"),
        (["--explorer-option", "q"], "is no NAME=NUMBER"),
        (["--explorer-option", "q=high"], "is no NAME=NUMBER"),
    ],
)
def test_refusals(model: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("t.jsonl").touch()
    capsys.readouterr()
    assert run(["tune", model, *arguments, "-o", "r.jsonl"]) != 0
    assert message in capsys.readouterr().err
    assert not Path("r.jsonl").exists()


def test_what_is_not_tuned_is_told(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty.jsonl").write_text("")
    capsys.readouterr()
    assert run(["compile", model, "--records", "empty.jsonl", "-o", "m.tar"]) == 0
    said = capsys.readouterr()
    assert "miss" in said.out
    assert "warning: there are no records in what was named" in said.err
    assert run(["compile", model, "--records", "empty.jsonl", "--require-tuned", "-o", "n.tar"]) == 2
    assert "have no tuned configuration" in capsys.readouterr().err
    assert not Path("n.tar").exists()
    assert run(["compile", model, "--records", "empty.jsonl", "--require-tuned", "-O1", "-o", "n.tar"]) == 2
    assert "only used at the highest optimisation level" in capsys.readouterr().err
    assert run(["compile", model, "--records", "nowhere.jsonl", "-o", "n.tar"]) == 2
    assert "nowhere.jsonl: cannot be read" in capsys.readouterr().err


def test_records_where_they_cannot_be_used(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty.jsonl").write_text("")
    capsys.readouterr()
    assert run(["compile", model, "--records", "empty.jsonl", "-O1", "-o", "n.tar"]) == 2
    assert "only used at the highest optimisation level" in capsys.readouterr().err
    assert run(["compile", model, "--records", "empty.jsonl", "--no-records", "-o", "n.tar"]) == 2
    assert "--no-records contradicts" in capsys.readouterr().err
    assert run(["-q", "compile", model, "-O1", "-o", "n.tar"]) == 0


def test_a_compilation_finds_what_was_tuned(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    search = ["--explorer", "guided", "--explorer-option", "q=0.25", "--cost-model", "regression", "--no-check", *HASTY]
    assert run(["-q", "tune", model, "--threads", "1", "--trials", "6", "--batch", "2", *search]) == 0
    (journal,) = (tmp_path / "cache/mlc/tuning").iterdir()
    (best,) = (tmp_path / "cache/mlc/records").iterdir()
    assert len(best.read_bytes()) < len(journal.read_bytes())

    def tuned(*arguments: str) -> list[str]:
        assert run(["-q", "compile", model, "-o", "m.tar", "--json", "c.json", *arguments]) == 0
        return [f["found"] for f in json.loads((tmp_path / "c.json").read_text())["tuned"]]

    assert tuned("--threads", "1") == ["hit"] * 3
    assert tuned("--threads", "4") == tuned("--no-records", "--threads", "1") == []
    assert tuned("--threads", "1", "--records", str(journal), "--records", str(best.parent)) == ["hit"] * 3
    # what the next version's templates refuse is told, and compiled without
    record = json.loads(best.read_bytes().splitlines()[0])["body"]
    body = json.dumps({**record, "config": {**record["config"], "gone": 1}}, separators=(",", ":")).encode()
    best.write_bytes(b'{"crc":"%08x","body":%s}\n' % (zlib.crc32(body), body))
    capsys.readouterr()
    assert run(["compile", model, "-o", "m.tar", "--threads", "1"]) == 0
    assert "is compiled untuned, its record no longer fits: configuration refused: there is no knob gone" in (
        capsys.readouterr().err
    )

    transfer = ["--transfer", str(journal), "--explorer", "guided", "--batch", "2", *HASTY]
    assert run(["-q", "tune", model, "--threads", "1", "--trials", "2", "-o", "t.jsonl", "--no-check", *transfer]) == 0


def test_a_second_run_measures_and_decides_nothing_again(model: str, tmp_path: Path) -> None:
    tune = ["-q", "tune", model, "--threads", "1", "-o", "r.jsonl", "--explorer", "random", "--trials", "6"]
    tune += HASTY
    assert run([*tune, "--batch", "2", "--no-check", "--json", "a.json"]) == 0
    before = (tmp_path / "r.jsonl").read_bytes().count(b'"kind":"trial"')
    assert run([*tune, "--batch", "2", "--no-check", "--json", "b.json"]) == 0
    assert (tmp_path / "r.jsonl").read_bytes().count(b'"kind":"trial"') == before
    first, second = (json.loads((tmp_path / f).read_text())["tasks"] for f in ("a.json", "b.json"))
    assert [t["config"] for t in first] == [t["config"] for t in second]


def test_an_interruption_of_the_last_check_keeps_the_report(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Check, "model", stopped)
    tune = ["-q", "tune", model, "--threads", "1", "-o", "r.jsonl", "--explorer", "random", "--tasks", "1"]
    assert run([*tune, "--trials", "2", "--json", "t.json", "--report", "t.html"]) == 130
    document = json.loads((tmp_path / "t.json").read_text())
    assert (document["interrupted"], document["trials"], document["whole"]) == (True, 2, None)
    assert [t["task"] for t in document["tasks"]] == [1]
    assert "Stopped before its end" in (tmp_path / "t.html").read_text()


def test_products_of_bytes_are_tuned_and_every_candidate_is_exact(tmp_path: Path) -> None:
    """A convolution and a depthwise one of a QDQ model, by channel; bytes have no tolerance."""
    bytes_of = np.arange(256, dtype=np.uint8)
    with pytest.raises(CandidateError, match="y"):
        difference("y", bytes_of, bytes_of ^ (bytes_of == 77))
    rng = np.random.default_rng(3)
    stored = {
        "xs": np.float32(0.02), "xz": np.uint8(120), "ys": np.float32(0.11), "yz": np.uint8(7),
        "w": rng.integers(-127, 128, (32, 19, 3, 3)).astype(np.int8),
        "ws": rng.uniform(0.001, 0.01, 32).astype(np.float32), "wz": np.zeros(32, np.int8),
        "v": rng.integers(-127, 128, (32, 1, 3, 3)).astype(np.int8),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=0),
        helper.make_node("Conv", ["xd", "wd"], ["c"], "convolve", kernel_shape=[3, 3]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "ys", "yz"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "ys", "yz"], ["qd"]),
        helper.make_node("DequantizeLinear", ["v", "ws", "wz"], ["vd"], axis=0),
        helper.make_node("Conv", ["qd", "vd"], ["d"], "depthwise", group=32, pads=[1, 1, 1, 1]),
        helper.make_node("QuantizeLinear", ["d", "ys", "yz"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "bytes",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 19, 9, 11])],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, [1, 32, 7, 9])],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in stored.items()],
    )
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=10), tmp_path / "bytes.onnx")
    loaded = mlc.load(tmp_path / "bytes.onnx")
    records = tmp_path / "bytes.jsonl"
    options = TuneOptions(explorer="random", batch=4)
    tuning = mlc.tune(loaded, trials=8, options=options, threads=1, records=records, check_whole=False)
    assert all(state.trials for state in tuning.outcome.states)
    assert not any(Failure.WRONG_OUTPUT in state.failures for state in tuning.outcome.states)
    assert {f.found for f in mlc.compile(loaded, threads=1, records=(records,)).findings} == {Found.HIT}
    x = {"x": rng.standard_normal((1, 19, 9, 11)).astype(np.float32)}
    plain, tuned = (mlc.compile(loaded, threads=1, records=r).load(1).run(x)["y"] for r in ((), (records,)))
    np.testing.assert_array_equal(tuned, plain)

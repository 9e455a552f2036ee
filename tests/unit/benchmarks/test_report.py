"""Tables, means and notes, from made up results."""

from __future__ import annotations

import json

import pytest

from benchmarks.engines import Memory
from benchmarks.limits import Limit
from benchmarks.measure import Plan, Result, Versus
from benchmarks.report import Report, json_ready, markdown, means, notes
from benchmarks.stats import Spread

LIMIT = Limit(1, 10.0, {"L2": 2.0, "memory": 1.0}, {"L2": 1.0, "memory": 0.5})


def result(model: str, threads: int, ours: float, peer: float) -> Result:
    return Result(
        model,
        "operator",
        threads,
        flops=4e6,
        bytes=1e6,
        written=0.25e6,
        ours=["mlc"],
        milliseconds={"mlc": Spread(ours, ours / 20, 9), "onnxruntime": Spread(peer, peer / 20, 9)},
        versus={"mlc": Versus("onnxruntime", Spread(peer / ours, 0.0, 3))},
        reference="onnxruntime",
        error={"mlc": 1e-6},
        prepare_seconds={"mlc": 1.5, "onnxruntime": 0.5},
        memory={"mlc": Memory(10, 20, 30)},
    )


@pytest.fixture
def report() -> Report:
    broken = Result("b", "operator", 2, failures={"mlc": "mlc: lost"}, ours=["mlc"], idle_share=0.5)
    broken.error = {"mlc": float("inf")}
    results = [result("a", 1, 2.0, 4.0), result("a", 2, 1.0, 4.0), result("c", 1, 4.0, 2.0), broken]
    engines = {"onnxruntime": "1.0", "mlc": "0.1", "never": "ran"}
    return Report(Plan(3, 0.1), {"cpu": "some"}, engines, results, [LIMIT], {"L2": 1 << 20})


def test_tables_show_times_rates_and_speed_ups(report: Report) -> None:
    text = markdown(report, ["plot.png"])
    assert "| model | threads | mlc ms | onnxruntime ms | best peer | speed-up of mlc |" in text
    assert "| a | 1 | 2.000 ±5.0% | 4.000 ±5.0% | onnxruntime | 2.00 |" in text
    assert "| b | 2 | - | - | - | - |" in text
    assert "| a | 1 | 2.0 | 1.0 |" in text  # GFLOP/s
    assert "| a | 2.00 | 1.00 |" in text  # from 1 to 2 threads
    assert "| a | 1 | 1.0e-06 | reference |" in text
    assert "| a | 1 | 30 | - |" in text
    assert "| a | 1 | L2 | 5.3 | 38% | 19% |" in text  # of the roofline
    assert "| 1 | 10.0 | 2.0, 1.0 | 1.0, 0.5 |" in text  # the limits
    assert "![plot.png](plot.png)" in text
    assert "never ms" not in text


def test_means_are_by_engine_kind_and_threads(report: Report) -> None:
    one, two = means(report)
    assert (one.threads, one.count, one.least, one.least_model) == (1, 2, 0.5, "c")
    assert one.speedup == pytest.approx(1.0)
    assert (two.threads, two.speedup) == (2, 4.0)


def test_notes_name_failures_restless_engines_and_wrong_results(report: Report) -> None:
    text = "\n".join(notes(report))
    assert "b: mlc: lost" in text
    assert "b, 2 threads: idle engines used CPU time worth 50%" in text
    assert "mlc differs from  by inf" in text


def test_json_has_no_numbers_that_json_lacks(report: Report) -> None:
    document = json.loads(json.dumps(json_ready(report.to_json()), allow_nan=False))
    assert document["results"][3]["error"]["mlc"] == "inf"
    # a quarter of the bytes is written, as much read with it as in a copy, and the other half only read
    line = document["results"][0]["roofline"]
    assert line["bound"] == "L2"
    assert line["gflops"] == pytest.approx(4 / (0.5 / 1.0 + 0.5 / 2.0))
    assert line["shares"] == pytest.approx({"mlc": 2 / line["gflops"], "onnxruntime": 1 / line["gflops"]})
    assert document["results"][1]["roofline"] is None  # no limits for two threads
    assert document["geometric_means"][1]["speedup"] == 4.0

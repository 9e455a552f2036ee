"""What ``mlc run`` shows where the ordinary cases do not lead."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.cli import run_views
from mlc.cli.console import Console
from mlc.harness.layers import LayerReport
from mlc.runtime import StepSpec
from mlc.runtime.module import DeviceRun


def test_layers_without_a_counterpart(capsys: pytest.CaptureFixture[str]) -> None:
    document = run_views.show_layers(Console(), LayerReport((), 7))
    assert document == {"ok": True, "skipped": 7, "first_wrong": None, "layers": []}
    assert "there is nothing to compare" in capsys.readouterr().out


def test_outputs_of_odd_contents(capsys: pytest.CaptureFixture[str]) -> None:
    results = {
        "nan": np.array([np.nan, 1.0], np.float32),
        "empty": np.zeros((0, 3), np.int64),
        "flag": np.array([True, False]),
    }
    nan, empty, flag = run_views.show_outputs(Console(), results, saved=None)
    assert (nan["min"], nan["max"], nan["nan"]) == (1.0, 1.0, 1)
    assert (empty["type"], empty["mean"]) == ("i64[0,3]", None)
    assert flag["mean"] == 0.5
    assert "nan" in capsys.readouterr().out


def test_an_image_has_no_top_entries(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_views.show_top(Console(), {"y": np.zeros((1, 3, 4, 4))}, 2, None) == {}
    assert "output y: --top needs [classes] or [batch, classes], not [1, 3, 4, 4]" in capsys.readouterr().err


def test_runs_of_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    step = StepSpec("region0", ("Conv_0",), 3_000_000, 10, ())
    layers = [{"name": "a", "cycles": 60, "util": 0.5, "bytes": {"INP": 3}}, {"name": "b", "cycles": 140, "util": 0.75}]
    report = {"cycles": 200, "seconds": 1e-3, "layers": layers, "assumptions": ["memory of 1.5 GB/s"]}
    runs = [DeviceRun(step, report), DeviceRun(step, {}), DeviceRun(step, {"seconds": 1e-3, "operations": 2_000_000})]
    documents = run_views.show_device(Console(), runs)
    assert documents[0] == {"step": "region0", "sources": ["Conv_0"], **report}
    shown = capsys.readouterr()
    assert [line.split() for line in shown.out.splitlines() if line] == [
        ["on", "the", "device", "cycles", "ms", "operations", "GOPS"],
        ["region0", "200", "1.000", "3000000", "3.0"],
        ["region0", "3000000"],
        ["region0", "1.000", "2000000", "2.0"],
        ["name", "cycles", "util"],
        ["a", "60", "0.5"],
        ["b", "140", "0.75"],
    ]
    assert shown.err == "memory of 1.5 GB/s\n"


def test_what_a_device_does_is_shown_apart(capsys: pytest.CaptureFixture[str]) -> None:
    phases = {"to device": [100_000] * 3, "kernels": [800_000] * 3, "from device": [100_000] * 3, "host": [0] * 3}
    document = run_views.show_bench(Console(), [1_000_000] * 3, phases)
    assert set(document["phases"]) == {"to device", "kernels", "from device"}
    assert document["phases"]["kernels"]["p50"] == 0.8
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines[-4:]] == ["all", "device", "kernels", "device"]


def test_a_noisy_machine_is_mentioned(capsys: pytest.CaptureFixture[str]) -> None:
    document = run_views.show_bench(Console(), [1_000_000, 2_000_000, 3_000_000])
    assert document["noisy"] is True
    assert "warning: noisy: half of the runs are more than 50 % off the median" in capsys.readouterr().err

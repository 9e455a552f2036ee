"""Pictures are written for whatever there is data for."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.limits import Limit
from benchmarks.measure import Plan, Result, summarise
from benchmarks.peers import KernelTime
from benchmarks.plots import bars, draw
from benchmarks.report import Report

pytest.importorskip("matplotlib", reason="matplotlib comes with the extra dev")


def test_a_report_becomes_pictures(tmp_path: Path) -> None:
    operator = Result("C2", "operator", 1, flops=1e9, bytes=1e6, ours=["mlc"])
    summarise(operator, {"mlc": [[1e-3]], "onnxruntime": [[2e-3]], "tvm": [[1.0]]})
    network = Result("dqn", "network", 1, ours=["mlc"])
    summarise(network, {"mlc": [[1e-3]]})
    network.kernels = {"mlc": [KernelTime("k0_conv", 0.5, 1e8, 1e6), KernelTime("k1_copy", 0.5, 0, 1e6)]}
    limits = [Limit(1, 100.0, {"L1": 200.0, "memory": 10.0}, {"L1": 200.0, "memory": 10.0})]
    report = Report(Plan(1, 1.0), {}, {"mlc": "", "onnxruntime": "", "tvm": ""}, [operator, network], limits)
    names = draw(report, tmp_path / "new")
    assert names == ["relative-single-operators-1.png", "roofline-operators-1.png", "roofline-dqn-1.png"]
    for name in names:
        assert (tmp_path / "new" / name).read_bytes().startswith(b"\x89PNG")


def test_bars_leave_gaps_and_cut_what_is_too_high(tmp_path: Path) -> None:
    file = tmp_path / "bars.png"
    bars(file, ["a", "b"], {"x": [1.0, math.nan], "y": [2.0, 99.0]}, "title", "label")
    assert file.stat().st_size > 1000

from __future__ import annotations

import pytest

from mlc.errors import ExitCode, UnsupportedError
from mlc.frontend.common.context import UnknownValueError
from mlc.frontend.common.problems import Problems, UnsupportedModelError


def report(problems):
    with pytest.raises(UnsupportedModelError) as caught:
        problems.check()
    return caught.value


def test_nothing_found_is_nothing_reported():
    Problems().check()


def test_one_reason_is_one_line():
    problems = Problems()
    problems.add(UnsupportedError("mode 'area'", hint="use linear"), "up", "Resize (ai.onnx 13)")
    error = report(problems)
    assert str(error) == "not supported: Resize (ai.onnx 13), node 'up': mode 'area'"
    assert error.hint == "use linear"
    assert error.exit_code == ExitCode.UNSUPPORTED


def test_equal_reasons_are_counted_and_different_ones_listed():
    problems = Problems()
    for k in range(5):
        problems.add(UnsupportedError("mode 'area'"), f"up{k}", "Resize (ai.onnx 13)")
    problems.add(UnsupportedError("mode 'cubic'"), "last", "Resize (ai.onnx 13)")
    problems.add(UnsupportedError("input 'x': is a sequence"), "x", noun="input")
    assert str(report(problems)).splitlines() == [
        "not supported:",
        "  Resize (ai.onnx 13), 5 nodes ('up0', 'up1', 'up2' and 2 more): mode 'area'",
        "  Resize (ai.onnx 13), node 'last': mode 'cubic'",
        "  input 'x': is a sequence",
    ]


def test_a_long_report_is_cut():
    problems = Problems()
    for k in range(60):
        problems.add(UnsupportedError("no converter"), "n", f"Op{k}")
    lines = str(report(problems)).splitlines()
    assert len(lines) == 42
    assert lines[-1] == "  ... and 20 more reasons"


def test_inputs_that_would_help_are_gathered():
    problems = Problems()
    for name in ("a", "b", "a"):
        problems.add(UnknownValueError("unknown", inputs=(name,)), "n", "Reshape")
    problems.add(UnknownValueError("other", inputs=("c", "a")), "n", "Tile")
    assert report(problems).inputs_to_fix == ("a", "b", "c")

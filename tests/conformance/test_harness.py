"""The suite's own parts: judging outputs, comparing with the list, surviving workers that die."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

from tests.conformance import expected
from tests.conformance.__main__ import report
from tests.conformance.cases import stored_cases
from tests.conformance.check import Result, mismatch, run_case
from tests.conformance.engines import Outcome, interpret

ONE = np.ones(2, np.float32)


def result(name, reason=""):
    return Result(name, "node", "Add", reason)


@pytest.fixture
def listed(tmp_path, monkeypatch):
    """Sets the list of expected failures; gives its file."""
    file = tmp_path / "expected.json"
    monkeypatch.setattr(expected, "FILE", file)

    def write(**reasons):
        file.write_text(json.dumps(reasons))
        return file

    return write


@pytest.mark.parametrize(
    "got, words",
    [
        ([], "gives 0 outputs, not 1"),
        ([np.ones(3, np.float32)], r"output 0: has shape (3,), not (2,)"),
        ([np.ones(2)], "output 0: is float64, not float32"),
        ([np.array([1, 1.01], np.float32)], "output 0: 1 of 2 values differ, first at (1,): 1.0"),
        ([np.array([np.nan, 1], np.float32)], "output 0: 1 of 2 values differ, first at (0,): nan"),
        ([ONE + np.float32(1e-4)], ""),
    ],
)
def test_outputs_are_judged(got, words):
    assert mismatch([ONE], got, 1e-3, 1e-7).startswith(words)
    assert bool(words) == bool(mismatch([ONE], got, 1e-3, 1e-7))


def test_nan_equals_nan_and_bfloat16_has_its_own_tolerance():
    nan = np.array([np.nan, np.inf], np.float32)
    assert mismatch([nan], [nan.copy()], 1e-3, 0) == ""
    want = np.array([1.0], ml_dtypes.bfloat16)
    assert mismatch([want], [np.array([1.0078125], ml_dtypes.bfloat16)], 1e-3, 0) == ""
    assert "values differ" in mismatch([want], [np.array([1.0625], ml_dtypes.bfloat16)], 1e-3, 0)


def test_what_is_no_tensor_cannot_be_right():
    assert mismatch([[ONE]], [ONE], 1e-3, 0) == "output 0: a list is expected, no tensor"


def test_a_case_tells_why_it_fails():
    cases = {case.name: case for case in stored_cases("simple")}
    assert run_case(cases["test_single_relu_model"], interpret).passed
    assert run_case(cases["test_gradient_of_add"], interpret).reason.startswith(
        "unsupported: Gradient (ai.onnx.preview"
    )

    def broken(model, inputs):
        raise ZeroDivisionError("oh")

    assert run_case(cases["test_single_relu_model"], broken).reason == "crash: ZeroDivisionError: oh"
    wrong = run_case(cases["test_single_relu_model"], lambda model, inputs: Outcome([], ("x",)))
    assert (wrong.reason, wrong.constants, wrong.operator) == ("gives 0 outputs, not 1", ("x",), "Relu")


def test_results_are_compared_with_the_list(listed):
    listed(b="known", c="known", d="compiled: wrong code")
    results = [result("a", "new"), result("b", "old"), result("c"), result("d")]
    verdict = expected.judge(results, "compiled", "abcd")
    assert [r.name for r in verdict.fails] == ["a"]
    assert verdict.passes == ("c", "d")
    assert not verdict.ok
    assert expected.judge(results, "interpreter", "abcd").passes == ("c",)
    assert expected.judge([], "compiled", "abc").strange == ("d",)
    assert expected.judge([result("b", "old")], "compiled", "abcd").ok


def test_the_list_is_rewritten_but_written_reasons_stay(listed):
    file = listed(a="unsupported: then", b="a good reason", c="gone", d="compiled: wrong code", e="not run")
    results = [result("a", "unsupported: now"), result("b", "x"), result("c"), result("d"), result("f", "new")]
    expected.update(results, "interpreter", result)
    assert json.loads(file.read_text()) == {
        "a": "unsupported: now", "b": "a good reason", "d": "compiled: wrong code", "e": "not run", "f": "new",
    }  # fmt: skip
    expected.update([result("d")], "compiled", result)
    assert "d" not in json.loads(file.read_text())


def test_failures_of_the_compiler_alone_are_marked(listed):
    file = listed()
    results = [result("a", "output 0: wrong"), result("b", "output 0: wrong"), result("c", "unsupported: it")]
    expected.update(results, "compiled", lambda name: result(name, "also" if name == "b" else ""))
    assert json.loads(file.read_text()) == {
        "a": "compiled: output 0: wrong", "b": "output 0: wrong", "c": "unsupported: it",
    }  # fmt: skip


def test_the_report_counts_and_groups(listed):
    listed(a="known")
    results = [result("a", "output 0: 3 of 9 values differ, first at (1,): 2"), result("b"), result("c", "crash: X")]
    text = report(results, expected.judge(results, "compiled", "abc"), "compiled")
    assert "node: 1 / 3 passed" in text
    assert "   1  Add                          crash: X" in text
    assert "all, compiled: 1 / 3 passed (0 of them with inputs given as constants)" in text
    assert "UNEXPECTED FAILURE c: crash: X" in text
    assert "UNEXPECTED FAILURE a" not in text

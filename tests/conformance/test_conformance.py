"""The ONNX backend suite: a sample through the interpreter in every test run, all of it where there is time."""

from __future__ import annotations

import pytest

from tests.conformance import expected
from tests.conformance.__main__ import main
from tests.conformance.cases import Case, stored_cases
from tests.conformance.check import run_case
from tests.conformance.engines import interpret
from tests.emulated import PROCESSOR, needs_emulator

KINDS = ("simple", "pytorch-operator", "pytorch-converted")
CASES = [case for kind in KINDS for case in stored_cases(kind)]
LISTED = {name for name, reason in expected.load().items() if not reason.startswith(expected.COMPILED_ONLY)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case_ends_as_listed(case: Case) -> None:
    result = run_case(case, interpret)
    if case.name in LISTED:
        assert not result.passed, "passes, but is on the list of expected failures"
    else:
        assert result.passed, result.reason


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_cases_end_as_listed_when_interpreted() -> None:
    assert main(["--interpreter"]) == 0


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_all_cases_end_as_listed_when_compiled() -> None:
    assert main([]) == 0


@pytest.mark.slow
@needs_emulator
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("processor", ["cortex-a53", "cortex-a76", "neoverse-v1"])
def test_all_cases_end_as_listed_on_arm_processors(processor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROCESSOR, processor)
    assert main(["--timeout", "240"]) == 0

"""The whole lowering: whatever the schedule, the kernel computes what the tensor expressions say, after every pass."""

from __future__ import annotations

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from mlc.ir.interp import run_function
from mlc.ir.loop import Function
from mlc.lower import lower
from mlc.lower.verify import verify
from tests.fuzz import examples
from tests.unit.lower.computations import COMPUTATIONS, assert_results, empty_outputs
from tests.unit.lower.schedules import schedules, text


@pytest.mark.parametrize("name", COMPUTATIONS)
@given(data=st.data())
@examples(12)
def test_random_schedule_leaves_the_result_unchanged(name: str, data: st.DataObject) -> None:
    computation = COMPUTATIONS[name]()
    schedule = data.draw(schedules(computation))
    note(text(schedule))
    arrays = computation.draw(data.draw(st.integers(0, 3)))
    stages: list[tuple[str, Function]] = []

    def watch(stage: str, fn: Function) -> None:
        note(f"# {stage}\n{fn!r}")
        verify(fn, final=stage == "unroll")
        stages.append((stage, fn))

    lower(schedule, computation.params, "kernel", watch=watch)
    want = computation.expect(arrays)
    for stage, fn in (stages[0], stages[-1]):
        got = empty_outputs(computation)
        run_function(fn, [*arrays, *got])
        assert_results(computation, got, want, f"after {stage}")

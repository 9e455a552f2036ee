"""Machine code of whole kernels: the same results as the interpreter, whatever the schedule, level or threads."""

from __future__ import annotations

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from mlc.lower import lower
from tests.fuzz import examples
from tests.unit.lower.computations import COMPUTATIONS, assert_results, empty_outputs
from tests.unit.lower.schedules import schedules, text
from tests.unit.targets.llvm.host import Kernel


@pytest.mark.parametrize("name", COMPUTATIONS)
@given(data=st.data())
@examples(10)
def test_random_schedule_compiles_to_what_the_interpreter_computes(name: str, data: st.DataObject) -> None:
    computation = COMPUTATIONS[name]()
    schedule = data.draw(schedules(computation))
    note(text(schedule))
    arrays = computation.draw(data.draw(st.integers(0, 3)))
    fn = lower(schedule, computation.params, "kernel")
    note(repr(fn))
    want = computation.expect(arrays)
    kernel = Kernel(fn, data.draw(st.sampled_from([0, 3])))
    for threads in (1, 2):
        got = empty_outputs(computation)
        kernel.run([*arrays, *got], threads=threads, at_end=data.draw(st.booleans()))
        assert_results(computation, got, want, f"{threads} threads")

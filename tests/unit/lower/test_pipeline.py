"""The whole lowering: whatever the schedule, the kernel computes what the tensor expressions say, after every pass."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from mlc.ir.interp import run_function, run_graph
from mlc.ir.loop import Function
from mlc.lower import lower
from mlc.lower.verify import verify
from tests.fuzz import examples
from tests.unit.lower.computations import COMPUTATIONS, assert_results, empty_outputs
from tests.unit.lower.convolution import convolution
from tests.unit.lower.schedules import schedules, text


@pytest.mark.parametrize("name", COMPUTATIONS)
@given(data=st.data())
@examples(8)
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


# -- one convolution, as it is printed on its way ---------------------------------------------------------------------
def stages_of_convolution() -> dict[str, str]:
    """The texts that ``--dump-ir`` would show."""
    c = convolution()
    texts = {
        "graph": f"{c.graph!r}\n" + "".join(f"{name}: {layout}\n" for name, layout in c.layouts.items()),
        "te": "".join(f"{s.op!r}\n" for s in c.schedule.stages),
        "schedule": text(c.schedule) + "\n",
    }
    lower(c.schedule, c.params, "g0", watch=lambda stage, fn: texts.setdefault(stage, repr(fn)))
    return texts


@pytest.mark.parametrize("stage", ["graph", "te", "schedule", "build", "partition", "vectorize", "unroll"])
def test_text_of_a_fused_convolution(stage: str, golden: Callable[[str], None]) -> None:
    golden(stages_of_convolution()[stage])


def test_fused_convolution_computes_what_its_graph_says() -> None:
    c = convolution()
    x, w, b = c.draw()
    (want,) = run_graph(c.graph, {"x": x, "w": w, "b": b}).values()
    got = np.zeros(c.layouts["return"].physical_shape, np.float32)
    fn = lower(c.schedule, c.params, "g0")
    run_function(fn, [c.layouts["x"].pack(x), c.layouts["w"].pack(w), b, got])
    np.testing.assert_array_equal(c.layouts["return"].unpack(got), want)


def test_passes_are_told_in_order() -> None:
    c = convolution()
    seen: list[str] = []
    lower(c.schedule, c.params, "g0", watch=lambda stage, _: seen.append(stage))
    assert seen == ["build", "tensorize", "vthread", "partition", "vectorize", "unroll", "offsets"]

"""The master template: whatever its knobs say, the kernel means the same."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import ScheduleError
from mlc.ir.graph import Builder
from mlc.ir.interp.loop import run_function
from mlc.ir.types import TensorType, f32
from mlc.lower.knobs import Knobs
from mlc.ops import get
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import get_target
from mlc.tune.features import LoopFeatures
from mlc.tune.task import Task, candidate, tasks_of

TARGET = get_target("x86 -mcpu=haswell")
CASES = {
    "abc,cd->abd": ((3, 10, 24), (24, 24)),
    "abc,abd->cd": ((2, 17, 33), (2, 17, 20)),
    "abc->ac": ((9, 32, 65),),
}


def _task(equation: str, *shapes: tuple[int, ...]) -> Task:
    g = Builder("reduction")
    inputs = [g.input(f"a{k}", TensorType(shape, f32)) for k, shape in enumerate(shapes or CASES[equation])]
    (p,) = g.add(get("einsum"), inputs, {"equation": equation}, names=["p"])
    (found,) = tasks_of(g.finish([p]), TARGET, CompileOptions("reduction", "onnx", ""), Observer())
    return found


@pytest.mark.parametrize("equation", CASES)
def test_every_configuration_computes_the_same(equation: str) -> None:
    task = _task(equation)
    assert task.space.size > 1000
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in CASES[equation]]
    wanted = np.einsum(equation, *arrays)
    rows = task.space.sample(rng, 60)
    rows = rows[LoopFeatures(task, TARGET).valid(rows)]
    for row in [task.space.row({}), *rows[:3]]:
        config = task.space.config(row)
        out = np.full(wanted.shape, np.nan, np.float32)
        run_function(TARGET.kernel(candidate(task, TARGET, config), "k"), [*arrays, out])
        np.testing.assert_allclose(out, wanted, atol=1e-4, err_msg=str(config))


def test_untuned_is_the_plain_schedule() -> None:
    assert _task("abc->ac").space.default["plan"] == "plain"


def test_tiles_that_do_not_fit_the_registers_are_refused() -> None:
    task = _task("abc,cd->abd")
    config = {**task.space.default, "plan": "tiled", "tile0": (1, 1, 3), "tile1": (1, 1, 10), "tile2": (1, 1, 24)}
    with pytest.raises(ScheduleError, match="do not fit the registers"):
        TARGET.kernel(candidate(task, TARGET, config), "k")


def test_an_axis_that_is_not_tiled_counts_as_a_whole() -> None:
    """Of 12x12x12x9 results, the 9 along the vectors are not tiled: two vectors for each element of a tile."""
    task = _task("abcde->abcd", (12, 12, 12, 9, 4))
    config = {**task.space.default, "plan": "tiled", "vector": 3, "tile0": (1, 1, 12), "tile1": (6, 1, 2)}
    config["tile2"] = (12, 1, 1)
    with pytest.raises(ScheduleError, match="do not fit the registers"):
        TARGET.schedule(candidate(task, TARGET, config), Knobs(config))
    config["tile1"] = (12, 1, 1)
    TARGET.schedule(candidate(task, TARGET, config), Knobs(config))

"""Inputs, references, and candidates that are run on them."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from mlc.ir.graph import Builder
from mlc.ir.layout import Layout, blocked
from mlc.ir.types import TensorType, i7, u8
from mlc.ops import get
from mlc.records.measurement import Failure
from mlc.targets.x86.target import X86Target
from mlc.tuning.measure.candidate import CandidateError, difference
from mlc.tuning.measure.cases import Reference, case_bytes, cases_in, draw_inputs, margins_are_zero, physical
from mlc.tuning.task import Task
from tests.unit.tuning.measure.tasks import product, task_of


@pytest.fixture
def task() -> Task:
    return task_of(product(), X86Target.from_options({}))


def test_cases_lie_in_memory_without_touching(task: Task) -> None:
    memory = mmap.mmap(-1, case_bytes(task, 2))
    a, b = cases_in(memory, task, 2)
    draw_inputs(task, [a, b], [1, 2])
    for n, array in enumerate((*a.results, *b.results)):
        array[...] = n
    assert [x.shape for x in a.inputs] == [(24, 32), (32, 40)]
    assert (a.inputs[0] != b.inputs[0]).any()
    assert a.inputs[1] is b.inputs[1]  # weights
    again = cases_in(memory, task, 2)
    assert (again[1].results[0] == 1).all()
    assert (again[1].inputs[0] == b.inputs[0]).all()
    assert 0.9 < a.inputs[1].std() < 1.1


def test_small_weights_are_drawn_within_their_type() -> None:
    b = Builder("net")
    x = b.input("x", TensorType((24, 32), u8))
    w = b.constant(np.full((32, 16), 64, np.int8), "w")
    target = X86Target.from_options({"mcpu": "haswell"})
    task = task_of(b.finish(b.add(get("matmul"), [x, w])), target)
    memory = mmap.mmap(-1, case_bytes(task, 1))
    (case,) = cases_in(memory, task, 1)
    draw_inputs(task, [case], [1])
    assert [v.type.dtype for v in task.node.inputs] == [u8, i7]
    assert (case.inputs[0].max(), case.inputs[1].min(), case.inputs[1].max()) == (255, -64, 64)


def test_a_spot_check_agrees_with_the_whole(task: Task) -> None:
    memory = mmap.mmap(-1, case_bytes(task, 1))
    (case,) = cases_in(memory, task, 1)
    draw_inputs(task, [case], [1])
    reference = Reference(task.node)
    assert 0 < reference.seconds < 0.01
    case.results[0][...] = reference.results(case.inputs)[0]
    np.testing.assert_allclose(case.results[0], case.inputs[0] @ case.inputs[1], rtol=1e-4, atol=1e-4)
    ((got, expected),) = reference.spot_check(case, np.random.default_rng(0))
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_padding_is_poisoned_and_margins_are_zero() -> None:
    layout = blocked((1, 5, 3, 3), 1, 8).margin(2, 1, 2)
    array = np.ones((1, 5, 3, 3), np.float32)
    found = physical(array, layout)
    assert found.shape == layout.physical_shape == (1, 1, 6, 3, 8)
    assert (found[:, :, 1:4, :, :5] == 1).all()
    assert np.isnan(found[:, :, 1:4, :, 5:]).all()
    assert not found[:, :, [0, 4, 5]].any()
    assert margins_are_zero(found, layout)
    found[0, 0, 5, 0, 0] = 1e-9
    assert not margins_are_zero(found, layout)
    assert (physical(array, None) == array).all()
    assert (physical(array, Layout(array.shape)) == array).all()


@pytest.mark.parametrize("where", [0, 500_000, 999_999])
def test_one_wrong_element_of_a_million_is_found(where: int) -> None:
    expected = np.random.default_rng(0).standard_normal(1_000_000).astype(np.float32)
    got = expected * np.float32(1 + 1e-6)
    difference("y", got, expected)
    for wrong in (1e-2, np.nan, np.inf):
        bad = got.copy()
        bad[where] += np.float32(wrong)
        with pytest.raises(CandidateError, match="y: ") as info:
            difference("y", bad, expected)
        assert info.value.failure is Failure.WRONG_OUTPUT


def test_bytes_are_exact_but_for_one_step_of_a_rounded_sum() -> None:
    expected = np.arange(256, dtype=np.uint8)
    off = expected - (expected == 77).astype(np.uint8)
    difference("y", off, expected, rounded=True)
    for got, rounded in ((off, False), (off - (expected == 77).astype(np.uint8), True)):
        with pytest.raises(CandidateError, match="y: "):
            difference("y", got, expected, rounded=rounded)


def test_nan_where_nan_belongs_is_right() -> None:
    expected = np.array([1, np.nan, np.inf], np.float32)
    difference("y", expected.copy(), expected)
    with pytest.raises(CandidateError):
        difference("y", np.array([np.nan, np.nan, np.inf], np.float32), expected)

"""Kernels of the schedules with one thing wrong: the checker finds whatever the interpreter finds."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from mlc.errors import VerifyError
from mlc.ir.interp import run_function
from mlc.ir.loop import Function
from mlc.targets.gpu.kernel import kernel
from tests.unit.lower.grids import mutations
from tests.unit.targets.gpu.configurations import is_refused, is_scheduled, needs_all_barriers, random_kernels
from tests.unit.targets.gpu.groups import CASES, Case
from tests.unit.targets.gpu.test_templates import GENERIC

SHARING = (
    "matmul",
    "batch_matmul",
    "matmul_transposed",
    "conv",
    "conv_groups",
    "softmax",
    "layer_norm",
    "sum_of_all",
    "transpose_add",
)


def kernels(name: str, count: int, seed: int) -> Iterator[tuple[Case, Function]]:
    """A group's kernel untuned, and under random configurations."""
    case = Case.of(name)
    yield case, kernel(case.node, "k", GENERIC)
    if is_scheduled(case.node):
        for fn in random_kernels(case.node, GENERIC, count - 1, seed):
            yield case, fn


def is_faulty(case: Case, fn: Function) -> bool:
    """Whether the interpreter finds a fault on random data."""
    arrays = case.arrays(case.feeds())
    results = [np.full(b.shape, 77).astype(b.dtype.numpy) for b in fn.params[len(arrays) :]]
    try:
        run_function(fn, [a.reshape(b.shape) for a, b in zip(arrays, fn.params, strict=False)] + results)
    except VerifyError:
        return True
    return False


@pytest.mark.parametrize("name", SHARING)
def test_no_barrier_can_be_left_out(name: str) -> None:
    for _, fn in kernels(name, 3, 1):
        needs_all_barriers(fn)


def check_mutations(name: str, count: int, configurations: int, seed: int) -> tuple[int, int]:
    """How many of some mutations the checker refuses, and how many the interpreter does, all among the former."""
    draw = random.Random(seed)
    refused = faulty = 0
    for case, fn in kernels(name, configurations, seed):
        found = list(mutations(fn))
        for what, mutant in draw.sample(found, min(count, len(found))):
            wrong, caught = is_faulty(case, mutant), is_refused(mutant)
            assert caught or not wrong, f"{what} in\n{fn!r}"
            refused, faulty = refused + caught, faulty + wrong
    return refused, faulty


@pytest.mark.parametrize("name", ["matmul", "softmax"])
def test_faults_are_found(name: str) -> None:
    refused, faulty = check_mutations(name, 6, 2, 0)
    assert refused >= faulty


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CASES)
def test_faults_are_found_in_any_configuration(name: str) -> None:
    refused, faulty = check_mutations(name, 20, 8, 1)
    assert refused >= faulty

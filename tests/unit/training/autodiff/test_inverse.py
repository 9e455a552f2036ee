"""Accesses solved for the loop variables: exactly the iterations that touch an element, each once."""

from __future__ import annotations

from itertools import product
from math import prod
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.ir.expr import Const, Expr, Within, const
from mlc.ir.index import Linear, Var, as_index, dynamic, evaluate
from mlc.ir.types import i64
from mlc.training.autodiff.inverse import Inverse, invert
from tests.fuzz import examples

h, r = Var("h", 0, 15), Var("r", 0, 2)
H, R = as_index(h), as_index(r)


def holds(guard: Expr, env: dict[Var, int]) -> bool:
    if isinstance(guard, Const):
        return bool(guard.value)
    assert isinstance(guard, Within)
    return guard.lo <= evaluate(guard.index, env) < guard.hi


def tried(axes: list[Var], indices: list[Linear]) -> tuple[Inverse, float]:
    """Compares with all iterations; gives the solution, and how many it goes through for one that counts."""
    shape = [ix.bounds()[1] + 1 for ix in indices]
    element = [Var(f"z{k}", 0, n - 1) for k, n in enumerate(shape)]
    found = invert(indices, element, axes)
    want: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for point in product(*[range(a.hi + 1) for a in axes]):
        env = dict(zip(axes, point, strict=True))
        want.setdefault(tuple(evaluate(ix, env) for ix in indices), []).append(point)
    gone = 0
    for at in product(*map(range, shape)):
        got = []
        for point in product(*[range(v.hi + 1) for v in found.free]):
            gone += 1
            env = dict(zip(element, at, strict=True)) | dict(zip(found.free, point, strict=True))
            if all(holds(guard, env) for guard in found.guards):
                got.append(tuple(evaluate(found.values[a], env) for a in axes))
        assert sorted(got) == want.get(at, []), (indices, at)
    return found, gone / sum(map(len, want.values()))


@pytest.mark.parametrize(
    ("indices", "text", "free"),
    [
        ([H], "h = z0, r = r", 1),
        ([H + R], "h = z0 - r, r = r", 1),  # a window
        ([H * 2 + R], "h = z0//2 - h, r = z0%2 + 2*h", 1),  # one that moves by two: half of the taps for each
        ([H + R * 2], "h = z0 - 2*r, r = r", 1),
        ([H * 3 + R], "h = z0//3, r = z0%3", 0),  # windows side by side
        ([H * 2 + R * 2], "h = z0//2 - r, r = r", 1),
        ([H // 4, H % 4], "h = 4*z0 + z1, r = r", 1),  # a dimension cut in two
        ([H // 4], "h = 4*z0 + m, r = r", 2),  # what the remainder would tell is free
        ([15 - H], "h = -z0 + 15, r = r", 1),
        ([H, H], "h = z0, r = r", 1),  # the diagonal
    ],
)
def test_what_models_do(indices: list[Linear], text: str, free: int) -> None:
    found, _ = tried([h, r], indices)
    assert ", ".join(f"{v} = {form}" for v, form in found.values.items()) == text
    assert len(found.free) == free


@pytest.mark.parametrize(
    "indices",
    [[H + R], [H * 2 + R], [H + R * 2], [H * 3 + R * 2], [H // 2], [H % 4], [(H + R) // 2]],
)
def test_few_iterations_are_in_vain(indices: list[Linear]) -> None:
    assert tried([h, r], indices)[1] < 1.5


def access(rng: Random, axes: list[Var], depth: int = 0) -> Linear:
    form = as_index(rng.randint(0, 3))
    for a in rng.sample(axes, rng.randint(1, len(axes))):
        form += as_index(a) * rng.choice([1, 1, 1, 2, 3, 4, -1, -2, 6])
    kind = rng.random()
    if kind < 0.25:
        return form // rng.randint(2, 4)
    if kind < 0.4:
        return form % rng.randint(2, 5)
    if kind < 0.5 and depth < 2:
        return access(rng, axes, depth + 1) * rng.choice([1, 2]) + form % 3
    return form


@given(seed=st.integers(0, 1 << 30))
@examples(150)
def test_any_access(seed: int) -> None:
    rng = Random(seed)
    axes = [Var("ijk"[k], 0, rng.randint(0, 5)) for k in range(rng.randint(1, 3))]
    forms = [access(rng, axes) for _ in range(rng.randint(1, 3))]
    indices = [form - form.bounds()[0] for form in forms]
    if prod(ix.bounds()[1] + 1 for ix in indices) <= 300:
        tried(axes, indices)


def test_run_time_indices_are_compared() -> None:
    z = Var("z", 0, 9)
    found = invert([dynamic(const(3, i64), 0, 9)], [z], [r])
    assert found.values == {r: as_index(found.free[0])}
    assert str(found.guards) == "(0 <= -int(3) + z < 1,)"

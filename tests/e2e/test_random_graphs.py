"""Random models: interpreted, compiled in every way, on one thread and two, they give what onnxruntime gives.

Hypothesis draws the same models in every run, and makes a failing one smaller; ``--hypothesis-profile=fuzz`` draws
others, fifty times as many. The slow tests go through a thousand seeds and show a failing model cut down to what fails.
Models that failed once are in ``test_directed_*.py``.
"""

from __future__ import annotations

from itertools import cycle, islice

import pytest
from hypothesis import given, note

import mlc
from mlc.errors import MlcError
from tests.e2e.random_models.builder import RandomModel
from tests.e2e.random_models.check import OPTIONS, check_compiled, check_interpreter, load
from tests.e2e.random_models.reduce import reduced
from tests.e2e.random_models.strategy import OPERATORS, random_models, seeded_model
from tests.fuzz import examples


def shown(model: RandomModel) -> mlc.Model:
    """Import a model, and let Hypothesis print it when the test fails."""
    note(str(model))
    return load(model)


@examples(12)
@given(random_models(10, 30))
def test_interpreter_agrees_with_onnxruntime(model: RandomModel) -> None:
    check_interpreter(model, shown(model))


@examples(20)
@given(random_models(8, 16))
def test_optimised_code_agrees_on_one_thread_and_two(model: RandomModel) -> None:
    check_compiled(model, shown(model), "optimised")


@examples(12)
@given(random_models(8, 20))
def test_code_as_it_stands_agrees(model: RandomModel) -> None:
    loaded = shown(model)
    check_interpreter(model, loaded)
    check_compiled(model, loaded, "O0")


@examples(6)
@given(random_models(6, 14))
def test_unfused_code_agrees(model: RandomModel) -> None:
    check_compiled(model, shown(model), "unfused")


@examples(6)
@given(random_models(6, 14))
def test_code_without_layouts_agrees(model: RandomModel) -> None:
    check_compiled(model, shown(model), "without layouts")


@examples(6)
@given(random_models(6, 12))
def test_code_for_older_processors_agrees(model: RandomModel) -> None:
    loaded = shown(model)
    check_compiled(model, loaded, "for AVX2", threads=False)
    check_compiled(model, loaded, "for SSE", threads=False)


SEEDS, BATCH = 1000, 25


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_random_models_by_seed(first: int) -> None:
    """Optimised code for each, and one other way of compiling, by turns."""
    others = list(islice(cycle([name for name in OPTIONS if name != "optimised"]), first, first + BATCH))
    for seed, other in zip(range(first, first + BATCH), others, strict=True):
        model = seeded_model(seed)
        for options in ("optimised", other):
            if fault := fault_of(model, options):
                small = reduced(model, lambda m, how=options: fault_of(m, how) is not None)
                pytest.fail(f"seed {seed}, {options}: {fault}\n{small}")


def fault_of(model: RandomModel, options: str) -> str | None:
    """What is wrong with the compiled model, if anything."""
    try:
        loaded = load(model)
        check_interpreter(model, loaded)
        check_compiled(model, loaded, options)
    except (AssertionError, MlcError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def test_models_hold_every_operator_and_every_kind_of_wiring() -> None:
    """The generator has not gone blind: what it should draw occurs in a hundred models."""
    models = [seeded_model(seed, 10, 20) for seed in range(100)]
    types = {n.op_type for m in models for n in m.nodes}
    assert len(types) > 100
    assert len(OPERATORS) > 60
    wiring = {kind for m in models for kind in kinds_of_wiring(m)}
    assert wiring == {
        "input as output",
        "constant as output",
        "dead node",
        "several readers",
        "output read on",
        "same operand twice",
        "equal constants",
        "rank 0",
        "rank 5",
        "half",
    }


def kinds_of_wiring(model: RandomModel) -> set[str]:
    reads = [name for n in model.nodes for name in n.input if name]
    made = {name for n in model.nodes for name in n.output if name}
    constants = [t.value.tobytes() for t in model.tensors.values() if t.origin == "constant" and t.value.size > 4]
    found = {
        "input as output": any(model.tensors[o].origin == "input" for o in model.outputs),
        "constant as output": any(model.tensors[o].origin == "constant" for o in model.outputs),
        "dead node": any(not {*n.output} & {*reads, *model.outputs} for n in model.nodes),
        "several readers": len(set(reads) & made) < len([r for r in reads if r in made]),
        "output read on": bool({*model.outputs} & {*reads} & made),
        "same operand twice": any(len({*n.input}) < len(n.input) for n in model.nodes),
        "equal constants": len(set(constants)) < len(constants),
        "rank 0": any(model.tensors[name].rank == 0 for name in made),
        "rank 5": any(model.tensors[name].rank == 5 for name in made),
        "half": any(model.tensors[name].dtype == "float16" for name in made),
    }
    return {kind for kind, holds in found.items() if holds}

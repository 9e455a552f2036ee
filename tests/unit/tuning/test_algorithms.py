"""Algorithms are measured before schedules, and what wins is recorded, tuned and compiled with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlc.build import build_package
from mlc.ir.graph import Builder, Graph
from mlc.ir.types import DType, TensorType, f32, i7, i8, u8
from mlc.ops import get
from mlc.ops.algorithms import Algorithm
from mlc.records.best import best_of
from mlc.records.files import read_records
from mlc.records.lookup import Tuned
from mlc.records.record import ALGORITHM, Fingerprint
from mlc.rewrite.attention import spelled_out
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import get_target
from mlc.tuning import algorithms
from mlc.tuning.algorithms import Chosen, alone, choices_of, measure_algorithms
from mlc.tuning.drive import tune_graph
from mlc.tuning.measure import MeasureOptions, Rule
from mlc.tuning.options import TuneOptions
from mlc.tuning.task import tasks_of
from mlc.tuning.whole import build_module

TARGET = get_target("x86")
OPTIONS = CompileOptions("model", "onnx", "0" * 64)


def convolutions() -> Graph:
    b = Builder("model")
    v = b.input("x", TensorType((1, 32, 12, 12), f32))
    for k in range(2):
        w = b.constant(np.random.default_rng(k).standard_normal((32, 32, 3, 3)).astype(np.float32) / 17, f"w{k}")
        (v,) = b.add(get("conv"), [v, w], {"strides": (1, 1), "pads": (1,) * 4, "dilations": (1, 1), "groups": 1})
        (v,) = b.add(get("relu"), [v])
    return b.finish([v])


def attention() -> Graph:
    b = Builder("attention")
    q, k, v = (b.input(name, TensorType((2, 24, 16), f32)) for name in "qkv")
    (y,) = b.add(get("attention"), [q, k, v], {"scale": 0.25})
    (node,) = b.finish([y]).nodes
    return spelled_out(node)


def products(most: int) -> Graph:
    """A convolution of bytes by weights of at most that magnitude."""
    b = Builder("model")
    w = np.random.default_rng(0).integers(-most, most, (32, 32, 3, 3), endpoint=True).astype(np.int8)
    inputs = [b.input("x", TensorType((1, 32, 12, 12), u8)), b.constant(w, "w")]
    attrs = {"strides": (1, 1), "pads": (1,) * 4, "dilations": (1, 1), "groups": 1}
    return b.finish(b.add(get("conv"), inputs, attrs))


@pytest.mark.parametrize(("most", "dtype"), [(64, i7), (127, i8)])
def test_algorithms_of_integers_agree_where_there_is_no_vnni(most: int, dtype: DType) -> None:
    target = get_target("x86 -mcpu=haswell")
    (choice,) = choices_of(products(most), target, OPTIONS)
    assert set(choice.known) == {Algorithm.DIRECT, Algorithm.WINOGRAD_2}
    assert choice.node.inputs[1].type.dtype is dtype
    (again,) = choices_of(alone(choice.node), target, OPTIONS)
    assert again.key == choice.key
    feeds = {"x": np.random.default_rng(1).integers(0, 256, (1, 32, 12, 12), np.uint8)}
    results = []
    for algorithm in choice.known:
        chosen = Chosen([], target, 1, {choice.key: algorithm})
        with build_module(alone(choice.node), target, OPTIONS, 1, chosen) as module:
            results.append(next(iter(module.run(feeds).values())))
    np.testing.assert_array_equal(*results)


def few_bits(rank: int) -> Graph:
    """A product of data of two bits by bipolar weights: a convolution, or one of matrices."""
    shapes = {4: ((1, 64, 14, 14), (64, 64, 3, 3)), 2: ((48, 128), (128, 96))}[rank]
    w = np.random.default_rng(1).choice([-3, -1, 1, 3], shapes[1]).astype(np.int8)
    b = Builder("model")
    (x,) = b.add(get("clip"), [b.input("x", TensorType(shapes[0], u8))], {"lo": 0, "hi": 3})
    attrs = {"strides": (1, 1), "pads": (1,) * 4, "dilations": (1, 1), "groups": 1} if rank == 4 else {}
    return b.finish(b.add(get("conv" if rank == 4 else "matmul"), [x, b.constant(w, "w")], attrs))


@pytest.mark.parametrize("rank", [2, 4])
def test_bits_or_bytes_are_a_choice(rank: int) -> None:
    """The target's own comes first; either gives the same, and a record decides what a compilation takes."""
    target = get_target("x86 -mcpu=haswell")
    (choice,) = (c for c in choices_of(few_bits(rank), target, OPTIONS) if Algorithm.BITS in c.known)
    assert set(choice.known) == {Algorithm.BITS, Algorithm.DIRECT}
    found = {}
    for algorithm in choice.known:
        chosen = Chosen([], target, 1, {choice.key: algorithm})
        package = build_package(few_bits(rank), target, OPTIONS, Observer(), chosen)
        assert any("pack_bits" in step.kernel for step in package.manifest.steps) == (algorithm is Algorithm.BITS)
        x = np.random.default_rng(2).integers(0, 5, package.manifest.inputs[0].shape).astype(np.uint8)
        with build_module(few_bits(rank), target, OPTIONS, 1, chosen) as module:
            (found[algorithm],) = module.run({"x": x}).values()
    np.testing.assert_array_equal(found[Algorithm.BITS], found[Algorithm.DIRECT])
    (record,) = measure_algorithms([choice], [], target, OPTIONS, 1)
    assert record.config[ALGORITHM] in choice.known
    others = choices_of(few_bits(rank), get_target("x86 -mcpu=x86-64"), OPTIONS)  # which counts no bits
    assert not any(Algorithm.BITS in c.known for c in others)


@pytest.mark.parametrize(
    "graph, count",
    [(convolutions, 3), (attention, 2), (lambda: few_bits(2), 2)],
    ids=["convolutions", "attention", "few bits"],
)
def test_equal_operators_have_one_choice(graph, count: int) -> None:  # type: ignore[no-untyped-def]
    (choice,) = choices_of(graph(), TARGET, OPTIONS)
    assert len(choice.known) == count
    (again,) = choices_of(alone(choice.node), TARGET, OPTIONS)
    assert again.key == choice.key


def test_every_algorithm_is_run_and_the_fastest_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    choices = choices_of(convolutions(), TARGET, OPTIONS)
    seen: list[Algorithm] = []
    real = algorithms.build_module

    def noted(graph, target, options, threads, chosen):  # type: ignore[no-untyped-def]
        seen.extend(chosen._forced.values())
        return real(graph, target, options, threads, chosen)

    monkeypatch.setattr(algorithms, "build_module", noted)
    (record,) = measure_algorithms(choices, [], TARGET, OPTIONS, 1)
    assert seen == list(choices[0].known)
    assert record.config[ALGORITHM] in choices[0].known
    assert record.result.seconds is not None
    assert measure_algorithms(choices, [record], TARGET, OPTIONS, 1) == []


def test_the_targets_own_choice_stays_unless_another_is_clearly_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    (choice,) = choices_of(convolutions(), TARGET, OPTIONS)
    own, other, last = choice.known
    for share, expected in ((0.99, own), (0.9, other)):
        times = {own: 1.0, other: share, last: 2.0}
        monkeypatch.setattr(algorithms, "_seconds_of", lambda *_, times=times: times)
        (record,) = measure_algorithms([choice], [], TARGET, OPTIONS, 1)
        assert record.config == {ALGORITHM: expected.value}


def test_a_tuning_run_tunes_what_was_chosen_and_a_compilation_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (choice,) = choices_of(convolutions(), TARGET, OPTIONS)
    wanted = choice.known[-1]
    monkeypatch.setattr(
        algorithms, "_seconds_of", lambda choice, *_: {a: 1.0 if a is wanted else 2.0 for a in choice.known}
    )
    path = tmp_path / "records.jsonl"
    options = TuneOptions(trials=3, batch=2, explorer="random", algorithms=True)
    measure = MeasureOptions(rule=Rule(sample_seconds=1e-4, samples=3))
    how: dict[str, Any] = {"records": path, "threads": 1, "check_whole": False, "measure": measure}
    tune_graph(convolutions(), TARGET, OPTIONS, options, **how)
    records = read_records([path]).records
    settled = [r for r in records if ALGORITHM in r.config]
    assert [r.config[ALGORITHM] for r in settled] == [wanted.value]
    tuned = {r.task for r in records if ALGORITHM not in r.config}
    assert {t.name for t in tasks_of(convolutions(), TARGET, OPTIONS, Observer(), Chosen(records, TARGET, 1))} >= tuned
    lookup = Tuned(best_of(records, Fingerprint.of(TARGET), 1), TARGET)
    built = build_package(convolutions(), TARGET, OPTIONS, Observer(), lookup)
    assert ("winograd" in built.manifest.steps[0].kernel) == (wanted is not Algorithm.DIRECT)
    # a later run goes on with it, asked or not
    tune_graph(convolutions(), TARGET, OPTIONS, replace(options, trials=4, algorithms=False), **how)
    assert {r.task for r in read_records([path]).records if ALGORITHM not in r.config} == tuned

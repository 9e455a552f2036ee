"""Runs: batches, rates, checkpoints that are whole or not used, and where numbers end."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlc.errors import CheckFailedError, OutputError, UsageError
from mlc.ir.graph import Builder, Graph, Value
from mlc.ir.interp.graph import run_graph
from mlc.ir.types import TensorType, f32, i64
from mlc.ops import get
from mlc.training.checkpoint import Checkpoint, load_checkpoint
from mlc.training.data import Examples, Stream, Streamed, examples_of
from mlc.training.faults import first_fault
from mlc.training.loop import Plan, Trainer
from mlc.training.losses import LOSSES
from mlc.training.optimizers import optimizer
from mlc.training.step import NEXT, NUMBER, TARGET, training_step
from mlc.training.watch import Watcher
from tests.unit.training.test_step import BATCH, network

INPUTS = [Value("x", TensorType((BATCH, 7), f32))]
LABELS = TensorType((BATCH,), i64)


def arrays(n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {"x": rng.standard_normal((n, 7)).astype(np.float32), "label": rng.integers(0, 4, n)}


def examples(n: int = 20) -> Examples:
    return examples_of(arrays(n), INPUTS, LABELS, TARGET, "d.npz")


def trainer(kept: list[Checkpoint], epochs: int = 2, lr: float = 0.05) -> Trainer:
    learns = optimizer("adam")
    plan = Plan(epochs, lr, seed=3)
    step = training_step(network(), LOSSES["cross_entropy"], learns, plan.rates(examples().steps))
    run, compare = (lambda feeds, g=g: run_graph(g, feeds) for g in (step.graph, step.loss))
    return Trainer(step, plan, run, compare, True, kept.append, {"model": "m"})


def test_batches_are_whole_and_every_epoch_is_another_order() -> None:
    found = examples()
    assert (len(found), found.steps) == (20, 3)
    first, again, second = ([f["x"] for f in found.shuffled(0, e)] for e in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal([f["x"] for f in found.shuffled(0, 0, 1)], first[1:])


def test_what_is_measured_is_every_example_once() -> None:
    assert [count for _, count in examples().in_order()] == [6, 6, 6, 2]
    rest, kept = examples().split(0.3)
    assert (len(rest), len(kept)) == (14, 6)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": None}, "no array is called 'x' as the model's input is"),
        ({"more": np.zeros(20)}, "besides the inputs there must be one array, what is to be predicted; there are"),
        ({"x": np.zeros((20, 8), np.float32)}, r"'x' holds float32\[8\] an example, f32\[7\] is needed"),
        ({"label": np.zeros(20)}, r"'label' holds float64\[\] an example, i64\[\] is needed"),
        ({"label": np.zeros(19, np.int64)}, "numbers of examples differ: 20 of 'x', 19 of 'label'"),
    ],
)
def test_data_that_does_not_fit_is_refused(changed: Mapping[str, Any], message: str) -> None:
    given = {n: a for n, a in {**arrays(20), **changed}.items() if a is not None}
    with pytest.raises(UsageError, match="d.npz: " + message):
        examples_of(given, INPUTS, LABELS, TARGET, "d.npz")
    with pytest.raises(UsageError, match="3 examples are less than a batch of 6"):
        examples_of(arrays(3), INPUTS, LABELS, TARGET, "d.npz")


def test_a_run_goes_on_to_the_same_bits() -> None:
    kept: list[Checkpoint] = []
    whole = trainer(kept)
    whole.train(examples(), None, 0.0, Watcher())
    assert [(c.epoch, c.batch) for c in kept] == [(0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0)]
    for checkpoint in kept[:-1]:
        other = trainer([])
        other.resume(checkpoint)
        other.train(examples(), examples(), 1e9, Watcher())
        for name, array in whole.parameters.items():
            np.testing.assert_array_equal(other.parameters[name], array)
    assert other.history[-1]["validation_accuracy"] == other.evaluate(examples())["accuracy"]


def test_where_numbers_end_is_named() -> None:
    kept: list[Checkpoint] = []
    run = trainer(kept, lr=1e38)
    with pytest.raises(CheckFailedError, match=r"the loss is nan in step 2: .*(matmul|'w'|'v'|'b')"):
        run.train(examples(), None, 1e9, Watcher())


def rooted() -> Graph:
    """Scores of ``sqrt((x @ w) ** 2) @ v + mask``: no derivative where ``x @ w`` is 0, and an infinite mask."""
    rng = np.random.default_rng(0)
    g = Builder("rooted")
    x = g.input("x", TensorType((BATCH, 7), f32))
    w, v = (g.constant(rng.standard_normal(s).astype(np.float32) * 0.4, n) for n, s in (("w", (7, 9)), ("v", (9, 4))))
    mask = g.constant(np.array([0, 0, 0, 0, -np.inf], np.float32), "mask")
    (h,) = g.add(get("matmul"), [x, w])
    (root,) = g.add(get("sqrt"), g.add(get("mul"), [h, h]), sources=["root"])
    (y,) = g.add(get("matmul"), [root, v])
    (wide,) = g.add(get("pad"), [y], {"pads": (0, 0, 0, 1), "value": 0.0, "mode": "constant"})
    (y,) = g.add(get("add"), [wide, mask], names=["y"])
    return g.finish([y], ["y"])


def rooted_trainer(kept: list[Checkpoint]) -> Trainer:
    learns = optimizer("sgd")
    plan = Plan(1, 0.05, seed=3)
    step = training_step(rooted(), LOSSES["cross_entropy"], learns, plan.rates(3))
    run, compare = (lambda feeds, g=g: run_graph(g, feeds) for g in (step.graph, step.loss))
    return Trainer(step, plan, run, compare, True, kept.append, {}, lambda: kept[-1])


@pytest.mark.parametrize("step", [1, 3])
def test_derivatives_that_are_no_numbers_are_told_by_the_operator(step: int) -> None:
    given = arrays(3 * BATCH)
    order = np.random.default_rng([3, 0]).permutation(3 * BATCH)
    given["x"][order[step * BATCH - 1]] = 0.0
    kept: list[Checkpoint] = []
    run = rooted_trainer(kept)
    told = rf"'w' holds what is no number since step {step}: .* are those of \w+ \(root\)"
    with pytest.raises(CheckFailedError, match=told):
        run.train(examples_of(given, INPUTS, LABELS, TARGET, "d.npz"), None, 0.0, Watcher())
    assert not run.sound
    assert all(np.isfinite(c.tensors["w"]).all() for c in kept)


def test_batches_that_are_made_once_are_not_asked_for_again() -> None:
    given = arrays(3 * BATCH)
    given["x"][0] = 0.0
    rows = iter(range(0, 3 * BATCH, BATCH))
    stream = Stream(3, lambda epoch: ({n: a[k : k + BATCH] for n, a in given.items()} for k in rows))
    with pytest.raises(CheckFailedError, match="'w' holds what is no number; its batches are not made again"):
        rooted_trainer([]).train(Streamed(stream, INPUTS, LABELS, TARGET, "d"), None, 1e9, Watcher())


def test_a_mask_that_is_infinite_is_no_fault() -> None:
    run = rooted_trainer([])
    run.train(examples_of(arrays(3 * BATCH), INPUTS, LABELS, TARGET, "d.npz"), None, 1e9, Watcher())
    assert run.sound
    given = arrays(BATCH)
    given["x"][0] = np.inf
    feeds = {"x": given["x"], TARGET: given["label"], NUMBER: np.array([1]), **run.tensors}
    assert first_fault(run.step, feeds) == "'x' holds what is no number"


def test_a_broken_checkpoint_gives_way_to_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "run.checkpoint"
    assert load_checkpoint(file) == (None, [])
    for epoch in (1, 2):
        Checkpoint({"model": "m"}, {"w": np.full(3, epoch, np.float32)}, epoch, 0, epoch, ()).save(file)
    found, notes = load_checkpoint(file)
    assert found is not None
    assert (found.epoch, notes) == (2, [])
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    found, notes = load_checkpoint(file)
    assert found is not None
    assert (found.epoch, found.tensors["w"].tolist()) == (1, [1, 1, 1])
    assert notes == [f"{file}: is no whole checkpoint (the checksum is another one); the one before is used"]
    Path(f"{file}.previous").write_bytes(b"{}")
    with pytest.raises(UsageError, match="neither it nor the one before is a whole checkpoint"):
        load_checkpoint(file)


def test_a_checkpoint_that_cannot_be_written_leaves_those_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "run.checkpoint"
    state = Checkpoint({"model": "m"}, {"w": np.ones(3, np.float32)}, 1, 0, 1, ())
    state.save(file)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    for _ in range(2):
        with pytest.raises(OutputError, match=r"run\.checkpoint: cannot be written: No space left on device"):
            state.save(file)
    assert sorted(os.listdir(tmp_path)) == ["run.checkpoint", "run.checkpoint.previous"]
    assert load_checkpoint(file)[1] == []


def test_a_step_and_its_count_are_not_torn_apart_by_ctrl_c() -> None:
    kept: list[Checkpoint] = []
    run = trainer(kept)
    inner = run.run

    def interrupted(feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        results = inner(feeds)
        if run.steps == 1:
            signal.raise_signal(signal.SIGINT)
        for name in run.tensors:  # as a module does
            feeds[name][...] = results[name + NEXT]
        return results

    run.run = interrupted
    with pytest.raises(KeyboardInterrupt):
        run.train(examples(), None, 1e9, Watcher())
    assert (run.steps, run.batch) == (2, 2)
    other = trainer([])
    other.resume(run.checkpoint())
    run.run = inner
    for r in (run, other):
        r.train(examples(), None, 1e9, Watcher())
    whole = trainer([])
    whole.train(examples(), None, 1e9, Watcher())
    for name, array in whole.tensors.items():
        np.testing.assert_array_equal(array, run.tensors[name])
        np.testing.assert_array_equal(array, other.tensors[name])

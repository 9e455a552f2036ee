"""Training steps against PyTorch: losses, optimizers, clipping, and what may not be trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mlc
from mlc.api.training import wrapped
from mlc.errors import UsageError
from mlc.ir.graph import Builder, Graph
from mlc.ir.interp.graph import run_graph
from mlc.ir.types import TensorType, f32, i64
from mlc.ops import get
from mlc.training.losses import LOSSES
from mlc.training.optimizers import optimizer
from mlc.training.schedules import Schedule
from mlc.training.step import LOSS, NEXT, NUMBER, TARGET, training_step

BATCH, STEPS = 6, 20
RATE, FIRST = Schedule(0.1), np.array([1])


def network(last: str = "") -> Graph:
    rng = np.random.default_rng(0)
    g = Builder("net")
    x = g.input("x", TensorType((BATCH, 7), f32))
    w, b = (g.constant(rng.standard_normal(s).astype(np.float32) * 0.4, n) for n, s in (("w", (7, 9)), ("b", (9,))))
    v = g.constant(rng.standard_normal((9, 4)).astype(np.float32) * 0.4, "v")
    (h,) = g.add(get("tanh"), g.add(get("add"), [*g.add(get("matmul"), [x, w]), b]))
    (y,) = g.add(get("matmul"), [h, v], names=["y"])
    if last:
        (y,) = g.add(get(last), [y], {"axis": 1} if last == "softmax" else {})
    return g.finish([y], ["y"])


def feeds(seed: int, classes: bool) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    target = rng.integers(0, 4, BATCH) if classes else rng.standard_normal((BATCH, 4)).astype(np.float32)
    return {"x": rng.standard_normal((BATCH, 7)).astype(np.float32), TARGET: target}


OPTIMIZERS: dict[str, tuple[dict[str, Any], Callable[[Any, Any], Any]]] = {
    "sgd": ({}, lambda torch, p: torch.optim.SGD(p, 0.05)),
    "momentum": ({"momentum": 0.9}, lambda torch, p: torch.optim.SGD(p, 0.05, momentum=0.9)),
    "decayed": ({"momentum": 0.5, "decay": 0.1}, lambda torch, p: torch.optim.SGD(p, 0.05, 0.5, weight_decay=0.1)),
    "adam": ({"decay": 0.1}, lambda torch, p: torch.optim.Adam(p, 0.05, weight_decay=0.1)),
    "adamw": ({"decay": 0.1}, lambda torch, p: torch.optim.AdamW(p, 0.05, weight_decay=0.1)),
}


@pytest.mark.parametrize(
    ("how", "loss", "clip"),
    [
        ("sgd", "mse", None),
        ("momentum", "cross_entropy", None),
        ("decayed", "mse", None),
        ("adam", "cross_entropy", 0.3),
        ("adam", "mse", None),
        ("adamw", "cross_entropy", None),
    ],
)
def test_parameters_go_where_those_of_pytorch_go(how: str, loss: str, clip: float | None) -> None:
    torch = pytest.importorskip("torch")
    given, made = OPTIMIZERS[how]
    learns = optimizer(how if how.startswith("adam") else "sgd", **given)
    graph = network()
    step = training_step(graph, LOSSES[loss], learns, Schedule(0.05), clip=clip)
    theirs = {n: torch.tensor(a, requires_grad=True) for n, a in step.parameters.items()}
    their = made(torch, list(theirs.values()))
    kept = {**step.parameters, **step.moments}
    f = torch.nn.functional
    for k in range(1, STEPS + 1):
        batch = feeds(k, LOSSES[loss].classes)
        results = run_graph(step.graph, {**batch, **kept, NUMBER: np.array([k])})
        x, target = torch.tensor(batch["x"]), torch.tensor(batch[TARGET])
        y = torch.tanh(x @ theirs["w"] + theirs["b"]) @ theirs["v"]
        want = f.cross_entropy(y, target) if loss == "cross_entropy" else f.mse_loss(y, target)
        their.zero_grad()
        want.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(theirs.values(), clip)
        their.step()
        assert results[LOSS][0] == pytest.approx(want.item(), rel=1e-4)
        kept = {n: results[n + NEXT] for n in kept}
    for name, tensor in theirs.items():
        np.testing.assert_allclose(kept[name], tensor.detach().numpy(), rtol=2e-3, atol=2e-4)


def test_a_softmax_at_the_end_is_part_of_the_loss() -> None:
    batch = feeds(0, True)
    found = []
    for graph in (network(), network("softmax")):
        step = training_step(graph, LOSSES["cross_entropy"], optimizer("sgd"), RATE)
        results = run_graph(step.graph, {**batch, **step.parameters, NUMBER: FIRST})
        found.append([results[LOSS], *(results[n + NEXT] for n in "wbv")])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_losses_of_examples_have_the_loss_as_their_mean() -> None:
    for name, loss in LOSSES.items():
        step = training_step(network(), loss, optimizer("sgd"), RATE)
        batch = feeds(3, loss.classes)
        each = run_graph(step.loss, {**batch, **step.parameters})[LOSS]
        results = run_graph(step.graph, {**batch, **step.parameters, NUMBER: FIRST})
        assert each.shape == (BATCH,)
        assert results[LOSS][0] == pytest.approx(each.mean(), rel=1e-6), name


def normed() -> Graph:
    rng = np.random.default_rng(1)
    g = Builder("normed")
    x = g.input("x", TensorType((BATCH, 3, 5, 5), f32))
    w = g.constant(rng.standard_normal((4, 3, 3, 3)).astype(np.float32), "w")
    constants = [g.constant(np.full(4, 0.5 + k, np.float32), n) for k, n in enumerate(("scale", "bias", "mean", "var"))]
    (y,) = g.add(get("conv"), [x, w], {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)})
    (y,) = g.add(get("tanh"), g.add(get("batch_norm"), [y, *constants]))
    return g.finish([*g.add(get("reduce_mean"), [y], {"axes": (2, 3), "keepdims": False})], ["y"])


def test_batch_norms_measure_each_batch_as_pytorch_does() -> None:
    torch = pytest.importorskip("torch")
    learns = optimizer("sgd")
    step = training_step(normed(), LOSSES["cross_entropy"], learns, Schedule(0.3))
    assert (list(step.parameters), list(step.statistics)) == (["w", "scale", "bias"], ["mean", "var"])
    theirs = {n: torch.tensor(a, requires_grad=True) for n, a in step.parameters.items()}
    measured = {n: torch.tensor(a) for n, a in step.statistics.items()}
    their = torch.optim.SGD(list(theirs.values()), 0.3)
    kept = {**step.parameters, **step.statistics}
    f = torch.nn.functional
    rng = np.random.default_rng(2)
    for k in range(1, 8):
        batch = {"x": rng.standard_normal((BATCH, 3, 5, 5)).astype(np.float32), TARGET: rng.integers(0, 4, BATCH)}
        results = run_graph(step.graph, {**batch, **kept, NUMBER: np.array([k])})
        y = f.conv2d(torch.tensor(batch["x"]), theirs["w"])
        y = f.batch_norm(y, *measured.values(), theirs["scale"], theirs["bias"], training=True, momentum=0.1)
        want = f.cross_entropy(torch.tanh(y).mean((2, 3)), torch.tensor(batch[TARGET]))
        their.zero_grad()
        want.backward()
        their.step()
        assert results[LOSS][0] == pytest.approx(want.item(), rel=1e-5)
        kept = {n: results[n + NEXT] for n in kept}
    for name, tensor in {**theirs, **measured}.items():
        np.testing.assert_allclose(kept[name], tensor.detach().numpy(), rtol=1e-3, atol=1e-5, err_msg=name)


def test_a_batch_norm_is_summed_over_four_times() -> None:
    """Twice for what is measured, twice for its gradient; all else belongs to channels."""
    graph = training_step(normed(), LOSSES["cross_entropy"], optimizer("sgd"), RATE).graph
    (data,) = {n.outputs[0].type.shape for n in graph.nodes if n.op is get("conv")}
    reads = [n for n in graph.nodes if n.outputs[0].type.shape == (4,) and any(v.type.shape == data for v in n.inputs)]
    assert len(reads) == 4


def test_statistics_that_are_kept_and_what_is_frozen_stay() -> None:
    graph = normed()
    step = training_step(graph, LOSSES["cross_entropy"], optimizer("adam"), RATE, frozen=["bias", "w"], measures=False)
    assert (list(step.parameters), list(step.statistics)) == (["scale"], [])
    assert list(step.moments) == ["scale.moment0", "scale.moment1"]
    assert {"mean", "var"} <= {v.name for v in step.graph.constants}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"output": "z"}, "no output is called 'z'"),
        ({"frozen": ["u"]}, "no parameter is called 'u'"),
        ({"frozen": ["w", "b", "v"]}, "the model has no parameters that could be learned"),
    ],
)
def test_what_cannot_be_told_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        training_step(network(), LOSSES["mse"], optimizer("sgd"), RATE, **changed)


def test_outputs_that_cannot_be_learned_are_refused() -> None:
    g = Builder("several")
    x = g.input("x", TensorType((2, 3), f32))
    w = g.constant(np.ones((3, 4), np.float32), "w")
    (y,) = g.add(get("matmul"), [x, w])
    (k,) = g.add(get("argmax"), [y], {"axis": 1})
    with pytest.raises(UsageError, match="the model has several outputs: y, k"):
        training_step(g.finish([y, k], ["y", "k"]), LOSSES["mse"], optimizer("sgd"), RATE)
    with pytest.raises(UsageError, match=r"the output 'k' is i64\[2,1\], not floats"):
        training_step(g.finish([k], ["k"]), LOSSES["mse"], optimizer("sgd"), RATE)
    with pytest.raises(UsageError, match="the loss of 'x' depends on no parameter that is learned"):
        training_step(g.finish([x, y], ["x", "y"]), LOSSES["mse"], optimizer("sgd"), RATE, output="x")
    flat = g.finish(list(g.add(get("reshape"), [y], {"shape": (8,)})), ["flat"])
    with pytest.raises(UsageError, match=r"the cross entropy takes scores \[batch, classes, …\], and the model gives"):
        training_step(flat, LOSSES["cross_entropy"], optimizer("sgd"), RATE)
    assert i64 is LOSSES["cross_entropy"].target(TensorType((2, 3), f32)).dtype


@pytest.mark.parametrize("how", OPTIMIZERS)
@pytest.mark.parametrize("make", [network, normed])
def test_updates_in_place_are_those_of_the_interpreter(make: Callable[[], Graph], how: str) -> None:
    given, _ = OPTIMIZERS[how]
    learns = optimizer(how if how.startswith("adam") else "sgd", **given)
    step = training_step(make(), LOSSES["cross_entropy"], learns, Schedule(0.05))
    kept = {n: a.copy() for n, a in (step.parameters | step.statistics | step.moments).items()}
    assert set(step.updates.values()) == set(kept)
    package = mlc.compile(wrapped(step.graph, step.updates), threads=1, verify_passes=True)
    copied = sum(s.bytes // 2 for s in package.manifest.steps if s.kernel == "copy")
    late = sum(a.nbytes for a in step.parameters.values()) if how in ("decayed", "adam") else 0
    assert copied == late  # of a decay among derivatives moments are made too
    places = {new: kept[old] for new, old in step.updates.items()}
    x = next(v for v in step.graph.inputs if v.name == "x")
    rng = np.random.default_rng(4)
    with package.load(1) as module:
        for k in range(1, 4):
            batch = {"x": rng.standard_normal(x.type.shape).astype(np.float32), TARGET: rng.integers(0, 4, BATCH)}
            batch[NUMBER] = np.array([k])
            expected = run_graph(step.graph, {**batch, **kept})
            found = module.run({**batch, **kept}, places)
            assert found[LOSS][0] == pytest.approx(expected[LOSS][0], rel=1e-5)
            for new, array in places.items():
                assert found[new] is array
                np.testing.assert_allclose(array, expected[new], rtol=2e-4, atol=1e-5, err_msg=new)
        before = {n: a.copy() for n, a in kept.items()}
        batch["x"][0, 0] = np.nan
        assert np.isnan(module.run({**batch, **kept}, places)[LOSS][0])
    for name, array in kept.items():  # whoever looks for the fault finds what it was computed with
        np.testing.assert_array_equal(array, before[name])

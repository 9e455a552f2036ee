"""The graph of a training step: a model's own, its loss, all derivatives, and what the optimizer makes of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from mlc.define.expressions import add_expressions
from mlc.errors import UsageError
from mlc.ir import te
from mlc.ir.expr import binary, call
from mlc.ir.graph import Builder, Graph, Value
from mlc.ir.index import as_index
from mlc.ir.types import DType, TensorType, f32, f64, i64
from mlc.ops import get
from mlc.rewrite.contractions import state_contractions
from mlc.training.backward import add_gradients
from mlc.training.losses import Loss, mean_of
from mlc.training.optimizers import Optimizer, add_kept
from mlc.training.schedules import Schedule
from mlc.training.statistics import MEAN, VARIANCE, add_followed, add_statistics, is_batch_norm, measured

FLOATS = (f32, f64)  # in which models are trained
TARGET, NUMBER, LOSS = ".target", ".step", ".loss"  # which no model calls its own
NEXT = ".next"  # behind the name of an operand, what the step leaves of it


@dataclass(frozen=True, eq=False)
class TrainingStep:
    """What is compiled and repeated.

    Args:
        graph: takes the model's inputs, :data:`TARGET`, :data:`NUMBER` (of the step, from 1), and all that is kept from
            step to step; gives :data:`LOSS` and, behind the name with :data:`NEXT`, what is kept.
        loss: the model and the losses of examples alone, with parameters as inputs: for what is not learned from.
        parameters: what is learned, as it is before the first step.
        statistics: what is measured on the way, by name: means and variances of batch norms.
        moments: what the optimizer remembers.
        target: the type of what predictions are compared with.
        prediction: the output that is compared.
        dtype: of predictions, losses and parameters.
    """

    graph: Graph
    loss: Graph
    parameters: dict[str, np.ndarray]
    statistics: dict[str, np.ndarray]
    moments: dict[str, np.ndarray]
    target: TensorType
    prediction: str
    dtype: DType

    @property
    def updates(self) -> dict[str, str]:
        """Outputs of the step by name, and the input whose next value each is."""
        return {name: name.removesuffix(NEXT) for name in self.graph.output_names if name.endswith(NEXT)}


def trainable(graph: Graph, dtype: DType, frozen: Collection[str] = ()) -> list[Value]:
    """Constants that are learned: floats of which there are several, but for statistics and what is named.

    Args:
        dtype: of what is predicted; constants of other types stay as they are.
    Raises:
        UsageError: nothing is left, or nothing is called like something that is named.
    """
    known = {v.name for v in graph.constants}
    for name in frozen:
        if name not in known:
            raise UsageError(f"no parameter is called {name!r}", hint=f"there are {', '.join(sorted(known)[:8])} …")
    apart = measured(graph, dtype)
    found = [
        v
        for v in graph.constants
        if v.type.dtype is dtype and v.type.size > 1 and v not in apart and v.name not in frozen
    ]
    if not found:
        raise UsageError("the model has no parameters that could be learned")
    return found


def training_step(
    graph: Graph,
    loss: Loss,
    optimizer: Optimizer,
    schedule: Schedule,
    *,
    output: str | None = None,
    frozen: Collection[str] = (),
    clip: float | None = None,
    measures: bool = True,
) -> TrainingStep:
    """The step that trains a model.

    Args:
        graph: of the model, as imported: its constants are the parameters.
        schedule: how fast it learns, in each step.
        output: the name of the output that is compared; the only one unless given.
        frozen: names of parameters that are not learned.
        clip: the largest norm that all derivatives together may have; they are scaled down to it.
        measures: batch norms take the means and variances of each batch, which are followed for afterwards; else they
            keep those that they have.
    Raises:
        UsageError: the output or a parameter cannot be told; nothing that is learned has to do with the loss.
        UnsupportedError: an operator has no gradient.
    """
    d = _differentiated(graph, loss, output, frozen, measures)
    g, value, used = d.builder, d.loss, d.used
    derivatives = [by for _, by in used]
    if clip is not None:
        derivatives = _clipped(g, derivatives, clip)
    rates = schedule.add(g, g.input(NUMBER, TensorType((1,), i64)), optimizer.betas, value.type.dtype)
    results, result_names = [value], [LOSS]
    moments: dict[str, np.ndarray] = {}
    begun = len(g.nodes)
    for (v, _), by in zip(used, derivatives, strict=True):
        remembered = [g.input(f"{v.name}.moment{k}", v.type) for k in range(optimizer.moments)]
        moments |= {m.name: np.zeros(m.type.shape, m.type.dtype.numpy) for m in remembered}
        results += optimizer.add(g, v, by, remembered, rates, value)
        result_names += [f"{t.name}{NEXT}" for t in (v, *remembered)]
    inputs = {v.name: v for v in g.inputs}
    for name, v in d.followed.items():
        results.append(add_kept(g, v, inputs[name], value))
        result_names.append(f"{name}{NEXT}")
    _update_early(g, begun)
    step = g.finish(results, result_names)
    parameters, kept = ({v.name: graph.constants[v] for v in values} for values in (d.learned, d.statistics))
    return TrainingStep(step, d.compared, parameters, kept, moments, d.target.type, d.prediction, value.type.dtype)


def target_type(graph: Graph, loss: Loss, output: str | None = None) -> TensorType:
    """The type of what a model's predictions are compared with.

    Args:
        graph, loss, output: as for :func:`training_step`.
    Raises:
        UsageError: the output cannot be told.
    """
    return loss.target(graph.outputs[_compared_output(graph, output)].type)


def gradient_graph(
    graph: Graph, loss: Loss, *, output: str | None = None, frozen: Collection[str] = (), measures: bool = True
) -> Graph:
    """The loss of a batch, and behind ``d`` and their names the derivatives by all parameters.

    Args:
        graph, loss, output, frozen, measures: as for :func:`training_step`.
    """
    d = _differentiated(graph, loss, output, frozen, measures)
    return d.builder.finish([d.loss, *(by for _, by in d.used)], [LOSS, *(f"d{v.name}" for v, _ in d.used)])


@dataclass(frozen=True, eq=False)
class _Differentiated:
    """A model's loss and its derivatives.

    Args:
        builder: holds both.
        loss: of a batch.
        used: parameters with the derivatives by them.
        learned, statistics: constants of the model that are learned, and that are measured.
        followed: what becomes of the statistics, by name.
        compared: the losses of examples alone.
        target: what predictions are compared with.
        prediction: the output that is compared.
    """

    builder: Builder
    loss: Value
    used: Sequence[tuple[Value, Value]]
    learned: Sequence[Value]
    statistics: Collection[Value]
    followed: dict[str, Value]
    compared: Graph
    target: Value
    prediction: str


def _differentiated(
    graph: Graph, loss: Loss, output: str | None, frozen: Collection[str], measures: bool
) -> _Differentiated:
    place = _compared_output(graph, output)
    dtype = graph.outputs[place].type.dtype
    learned = trainable(graph, dtype, frozen)
    statistics = measured(graph, dtype) if measures else {}
    compared = _compared(graph, loss, [*learned, *statistics], place)
    g, env, followed, centres = _opened(graph, [*learned, *statistics], statistics)
    prediction = env[graph.outputs[place]]
    target = g.input(TARGET, loss.target(prediction.type))
    value = mean_of(g, loss.add(g, prediction, target))
    one = g.constant(np.ones(1, dtype.numpy), "one")
    wanted = [env[v] for v in learned]
    found = add_gradients(g, [(value, one)], wanted, constant=centres)
    used = [(v, d) for v, d in zip(wanted, found, strict=True) if d is not None]
    if not used:
        raise UsageError(f"the loss of {graph.output_names[place]!r} depends on no parameter that is learned")
    return _Differentiated(g, value, used, learned, statistics, followed, compared, target, graph.output_names[place])


def _compared_output(graph: Graph, output: str | None) -> int:
    """The position of the output that is compared."""
    names = graph.output_names
    if output is None and len(names) > 1:
        raise UsageError(f"the model has several outputs: {', '.join(names)}", hint="say which with --output NAME")
    if output is not None and output not in names:
        raise UsageError(f"no output is called {output!r}", hint=f"there are {', '.join(names)}")
    place = 0 if output is None else names.index(output)
    if graph.outputs[place].type.dtype not in FLOATS:
        raise UsageError(
            f"the output {names[place]!r} is {graph.outputs[place].type}, not floats that could be learned"
        )
    return place


def _compared(graph: Graph, loss: Loss, opened: Collection[Value], place: int) -> Graph:
    """The model and the losses of examples, with inputs in place of some constants."""
    g, env, *_ = _opened(graph, opened, ())
    prediction = env[graph.outputs[place]]
    losses = loss.add(g, prediction, g.input(TARGET, loss.target(prediction.type)))
    return g.finish([losses, prediction], [LOSS, graph.output_names[place]])


def _opened(
    graph: Graph, opened: Collection[Value], statistics: Collection[Value]
) -> tuple[Builder, dict[Value, Value], dict[str, Value], list[Value]]:
    """A builder that goes on where a graph ends, with inputs in place of some of its constants.

    Args:
        statistics: those that batch norms do not take but measure.
    Returns:
        the builder, what stands for each value of the graph, what becomes of the statistics, by name, and what
        gradients need not go through.
    """
    g = Builder(graph.name)
    env = {v: g.input(v.name, v.type) for v in graph.inputs}
    env |= {v: g.input(v.name, v.type) for v in opened}
    env |= {v: g.constant(a, v.name) for v, a in graph.constants.items() if v not in env}
    followed: dict[str, Value] = {}
    centres: list[Value] = []
    for node in graph.nodes:
        operands = [env[v] for v in node.inputs]
        if is_batch_norm(node) and all(node.inputs[k] in statistics for k in (MEAN, VARIANCE)):
            taken = add_statistics(g, operands[0], node.sources)
            centres.append(taken.centre)
            found = {MEAN: taken.mean, VARIANCE: taken.variance}
            kept = {k: followed.get(node.inputs[k].name, operands[k]) for k in found}
            after = add_followed(g, kept, found, operands[0])
            followed |= {node.inputs[k].name: v for k, v in after.items()}
            operands = [found.get(k, v) for k, v in enumerate(operands)]
        outs = g.add(node.op, operands, node.attrs, names=[v.name for v in node.outputs], sources=node.sources)
        env.update(zip(node.outputs, outs, strict=True))
    results = [*(env[v] for v in graph.outputs), *followed.values()]
    stated = state_contractions(g.finish(results))  # whose gradients then meet the schedules of products
    g.nodes, g.constants = list(stated.nodes), dict(stated.constants)
    for node in g.nodes:
        for v in node.outputs:
            g.unique(v.name)
    env.update(zip(graph.outputs, stated.outputs, strict=False))
    return g, env, dict(zip(followed, stated.outputs[len(graph.outputs) :], strict=True)), centres


def _update_early(g: Builder, begun: int) -> None:
    """Moves nodes from a position on to where their operands are there, so that no derivative waits for the others."""
    ready: dict[Value, int] = {v: k for k, n in enumerate(g.nodes[:begun]) for v in n.outputs}
    place = {n: k for k, n in enumerate(g.nodes[:begun])}
    for node in g.nodes[begun:]:
        place[node] = max((ready[v] for v in node.inputs if v in ready), default=0)
        ready.update(dict.fromkeys(node.outputs, place[node]))
    g.nodes.sort(key=place.__getitem__)


def _clipped(g: Builder, derivatives: list[Value], most: float) -> list[Value]:
    """Derivatives, scaled so that the norm of all of them together is ``most`` at most."""
    total: Value | None = None
    for d in derivatives:
        t = te.placeholder(d.type.shape, d.type.dtype, "d")
        axes = tuple(te.reduce_axis(n, f"r{k}") for k, n in enumerate(t.shape))
        at = tuple(map(as_index, axes))
        square = te.compute((1,), lambda _, t=t, at=at, axes=axes: te.sum_of(t[at] * t[at], axes), "squares", tag="sum")
        (part,) = add_expressions(g, [square], {id(t): d})
        total = part if total is None else g.add(get("add"), [total, part])[0]
    assert total is not None
    s = te.placeholder((1,), total.type.dtype, "squares")
    bound = most * most
    scale = te.compute((1,), lambda i: call("sqrt", bound / binary("max", s[i], bound)), "scale")
    (by,) = add_expressions(g, [scale], {id(s): total})
    return [g.add(get("mul"), [d, by])[0] for d in derivatives]

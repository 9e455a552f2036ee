"""From a float model and samples to one in integers: choice of products, calibration, and either arithmetic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mlc.errors import UnsupportedError
from mlc.ir.graph import Graph, Node, Value
from mlc.ir.interp import run_graph
from mlc.rewrite.dce import eliminate_dead_code
from mlc.rewrite.quantization.calibrate import Arrays, Run, calibrate, tapped
from mlc.rewrite.quantization.choice import Layer, QuantizeOptions, layers_of, reasons_for_floats
from mlc.rewrite.quantization.exponents import exponent_for
from mlc.rewrite.quantization.ranges import Distribution, asymmetric
from mlc.rewrite.quantization.shifts import Shifts
from mlc.rewrite.quantization.steps import Converter, Plan, Steps
from mlc.rewrite.recurrence import graphs

WATCHED = "layer"  # what the results of layers are called, and their position


@dataclass(frozen=True, eq=False)
class Quantized:
    """A quantised model.

    Args:
        graph: in integers, where it is quantised.
        tensors: how every tensor that was quantised is stored, by the float model's name.
        layers: the products, with the reason for those that stayed in floats.
        reference: runs the float model; beside its results it gives those of the layers, if asked for, and others.
        watched: the quantised one; after its results come those of the layers, by the same names.
    """

    graph: Graph
    tensors: Mapping[str, Steps]
    layers: tuple[Layer, ...]
    reference: Run
    watched: Graph

    @property
    def products(self) -> int:
        """How many are in integers."""
        return sum(not layer.reason for layer in self.layers)

    @property
    def floats(self) -> dict[str, str]:
        """Products that are not, by name, with the reason."""
        return {layer.name: layer.reason for layer in self.layers if layer.reason}


def interpreted(graph: Graph) -> Run:
    """Runs a graph by the reference interpreter."""
    return lambda sample: run_graph(graph, sample)


def quantize(
    graph: Graph,
    samples: Sequence[Arrays],
    options: QuantizeOptions | None = None,
    prepare: Callable[[Graph], Run] = interpreted,
    progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    by_layer: bool = False,
) -> Quantized:
    """Quantise a graph.

    Args:
        graph: optimised, not fused, row-major.
        samples: inputs to calibrate with, by name, a mapping a sample.
        options: what and how.
        prepare: makes something that runs a float graph; the interpreter is slow. A compilation takes longer than all
            samples do, so what is calibrated with is the reference as well, unless that gives what layers do.
        progress: told how much of the calibration is done.
        by_layer: the reference gives what layers do, too.
    Raises:
        UsageError: a node to keep is unknown, or the samples are unfit.
        UnsupportedError: the model has nothing to quantise.
    """
    options = options or QuantizeOptions()
    reasons = reasons_for_floats(graph, options)
    if all(reasons.values()):
        raise _nothing({layer.name: layer.reason for layer in layers_of(graph, reasons)})
    quantised = _with_shifts if options.shifts else _with_steps

    def measure(values: Sequence[Value], layers: Sequence[Layer]) -> tuple[Run, dict[Value, Distribution]]:
        prefix = "tap"
        while any(name.startswith(prefix) for name in graph.output_names):
            prefix += "."
        run = prepare(eliminate_dead_code(tapped(graph, values, prefix)))
        found = calibrate(run, {f"{prefix}{k}": v for k, v in enumerate(values)}, samples, progress)
        # what layers give is not seen while others are calibrated, whose last digits may depend on it: whether or not
        # it is asked for, the quantised model is the same
        return prepare(tapped(graph, [layer.result for layer in layers], WATCHED)) if by_layer else run, found

    found = quantised(graph, reasons, options, measure)
    if not found.products:
        raise _nothing(found.floats)
    return found


# makes the float model run, given values to calibrate and layers
Measure = Callable[[Sequence[Value], Sequence[Layer]], tuple[Run, Mapping[Value, Distribution]]]


def _nothing(floats: Mapping[str, str]) -> UnsupportedError:
    reasons = "; ".join(f"{name}: {reason}" for name, reason in floats.items())
    return UnsupportedError(
        f"nothing in the model can be quantised ({reasons or 'it has no product with constant weights'})",
        hint="--quantize-ends takes in first and last layers too",
    )


def _with_shifts(graph: Graph, reasons: Mapping[Node, str], options: QuantizeOptions, measure: Measure) -> Quantized:
    """Powers of two: which tensors are stored is found by a walk that knows no scale yet."""
    asked: defaultdict[Value, int] = defaultdict(int)
    plan = Shifts(graph, reasons, options.by_channel, asked)
    plan.convert()
    layers = layers_of(graph, plan.reasons)
    if not any(not layer.reason for layer in layers):
        raise _nothing({layer.name: layer.reason for layer in layers})
    watched = [layer.result for layer in layers]
    also: defaultdict[Value, int] = defaultdict(int)
    Shifts(graph, reasons, options.by_channel, also).convert(watched)
    run, found = measure([*asked, *(v for v in also if v not in asked)], layers)
    exponents = {v: exponent_for(numbers, options.method) for v, numbers in found.items()}

    def converted(results: Sequence[Value] = ()) -> Graph:
        return eliminate_dead_code(Shifts(graph, reasons, options.by_channel, exponents).convert(results))

    tensors = {v.name: Steps(2.0 ** -exponents[v], 0) for v in asked}
    return Quantized(converted(), tensors, layers, run, converted(watched))


def _with_steps(graph: Graph, reasons: Mapping[Node, str], options: QuantizeOptions, measure: Measure) -> Quantized:
    """Any scale and zero point, within recurrences as well."""
    precision = options.precision
    plans = {g: Plan(g, reasons, products_only=precision.few) for g, _ in graphs(graph)}
    layers = layers_of(graph, reasons)
    run, found = measure([v for plan in plans.values() for v in plan.stored], layers)
    ranges = {v: numbers.range(options.method, precision.steps) for v, numbers in found.items()}
    steps = {v: Steps(*asymmetric(*r, precision.steps)) for v, r in ranges.items()}
    converter = Converter(plans, steps, options.by_channel, options.reduced, precision)
    made = eliminate_dead_code(converter.convert(graph))
    watched = tapped(made, [converter.values[layer.result] for layer in layers], WATCHED)
    return Quantized(made, {v.name: s for v, s in steps.items()}, layers, run, watched)

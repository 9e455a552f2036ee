"""From a float model and samples to one in integers: choice of products, calibration, and either arithmetic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mlc.errors import UnsupportedError
from mlc.ir.graph import Graph, Node, Value
from mlc.ir.interp import run_graph
from mlc.rewrite.dce import eliminate_dead_code
from mlc.rewrite.quantization.calibrate import Arrays, Prepare, Run, calibrate, tapped
from mlc.rewrite.quantization.choice import Layer, QuantizeOptions, layers_of, reasons_for_floats
from mlc.rewrite.quantization.exponents import exponent_for
from mlc.rewrite.quantization.ranges import Distribution, asymmetric
from mlc.rewrite.quantization.shifts import Shifts
from mlc.rewrite.quantization.steps import Converter, Plan, Steps
from mlc.rewrite.recurrence import graphs

WATCHED = "layer"


@dataclass(frozen=True, eq=False)
class Quantized:
    """A quantised model.

    Args:
        graph: in integers, where it is quantised.
        tensors: how every tensor that was quantised is stored, by the float model's name.
        layers: the products, with the reason for those that stayed in floats.
        reference: the float model; after its results come those of the layers.
        watched: the quantised one likewise.
    """

    graph: Graph
    tensors: Mapping[str, Steps]
    layers: tuple[Layer, ...]
    reference: Graph
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
    prepare: Prepare = interpreted,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Quantized:
    """Quantise a graph.

    Args:
        graph: optimised, not fused, row-major.
        samples: inputs to calibrate with, by name, a mapping a sample.
        options: what and how.
        prepare: makes something that runs a float graph; the interpreter is slow.
        progress: told how much of the calibration is done.
    Raises:
        UsageError: a node to keep is unknown, or the samples are unfit.
        UnsupportedError: the model has nothing to quantise.
    """
    options = options or QuantizeOptions()
    reasons = reasons_for_floats(graph, options)
    if all(reasons.values()):
        raise _nothing({layer.name: layer.reason for layer in layers_of(graph, reasons)})
    quantised = _with_shifts if options.shifts else _with_steps
    found = quantised(graph, reasons, options, lambda values: calibrate(graph, values, samples, prepare, progress))
    if not found.products:
        raise _nothing(found.floats)
    return found


Calibrate = Callable[[Sequence[Value]], Mapping[Value, Distribution]]


def _nothing(floats: Mapping[str, str]) -> UnsupportedError:
    reasons = "; ".join(f"{name}: {reason}" for name, reason in floats.items())
    return UnsupportedError(
        f"nothing in the model can be quantised ({reasons or 'it has no product with constant weights'})",
        hint="--quantize-ends takes in first and last layers too",
    )


def _with_shifts(
    graph: Graph, reasons: Mapping[Node, str], options: QuantizeOptions, calibrated: Calibrate
) -> Quantized:
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
    found = calibrated([*asked, *(v for v in also if v not in asked)])
    exponents = {v: exponent_for(numbers, options.method) for v, numbers in found.items()}

    def converted(results: Sequence[Value] = ()) -> Graph:
        return eliminate_dead_code(Shifts(graph, reasons, options.by_channel, exponents).convert(results))

    tensors = {v.name: Steps(2.0 ** -exponents[v], 0) for v in asked}
    return Quantized(converted(), tensors, layers, tapped(graph, watched, WATCHED), converted(watched))


def _with_steps(
    graph: Graph, reasons: Mapping[Node, str], options: QuantizeOptions, calibrated: Calibrate
) -> Quantized:
    """Any scale and zero point, within recurrences as well."""
    precision = options.precision
    plans = {g: Plan(g, reasons, products_only=precision.few) for g, _ in graphs(graph)}
    found = calibrated([v for plan in plans.values() for v in plan.stored])
    ranges = {v: numbers.range(options.method, precision.steps) for v, numbers in found.items()}
    steps = {v: Steps(*asymmetric(*r, precision.steps)) for v, r in ranges.items()}
    converter = Converter(plans, steps, options.by_channel, options.reduced, precision)
    made = eliminate_dead_code(converter.convert(graph))
    layers = layers_of(graph, reasons)
    reference = tapped(graph, [layer.result for layer in layers], WATCHED)
    watched = tapped(made, [converter.values[layer.result] for layer in layers], WATCHED)
    return Quantized(made, {v.name: s for v, s in steps.items()}, layers, reference, watched)

"""Which step of a module is the first to differ from the original model?"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from mlc.harness.compare import Comparison, compare, tolerance_for
from mlc.harness.feeds import as_original
from mlc.harness.reference import Reference, Tap
from mlc.runtime.module import Module
from mlc.runtime.tensor_spec import ResultSpec

# As passes and importers call what becomes of a tensor: by a transpose, by adding to bytes what changes their sign.
_MADE = re.compile(r"(.+?)(?:\.axes(\d+))?(?:\.(plus|minus)(\d+))?")


@dataclass(frozen=True)
class Layer:
    """One tensor of a step, compared.

    Args:
        step: position of the step in the module, from 0.
        kernel: its kernel.
        sources: the original model's nodes that the step computes.
        result: the comparison.
    """

    step: int
    kernel: str
    sources: tuple[str, ...]
    result: Comparison

    def to_json(self) -> dict[str, object]:
        return {
            "step": self.step,
            "kernel": self.kernel,
            "sources": list(self.sources),
            **self.result.to_json(),
        }


@dataclass(frozen=True)
class LayerReport:
    """All comparisons in the model's order, and how many results have no counterpart in the original model."""

    layers: tuple[Layer, ...]
    skipped: int

    @property
    def first_wrong(self) -> Layer | None:
        return next((layer for layer in self.layers if not layer.result.ok), None)


def compare_layers(
    module: Module,
    reference: Reference,
    inputs: Mapping[str, np.ndarray],
    *,
    absolute: float | None = None,
    relative: float | None = None,
) -> LayerReport:
    """Compares what every step leaves behind with the tensor of the same name in the original model.

    Steps are traced and compared in batches, so that no more than about ``reference.BATCH_BYTES`` of them are held.

    Args:
        module: the compiled model.
        reference: the original.
        inputs: for both, in the order of axes in which the module takes them.
        absolute, relative: tolerances in place of those that follow from how the tensors were computed.
    """
    there = reference.tensor_names()
    steps = module.manifest.steps
    wanted: dict[str, tuple[int, ResultSpec]] = {}  # by the original's name
    for i, step in enumerate(steps):
        for result in step.results:
            origin = _origin(result.name, there)
            if origin.name in there:
                wanted.setdefault(origin.name, (i, result))
    skipped = sum(len(step.results) for step in steps) - len(wanted)
    supply = reference.intermediates(
        as_original(inputs, module.manifest.model), [Tap(name, result.nbytes) for name, (_, result) in wanted.items()]
    )
    expected: dict[str, np.ndarray] = {}
    layers: list[Layer] = []
    for i, (step, results) in enumerate(module.trace(inputs)):
        for own, got in results.items():
            origin = _origin(own, there)
            name = origin.name
            if name not in wanted or (wanted[name][0], wanted[name][1].name) != (i, own):
                continue
            if name not in expected:
                # Taps come in the order of the trace: all of the batch before have been used.
                expected = next(supply)
            tolerance = tolerance_for(got.dtype, absolute, relative, module.manifest.precision.get(own))
            comparison = compare(name, got, origin.applied(expected[name], got.dtype), tolerance)
            layers.append(Layer(i, step.kernel, step.sources, comparison))
    return LayerReport(tuple(layers), skipped)


@dataclass(frozen=True)
class _Origin:
    """The original's tensor that a result is made of.

    Args:
        name: of the tensor.
        axes: the order of its axes; ``None`` for its own.
        plus: what is added to every number.
    """

    name: str
    axes: tuple[int, ...] | None = None
    plus: int = 0

    def applied(self, array: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """The original's numbers as the result has them; ``dtype`` is the result's."""
        turned = array if self.axes is None else array.transpose(self.axes)
        return (turned.astype(np.int64) + self.plus).astype(dtype) if self.plus else turned


def _origin(name: str, there: Collection[str]) -> _Origin:
    """The original's tensor of a result by its name: ``NAME``, ``NAME.axes0312``, ``NAME.plus128`` or both."""
    match = None if name in there else _MADE.fullmatch(name)
    if match is None:
        return _Origin(name)
    plus = int(match[4] or 0) * (-1 if match[3] == "minus" else 1)
    return _Origin(match[1], None if match[2] is None else tuple(map(int, match[2])), plus)

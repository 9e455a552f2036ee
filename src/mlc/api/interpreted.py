"""A model's own graph, run operator by operator in numpy: the reference where no other program can run the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from mlc.api.models import Model
from mlc.harness.reference import Tap, batches
from mlc.ir.graph import Value
from mlc.ir.interp.graph import run_graph


class InterpretedReference:
    """What a model's operators say, before any pass: nothing is fused, laid out or generated.

    Args:
        model: as it was imported, with the same values for inputs that were fixed.
    """

    note = ""

    def __init__(self, model: Model) -> None:
        self._graph = model.graph

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by name."""
        return run_graph(self._graph, inputs)

    def intermediates(self, inputs: Mapping[str, np.ndarray], taps: Sequence[Tap]) -> Iterator[dict[str, np.ndarray]]:
        """Intermediate tensors, in batches, in the order of ``taps``."""
        for names in batches(taps):
            found: dict[str, np.ndarray] = {}

            def watch(v: Value, array: np.ndarray, names: Sequence[str] = names, found: dict = found) -> None:
                if v.name in names:
                    found[v.name] = array

            run_graph(self._graph, inputs, watch)
            yield {name: found[name] for name in names}

    def tensor_names(self) -> set[str]:
        """The tensors that may be asked for."""
        return {v.name for node in self._graph.nodes for v in node.outputs}

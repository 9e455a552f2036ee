"""The two ways to run a model: through the interpreter of the graph, and compiled."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import mlc
from mlc.frontend.base import ImportedModel
from mlc.frontend.common.problems import UnsupportedModelError
from mlc.frontend.onnx.importer import import_onnx
from mlc.ir.graph import verify
from mlc.ir.interp import run_graph
from mlc.ops.random import seed_of
from tests.emulated import PROCESSOR, emulated

MOST_RETRIES = 4
SEED = np.array(0, np.uint64)  # of models that draw random numbers
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Outcome:
    """What a run gave.

    Args:
        outputs: in the model's order.
        constants: inputs that had to be given at compile time, since a shape depends on their values.
    """

    outputs: list[np.ndarray]
    constants: tuple[str, ...]


Engine = Callable[[bytes, Mapping[str, Any]], Outcome]


def interpret(model: bytes, inputs: Mapping[str, Any]) -> Outcome:
    """Import and run the graph as numpy."""
    arrays = _arrays(inputs)

    def load(constants: Arrays) -> ImportedModel:
        shapes = {name: a.shape for name, a in arrays.items() if name not in constants}
        return import_onnx(model, shapes=shapes, constants=constants)

    imported, constants = _specialised(load, arrays)
    graph = imported.graph
    verify(graph)
    seed = seed_of(graph)
    feeds = {v.name: SEED if v is seed else arrays[v.name] for v in graph.inputs}
    outputs = run_graph(graph, feeds)
    return Outcome([outputs[name] for name in graph.output_names], tuple(constants))


def compiled(model: bytes, inputs: Mapping[str, Any]) -> Outcome:
    """Compile with the public interface, load, run: for this machine, or for the processor in :data:`PROCESSOR`."""
    arrays = _arrays(inputs)
    with tempfile.TemporaryDirectory(prefix="mlc-conformance-") as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model)

        def load(constants: Arrays) -> mlc.Model:
            shapes = {name: a.shape for name, a in arrays.items() if name not in constants}
            return mlc.load(path, shapes=shapes, constants=constants)

        loaded, constants = _specialised(load, arrays)
        elsewhere = os.environ.get(PROCESSOR)
        package = mlc.compile(loaded, f"arm -mcpu={elsewhere}" if elsewhere else "x86")
    feeds = {info.name: arrays[info.name] for info in loaded.inputs}
    outputs = emulated(package, feeds) if elsewhere else package.load(threads=1).run(feeds)
    return Outcome([outputs[info.name] for info in loaded.outputs], tuple(constants))


def _arrays(inputs: Mapping[str, Any]) -> Arrays:
    """The inputs that are tensors; a model that takes others is refused by the import, which says so."""
    return {name: value for name, value in inputs.items() if isinstance(value, np.ndarray)}


def _specialised(load: Callable[[Arrays], Any], arrays: Arrays) -> tuple[Any, Arrays]:
    """Load a model, fixing just those inputs whose values the refusal asks for."""
    constants: Arrays = {}
    for _ in range(MOST_RETRIES):
        try:
            return load(constants), constants
        except UnsupportedModelError as error:
            asked = [name for name in error.inputs_to_fix if name in arrays and name not in constants]
            if not asked:
                raise
            constants |= {name: arrays[name] for name in asked}
    return load(constants), constants


ENGINES: dict[str, Engine] = {"interpreter": interpret, "compiled": compiled}

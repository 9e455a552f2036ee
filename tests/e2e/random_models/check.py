"""What must hold of a model: the interpreter and compiled code, with whatever options, give what onnxruntime gives."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import mlc
from mlc.ir.interp import run_graph
from tests.e2e.random_models.builder import RandomModel
from tests.e2e.random_models.rounding import assert_equal

Options = Mapping[str, Any]
OPTIONS: dict[str, Options] = {
    "optimised": {},
    "O0": {"opt_level": 0},
    "O1": {"opt_level": 1},
    "unfused": {"disabled_passes": ("fuse",)},
    "without layouts": {"disabled_passes": ("layout",)},
    "for AVX2": {"target": "x86 -mcpu=haswell"},
    "for SSE": {"target": "x86 -mcpu=x86-64"},
}


def load(model: RandomModel) -> mlc.Model:
    """The model as the importer reads it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model.proto, path)
        return mlc.load(path)


def check_interpreter(model: RandomModel, loaded: mlc.Model) -> None:
    """The imported graph means what onnxruntime says."""
    compare("interpreter", run_graph(loaded.graph, model.inputs), model)


def check_compiled(model: RandomModel, loaded: mlc.Model, options: str, *, threads: bool = True) -> None:
    """Compiled code gives what onnxruntime gives, and the same bits on two threads as on one.

    Args:
        model: with its inputs and expected outputs.
        loaded: the same, imported.
        options: a key of ``OPTIONS``.
        threads: whether to try two threads.
    """
    package = mlc.compile(loaded, verify_passes=True, **OPTIONS[options])
    with package.load(1) as module:
        alone = module.run(model.inputs)
    compare(options, alone, model)
    if threads:
        with package.load(2) as module:
            together = module.run(model.inputs)
        for name, value in alone.items():
            assert np.array_equal(value, together[name], equal_nan=value.dtype.kind == "f"), f"{name} on two threads"


def compare(what: str, got: Mapping[str, np.ndarray], model: RandomModel) -> None:
    """Assert that outputs are the expected ones."""
    assert list(got) == list(model.outputs), f"{what}: outputs {list(got)}"
    for name, want in model.expected.items():
        assert_equal(f"{what}: {name}", got[name], want.value, want.coarse)

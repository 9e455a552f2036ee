"""Small models through the whole house: built from nodes and arrays, compiled, run; and what onnxruntime says."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import mlc
from mlc.errors import DeviceError
from mlc.ir.interp import run_graph
from tests import ort
from tests.emulated import PROCESSOR, emulated

Arrays = Mapping[str, np.ndarray]
LEVELS = ({}, {"opt_level": 0})  # optimised, and as it stands


def network(
    nodes: Sequence[onnx.NodeProto],
    feeds: Arrays,
    outputs: Sequence[str],
    stored: Arrays | None = None,
    *,
    opset: int = 21,
) -> onnx.ModelProto:
    """A model whose inputs have the shapes and types of ``feeds``; outputs are of no declared type."""
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in feeds.items()
    ]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    constants = [numpy_helper.from_array(np.asarray(a), name) for name, a in (stored or {}).items()]
    graph = helper.make_graph(list(nodes), "test", infos, results, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def load(model: onnx.ModelProto) -> mlc.Model:
    """Import a model that is in memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        return mlc.load(path)


def compiled(model: onnx.ModelProto, feeds: Arrays, *, threads: int = 1, **options: Any) -> dict[str, np.ndarray]:
    """Outputs of compiled code, every pass checked.

    Where ``pytest --processor`` names one, it is for that, unless the options have a processor of their own.
    """
    elsewhere = os.environ.get(PROCESSOR)
    if elsewhere and options.get("target", "x86") == "x86":
        options["target"] = f"arm -mcpu={elsewhere}"
        package = mlc.compile(load(model), verify_passes=True, **options)
        return emulated(package, feeds, threads)
    with mlc.compile(load(model), verify_passes=True, **options).load(threads) as module:
        return module.run(feeds)


def run_here(package: mlc.Package, feeds: Arrays, threads: int = 1) -> dict[str, np.ndarray]:
    """Outputs of a package for a processor that this machine may not be; then the test skips."""
    try:
        module = package.load(threads)
    except DeviceError as error:
        pytest.skip(error.message)
    with module:
        return module.run(feeds)


def interpreted(model: onnx.ModelProto, feeds: Arrays) -> dict[str, np.ndarray]:
    """Outputs of the graph as imported."""
    return run_graph(load(model).graph, feeds)


def reference(model: onnx.ModelProto, feeds: Arrays) -> dict[str, np.ndarray]:
    """Outputs of onnxruntime."""
    session = ort.session(model)
    names = [o.name for o in session.get_outputs()]
    return {name: np.asarray(a) for name, a in zip(names, session.run(names, dict(feeds)), strict=True)}


def assert_same(got: Arrays, want: Arrays, *, tolerance: float = 0.0) -> None:
    """Equal shapes, types and values, NaN equal to NaN.

    Args:
        got, want: outputs by name, in the same order.
        tolerance: for finite floats, of the output's largest finite magnitude.
    """
    assert list(got) == list(want)
    for name, expected in want.items():
        value = got[name]
        assert (value.shape, value.dtype) == (expected.shape, expected.dtype), name
        if expected.dtype.kind == "V":  # numpy does not know that bfloat16 has NaN
            value, expected = value.astype(np.float32), expected.astype(np.float32)
        if expected.dtype.kind != "f" or not tolerance:
            np.testing.assert_array_equal(value, expected, err_msg=name)
            continue
        finite = np.isfinite(expected)
        scale = np.abs(expected[finite]).max(initial=0.0)
        np.testing.assert_allclose(value, expected, rtol=0, atol=tolerance * scale, equal_nan=True, err_msg=name)


def check(model: onnx.ModelProto, feeds: Arrays, want: Arrays | None = None, *, tolerance: float = 1e-5) -> None:
    """Assert that compiled code gives ``want`` (what onnxruntime says, unless given) at every level."""
    expected = reference(model, feeds) if want is None else want
    for options in LEVELS:
        assert_same(compiled(model, feeds, **options), expected, tolerance=tolerance)

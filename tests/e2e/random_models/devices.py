"""What must hold of a random model on a device that runs grids of threads, in each precision.

OpenCL's kernels run on PoCL, also those for other devices; CUDA's as the host's C++ compiler builds them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx

import mlc
from mlc.errors import MlcError
from tests.e2e.random_models.builder import RandomModel
from tests.e2e.random_models.rounding import assert_equal
from tests.halves import as_halves, halved

TARGETS = {
    "mali": "opencl -device=mali -driver=pocl",
    "generic": "opencl -device=generic -driver=pocl",
    "pocl": "opencl -device=pocl",
    "sm_75": "cuda -arch=sm_75",
    "sm_80": "cuda -arch=sm_80",
    "sm_90": "cuda -arch=sm_90",
}
PRECISIONS = ("f32", "fp16", "halved")  # as it is, computed in halves, and with halves in the file
FLOATS_ONLY = {"Celu"}  # operators that ONNX has for float32 alone
TIMES = 8  # what rounding may have moved a result by, for halves to be right; it has been 1.3 at most


def has_halves(model: RandomModel) -> bool:
    """Whether ONNX has all of a model in half precision."""
    return not any(node.op_type in FLOATS_ONLY for node in model.nodes)


def check_on_device(model: RandomModel, device: str, precision: str) -> None:
    """The device runs all of a model, and gives what onnxruntime gives in float32.

    Args:
        model: drawn for halves, where the precision is not ``f32``.
        device: a key of ``TARGETS``; its driver is there.
        precision: one of ``PRECISIONS``.
    """
    proto = halved(model.proto) if precision == "halved" else model.proto
    feeds = as_halves(model.inputs) if precision == "halved" else model.inputs
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(proto, Path(folder) / "model.onnx")
        loaded = mlc.load(Path(folder) / "model.onnx")
    package = mlc.compile(loaded, TARGETS[device], verify_passes=True, records=[], fp16=precision == "fp16")
    with package.load(1) as module:
        got = module.run(feeds)
    assert list(got) == list(model.outputs)
    for name, want in model.expected.items():
        value = got[name]
        if precision == "halved" and want.dtype == np.float32:
            assert value.dtype == np.float16, name
            value = value.astype(np.float32)
        assert_equal(name, value, want.value, want.coarse)
        if precision != "f32" and want.error:
            off = np.abs(value.astype(np.float64) - want.value).max(initial=0.0)
            assert off <= TIMES * want.error, f"{name}: off by {off:.3g}, rounding accounts for {want.error:.3g}"


def fault_on_device(model: RandomModel, device: str, precision: str) -> str | None:
    """What is wrong with a model on a device, if anything."""
    try:
        check_on_device(model, device, precision)
    except (AssertionError, MlcError) as error:
        return f"{type(error).__name__}: {error}"
    return None

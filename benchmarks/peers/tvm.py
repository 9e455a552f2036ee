"""TVM (Relax): its ONNX front end and its default CPU pipeline, not tuned, ahead of time into a shared library.

An exported library is linked by a C++ compiler.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.peers import Options, Session
from benchmarks.stats import Arrays

NAMES = "names.txt"


def compile(model: Path, folder: Path, options: Options) -> Path:
    """ONNX to Relax to a library for the host's processor."""
    import llvmlite.binding as llvm
    import tvm
    from tvm.relax.frontend.onnx import from_onnx

    loaded = onnx.load(model)
    module = from_onnx(loaded, keep_params_in_input=False, sanitize_input_names=False)
    target = tvm.target.Target({"kind": "llvm", "mcpu": llvm.get_host_cpu_name()})
    library = folder / "model.so"
    tvm.compile(module, target).export_library(str(library))
    weights = {tensor.name for tensor in loaded.graph.initializer}
    inputs = [value.name for value in loaded.graph.input if value.name not in weights]
    outputs = [value.name for value in loaded.graph.output]
    library.with_name(NAMES).write_text("\n".join([str(len(inputs)), *inputs, *outputs]))
    return library


def load(file: Path, threads: int, inputs: Arrays, options: Options) -> Session:
    """The library in TVM's virtual machine."""
    # Its pool binds threads to cores of its own choice, beyond those that the process may use.
    os.environ |= {"TVM_NUM_THREADS": str(threads), "TVM_BIND_THREADS": "0"}
    import tvm
    from tvm import relax

    count, *names = file.with_name(NAMES).read_text().split("\n")
    device = tvm.cpu()
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(file)), device)
    feeds = [tvm.runtime.tensor(inputs[name], device) for name in names[: int(count)]]
    function = machine["main"]
    results: list[Any] = []

    def run() -> None:
        results[:] = [function(*feeds)]

    def outputs() -> Arrays:
        value = results[0]
        arrays = [value] if hasattr(value, "numpy") else list(value)
        return {name: np.asarray(array.numpy()) for name, array in zip(names[int(count) :], arrays, strict=True)}

    return Session(run, outputs)

"""IREE: the ONNX graph imported into MLIR and compiled ahead of time for the host's processor."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from iree import compiler, runtime
from iree.compiler.extras import onnx_importer
from iree.compiler.ir import Context

from benchmarks.peers import Options, Session
from benchmarks.stats import Arrays

# Its defaults are an order of magnitude slower: convolutions as matrix products took ResNet-18 from 970 to 108 ms.
FLAGS = [
    "--iree-llvmcpu-target-cpu=host",
    "--iree-llvmcpu-enable-ukernels=all",
    "--iree-opt-level=O3",
    "--iree-opt-data-tiling",
    "--iree-global-opt-use-im2col-for-convs",
    # Its own kernels for BERT's layer normalisation need more than the 32 KiB that it allows by default.
    "--iree-llvmcpu-stack-allocation-limit=262144",
]
# Names are not kept by the import; they travel beside the module.
NAMES = "names.txt"


def compile(model: Path, folder: Path, options: Options) -> Path:
    """ONNX to MLIR to a module for the virtual machine."""
    loaded = onnx.shape_inference.infer_shapes(onnx.load(model), data_prop=True)
    source = folder / "model.mlirbc"
    with Context() as context:
        info = onnx_importer.ModelInfo(loaded)
        module = info.create_module(context=context).operation
        onnx_importer.NodeImporter.define_function(info.main_graph, module).import_all()
        with source.open("wb") as file:
            module.write_bytecode(file)
    target = folder / "model.vmfb"
    compiler.compile_file(
        str(source), output_file=str(target), input_type="onnx", target_backends=["llvm-cpu"], extra_args=FLAGS
    )
    source.unlink()
    weights = {tensor.name for tensor in loaded.graph.initializer}
    inputs = [value.name for value in loaded.graph.input if value.name not in weights]
    outputs = [value.name for value in loaded.graph.output]
    target.with_name(NAMES).write_text("\n".join([str(len(inputs)), loaded.graph.name, *inputs, *outputs]))
    return target


def load(file: Path, threads: int, inputs: Arrays, options: Options) -> Session:
    """The module on this thread alone, or on a pool pinned to the cores that the process may use."""
    cores = sorted(os.sched_getaffinity(0))[:threads]
    runtime.flags.parse_flags("--task_topology_cpu_ids=" + ",".join(map(str, cores)))
    device = runtime.get_device("local-sync" if threads == 1 else "local-task")
    config = runtime.Config(device=device)
    count, name, *names = file.with_name(NAMES).read_text().split("\n")
    module = runtime.load_vm_module(runtime.VmModule.mmap(config.vm_instance, str(file)), config)
    function = module[name] if name in module.vm_module.function_names else module[module.vm_module.function_names[0]]
    feeds = [runtime.asdevicearray(device, inputs[name]) for name in names[: int(count)]]
    results: list[Any] = []

    def run() -> None:
        results[:] = [function(*feeds)]

    def outputs() -> Arrays:
        arrays = results[0] if isinstance(results[0], tuple | list) else [results[0]]
        return {name: np.asarray(array.to_host()) for name, array in zip(names[int(count) :], arrays, strict=True)}

    return Session(run, outputs)

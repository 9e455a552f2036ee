"""ONNX Runtime, with the settings of its own performance test: everything optimised, tensors bound."""

from __future__ import annotations

from pathlib import Path

import onnxruntime

from benchmarks.peers import Options, Session, aligned
from benchmarks.stats import Arrays


def load(file: Path, threads: int, inputs: Arrays, options: Options) -> Session:
    """A session on an ``.onnx`` file."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.inter_op_num_threads = 1
    settings.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    # Its threads may spin between operators, which it needs for its best times; they go to sleep soon after a run.
    settings.add_session_config_entry("session.intra_op.allow_spinning", "1")
    session = onnxruntime.InferenceSession(str(file), settings, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    # Shapes are only known for certain after a run.
    first = session.run(names, dict(inputs))
    outputs = {name: aligned(array) for name, array in zip(names, first, strict=True)}
    wanted = {value.name for value in session.get_inputs()}
    binding = session.io_binding()
    for name, array in inputs.items():
        if name in wanted:
            binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in outputs.items()}
    for name, value in values.items():
        binding.bind_ortvalue_output(name, value)
    return Session(
        lambda: session.run_with_iobinding(binding), lambda: {name: value.numpy() for name, value in values.items()}
    )

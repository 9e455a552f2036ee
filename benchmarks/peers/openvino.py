"""OpenVINO on its CPU plugin, from the ONNX file, set up for the latency of one request at a time."""

from __future__ import annotations

from pathlib import Path

import openvino

from benchmarks.peers import Options, Session
from benchmarks.stats import Arrays


def load(file: Path, threads: int, inputs: Arrays, options: Options) -> Session:
    """A request with the inputs bound; outputs are read where the plugin leaves them."""
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
    }
    compiled = openvino.Core().compile_model(str(file), "CPU", settings)
    request = compiled.create_infer_request()
    for name, array in inputs.items():
        request.set_tensor(name, openvino.Tensor(array, shared_memory=True))
    names = [next(iter(port.get_names())) for port in compiled.outputs]
    return Session(
        lambda: request.infer(share_outputs=True),
        lambda: {name: request.get_output_tensor(index).data.copy() for index, name in enumerate(names)},
    )

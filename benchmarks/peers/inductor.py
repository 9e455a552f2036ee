"""torch.compile with its default back end, which generates C++ and calls oneDNN; a C++ compiler is needed.

The model is written in PyTorch's functional operators. Weights are frozen, so that they are folded and packed, and the
C++ wrapper calls the kernels without going through Python; ``torch[eager=on]`` runs without compiling.
"""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.peers import Options, Session
from benchmarks.peers.torch_graph import OnnxModule
from benchmarks.stats import Arrays

# Weights folded and packed, no Python between kernels; channels-last layouts were slower on every network tried.
OPTIONS = {"freezing": True, "cpp_wrapper": True, "layout_optimization": False}


def load(file: Path, threads: int, inputs: Arrays, options: Options) -> Session:
    """A compiled module; compiling happens in the first call."""
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    module = OnnxModule(file).eval()
    run = module if options.get("eager") == "on" else torch.compile(module, options=OPTIONS)
    tensors = [torch.from_numpy(inputs[name]) for name in module.inputs]
    results: list[tuple[torch.Tensor, ...]] = [run(*tensors)]

    def once() -> None:
        results[0] = run(*tensors)

    return Session(once, lambda: {name: t.numpy() for name, t in zip(module.results, results[0], strict=True)})

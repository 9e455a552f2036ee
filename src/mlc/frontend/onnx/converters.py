"""The modules that hold the converters; importing this one fills the table of ``registry``."""

from __future__ import annotations

from mlc.frontend.onnx import (
    attention,
    classic,
    constants,
    contrib,
    conv,
    elementwise,
    grid,
    index,
    matmul,
    norm,
    pooling,
    quantized,
    random,
    recurrent,
    reduction,
    resize,
    sampling,
    shape,
    signal,
    training,
)

__all__ = [
    "attention",
    "classic",
    "constants",
    "contrib",
    "conv",
    "elementwise",
    "grid",
    "index",
    "matmul",
    "norm",
    "pooling",
    "quantized",
    "random",
    "recurrent",
    "reduction",
    "resize",
    "sampling",
    "shape",
    "signal",
    "training",
]

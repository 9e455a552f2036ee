"""The modules that hold the converters; importing this one fills the table of ``registry``."""

from __future__ import annotations

from mlc.frontend.tflite import (
    activations,
    conv,
    detection,
    elementwise,
    index,
    pooling,
    recurrent,
    reduction,
    resize,
    shape,
    softmax,
)

__all__ = [
    "activations",
    "conv",
    "detection",
    "elementwise",
    "index",
    "pooling",
    "recurrent",
    "reduction",
    "resize",
    "shape",
    "softmax",
]

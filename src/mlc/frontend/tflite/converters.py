"""The modules that hold the converters; importing this one fills the table of ``registry``."""

from __future__ import annotations

from mlc.frontend.tflite import activations, conv, elementwise, index, pooling, reduction, resize, shape, softmax

__all__ = ["activations", "conv", "elementwise", "index", "pooling", "reduction", "resize", "shape", "softmax"]

"""The modules that hold the converters; importing this one fills the table of ``registry``."""

from __future__ import annotations

from mlc.frontend.onnx import conv, matmul, norm, pooling

__all__ = ["conv", "matmul", "norm", "pooling"]

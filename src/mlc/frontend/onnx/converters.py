"""The modules that hold the converters; importing this one fills the table of ``registry``."""

from __future__ import annotations

from mlc.frontend.onnx import conv, pooling

__all__ = ["conv", "pooling"]

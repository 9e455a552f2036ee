"""Quantisation of float models to integers: one choice of products and one calibration for two arithmetics.

Processors rescale by any factor (:mod:`~mlc.rewrite.quantization.steps`), some accelerators by shifts only
(:mod:`~mlc.rewrite.quantization.shifts`); the target says which (:class:`mlc.targets.base.Shifting`).
"""

from mlc.rewrite.quantization.calibrate import tapped
from mlc.rewrite.quantization.choice import Layer, Precision, QuantizeOptions, layers_of
from mlc.rewrite.quantization.quantize import WATCHED, Quantized, interpreted, quantize
from mlc.rewrite.quantization.ranges import Calibration, Method
from mlc.rewrite.quantization.steps import Steps

__all__ = [
    "WATCHED",
    "Calibration",
    "Layer",
    "Method",
    "Precision",
    "QuantizeOptions",
    "Quantized",
    "Steps",
    "interpreted",
    "layers_of",
    "quantize",
    "tapped",
]

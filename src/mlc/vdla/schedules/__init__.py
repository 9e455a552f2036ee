"""Schedules of layers: templates with knobs, and the choice among them.

A product is a convolution over blocks of channels, products of matrices included (rows are pixels). ``expression``
states a part of one, ``conv`` schedules it, ``predict`` says how long it will take, and ``select`` chooses. Layers
without a product are in ``elementwise``; what both make of their sums is in ``finish``.
"""

from mlc.vdla.schedules.conv import LayerPlan
from mlc.vdla.schedules.layers import plan_layer

__all__ = ["LayerPlan", "plan_layer"]

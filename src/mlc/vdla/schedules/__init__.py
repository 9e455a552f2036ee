"""Schedules of layers: templates with knobs, and the choice among them.

``product`` lays out what an operator states in blocks of channels (rows of matrices are pixels) and takes parts of it,
``shape`` reads their extents, ``conv`` schedules them, ``predict`` says how long they will take, and ``select``
chooses. Layers without a product are in ``elementwise``; what both make of their sums is in ``finish``,
from what the operators state (``stated``).
"""

from mlc.vdla.schedules.conv import LayerPlan
from mlc.vdla.schedules.layers import plan_layer

__all__ = ["LayerPlan", "plan_layer"]

"""Schedules of layers: templates with knobs, and the choice among them.

Every layer is a convolution over blocks of channels, products of matrices included (rows are pixels). ``expression``
states a part of one, ``conv`` schedules it, ``predict`` says how long it will take, and ``select`` chooses.
"""

from mlc.vdla.schedules.select import LayerPlan, plan_layer

__all__ = ["LayerPlan", "plan_layer"]

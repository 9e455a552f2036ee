"""The schedule of any layer."""

from __future__ import annotations

from mlc.lower.knobs import Knobs
from mlc.vdla.config import VdlaConfig
from mlc.vdla.layer import Convolution, Elementwise, Layer
from mlc.vdla.schedules.conv import LayerPlan
from mlc.vdla.schedules.elementwise import plan_elementwise
from mlc.vdla.schedules.select import plan_convolution


def plan_layer(layer: Layer, config: VdlaConfig, knobs: Knobs) -> LayerPlan:
    """Schedule a layer.

    Args:
        layer: what to compute.
        config: the accelerator.
        knobs: are asked for every choice; their defaults are what is expected to be fastest.
    Raises:
        ScheduleError: the configuration is refused.
    """
    match layer:
        case Elementwise():
            return plan_elementwise(layer, config, knobs)
        case Convolution():
            return plan_convolution(layer, config, knobs)
    raise AssertionError(layer)

"""By which algorithms a device can compute an operator."""

from __future__ import annotations

from collections.abc import Sequence

from mlc.ir.graph import Node
from mlc.ir.types import f32
from mlc.ops import get
from mlc.ops.algorithms import Algorithm
from mlc.targets.gpu.record import Gpu


def algorithms_of(node: Node, target: Gpu) -> Sequence[Algorithm]:
    """Those that there are schedules for, the estimated fastest first; Winograd's is not computed by vectors.

    Args:
        node: an operator; a convolution has 3×3 taps and stride 1, or a choice is not asked for.
        target: the device.
    """
    from mlc.targets.gpu.schedules.attention import attention_algorithms
    from mlc.targets.gpu.schedules.winograd import winograd_algorithms

    if node.op is get("attention"):
        return attention_algorithms(node.inputs[0].type.shape, node.inputs[2].type.shape, target)

    if not target.vectors and node.op is get("conv") and all(v.type.dtype is f32 for v in node.inputs):
        x, w = (v.type for v in node.inputs)
        return winograd_algorithms(x, w, node.attrs["pads"], target)
    return (Algorithm.DIRECT,)

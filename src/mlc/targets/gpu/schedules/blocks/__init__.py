"""Schedules over blocks of channels: for devices whose threads compute with vectors, of which a block is one, and for
those whose Tensor Cores take a block of terms at a time."""

from mlc.targets.gpu.schedules.blocks.convolution import BLOCKED_CONVOLUTION
from mlc.targets.gpu.schedules.blocks.inherited import FOLLOWING
from mlc.targets.gpu.schedules.blocks.product import BLOCKED_PRODUCT
from mlc.targets.gpu.schedules.blocks.tensor import TENSOR_CONVOLUTION, TENSOR_PRODUCT
from mlc.targets.gpu.schedules.blocks.window import BLOCKED_WINDOW

BLOCKED = (BLOCKED_CONVOLUTION, BLOCKED_PRODUCT, BLOCKED_WINDOW, FOLLOWING)
TENSOR = (TENSOR_CONVOLUTION, TENSOR_PRODUCT, BLOCKED_WINDOW, FOLLOWING)

__all__ = ["BLOCKED", "FOLLOWING", "TENSOR"]

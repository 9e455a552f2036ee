"""Schedules for devices whose threads compute with vectors: channels lie in blocks, a block is a vector."""

from mlc.targets.gpu.schedules.blocks.convolution import BLOCKED_CONVOLUTION
from mlc.targets.gpu.schedules.blocks.inherited import BLOCKED_ELEMENTS
from mlc.targets.gpu.schedules.blocks.product import BLOCKED_PRODUCT
from mlc.targets.gpu.schedules.blocks.window import BLOCKED_WINDOW

BLOCKED = (BLOCKED_CONVOLUTION, BLOCKED_PRODUCT, BLOCKED_WINDOW, BLOCKED_ELEMENTS)

__all__ = ["BLOCKED"]

"""From a schedule to one loop AST: primitives, bounds, the loop nest, and one file a loop pass."""

from mlc.lower.pipeline import lower
from mlc.lower.schedule import Schedule
from mlc.lower.stage import Stage

__all__ = ["Schedule", "Stage", "lower"]

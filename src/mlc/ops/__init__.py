"""The operators: the meaning of each in one place (type rule, expression, fusion kind), one file a family."""

from mlc.ops import conv, matmul, norm, pooling, softmax  # noqa: F401  (importing registers)
from mlc.ops.registry import get, operators

__all__ = ["get", "operators"]

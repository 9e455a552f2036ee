"""The operators: the meaning of each in one place (type rule, expression, fusion kind), one file a family."""

# importing a family registers its operators
from mlc.ops import (  # noqa: F401
    attention,
    bits,
    conv,
    conv_transpose,
    elementwise,
    index,
    matmul,
    norm,
    pooling,
    quantized,
    random,
    reduction,
    resize,
    scan,
    scatter,
    shape,
    softmax,
    winograd,
)
from mlc.ops.registry import get, operators

__all__ = ["get", "operators"]

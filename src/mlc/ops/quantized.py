"""Operators of quantised networks that the elementwise table lacks."""

from __future__ import annotations

from collections.abc import Sequence

from mlc.ir import te
from mlc.ir.expr import Expr, Load, binary, select
from mlc.ir.graph import Attrs, FusionKind
from mlc.ir.index import Linear
from mlc.ir.types import TensorType
from mlc.ops._broadcast import broadcast_shape, check_count, check_kinds
from mlc.ops.common import broadcast_load, check_same_dtype
from mlc.ops.registry import operator


def _infer_round_shift(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
    check_count("round_shift", types, 2)
    check_same_dtype("round_shift", *types)
    check_kinds("round_shift", types[0], "i")
    return [TensorType(broadcast_shape("round_shift", *types), types[0].dtype)]


def _rounded(x: Load, by: Load) -> Expr:
    """Halves go up: the last bit shifted out is added, which no sum can overflow by."""
    half = binary("and", binary("shr", x, binary("max", by, 1) - 1), 1)
    return select(binary("gt", by, 0), binary("shr", x, by) + half, x)


@operator("round_shift", FusionKind.INJECTIVE, _infer_round_shift, elementwise=True)
def round_shift(inputs: Sequence[te.Tensor], attrs: Attrs) -> Sequence[te.Tensor]:
    """``floor(x / 2**by + 1/2)``, exact: how fixed-point hardware drops ``by`` binary places.

    Operands are signed integers of one type and broadcast; ``by`` is from 0 to the width less one.
    """
    x, by = inputs
    shape = broadcast_shape("round_shift", *[TensorType(t.shape, t.dtype) for t in inputs])

    def element(*i: Linear) -> Expr:
        return _rounded(broadcast_load(x, i), broadcast_load(by, i))

    return [te.compute(shape, element, "round_shift")]

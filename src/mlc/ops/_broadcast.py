"""Type rules of operators that work element by element or along named axes."""

from __future__ import annotations

from collections.abc import Sequence

from mlc.ir.types import TensorType
from mlc.ops.common import check


def check_count(op: str, types: Sequence[TensorType], count: int) -> None:
    """Refuse a wrong number of operands.

    Raises:
        VerifyError: there are not ``count`` of them.
    """
    check(len(types) == count, op, f"{len(types)} operands, {count} are needed")


def check_kinds(op: str, x: TensorType, kinds: str, what: str = "x") -> None:
    """Refuse an element type whose ``kind`` is not in ``kinds`` (letters of :attr:`DType.kind`).

    Raises:
        VerifyError: it is not.
    """
    words = {"f": "float", "i": "signed", "u": "unsigned", "b": "bool"}
    wanted = ", ".join(words[k] for k in kinds)
    check(x.dtype.kind in kinds, op, f"{what} is {x.dtype}, it may be: {wanted}")


def broadcast_shape(op: str, *types: TensorType) -> tuple[int, ...]:
    """The shape that all operands repeat to, numpy style.

    Raises:
        VerifyError: two extents differ and neither is 1.
    """
    rank = max(t.rank for t in types)
    out = [1] * rank
    for t in types:
        for d, n in enumerate(t.shape, rank - t.rank):
            if n != 1:
                fits = out[d] in (1, n)
                check(fits, op, f"shapes {' and '.join(str(list(u.shape)) for u in types)} do not broadcast")
                out[d] = n
    return tuple(out)


def check_axes(op: str, axes: Sequence[int], rank: int) -> None:
    """Refuse axes that are out of range or occur twice; they are counted from the front here.

    Raises:
        VerifyError: one does.
    """
    for a in axes:
        check(0 <= a < rank, op, f"axis {a} of a tensor of rank {rank}")
    check(len(set(axes)) == len(axes), op, f"axes {list(axes)} repeat")

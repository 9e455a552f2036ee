"""What several families of operators share: checks, accumulation types, broadcasting loads."""

from __future__ import annotations

from collections.abc import Sequence

from mlc.errors import VerifyError
from mlc.ir import te
from mlc.ir.expr import Expr, Load, cast
from mlc.ir.index import IndexLike
from mlc.ir.types import DType, TensorType, f32, i32


def check(holds: bool, op: str, fault: str) -> None:
    """Refuse a mistyped call.

    Raises:
        VerifyError: ``holds`` is false; the message names the operator and the fault.
    """
    if not holds:
        raise VerifyError(f"{op}: {fault}")


def check_float(op: str, x: TensorType, what: str = "x") -> None:
    """Refuse anything but floating point."""
    check(x.dtype.is_float, op, f"{what} is {x.dtype}, a float type is needed")


def check_same_dtype(op: str, x: TensorType, *others: TensorType) -> None:
    """Refuse operands of different element types."""
    for other in others:
        check(other.dtype is x.dtype, op, f"operands are {x.dtype} and {other.dtype}")


def normal_axis(op: str, axis: int, rank: int) -> int:
    """``axis`` counted from the front.

    Raises:
        VerifyError: there is no such axis.
    """
    check(-rank <= axis < rank, op, f"axis {axis} of a tensor of rank {rank}")
    return axis % rank


def accumulator(dtype: DType) -> DType:
    """The type in which sums of ``dtype`` are kept: f32 for the 16-bit floats, else ``dtype`` itself."""
    return f32 if dtype.is_float and dtype.bits == 16 else dtype


def product_type(op: str, a: DType, b: DType) -> DType:
    """Element type of a sum of products: integers of at most 16 bits, mixed or not, are summed in i32.

    Raises:
        VerifyError: the types differ otherwise, or are not numbers.
    """
    if all(t.is_int and t.bits <= 16 for t in (a, b)):
        return i32
    check(a is b, op, f"operands are {a} and {b}")
    check(a.kind != "b", op, "operands are bool")
    return a


def wide(e: Expr) -> Expr:
    """``e`` in the type in which sums of it are kept."""
    return cast(e, accumulator(e.dtype))


def product(a: Expr, b: Expr, dtype: DType, sums: DType | None = None) -> Expr:
    """A term of a sum of products whose result is ``dtype``: operands widened first, to ``sums`` if that is given."""
    wider = accumulator(dtype) if sums is None else sums
    return cast(a, wider) * cast(b, wider)


def narrowed(t: te.Tensor, dtype: DType) -> te.Tensor:
    """``t`` rounded to ``dtype`` in a stage of its own; ``t`` itself when it has that type."""
    if t.dtype is dtype:
        return t
    names = [a.name for a in t.op.axes] if t.op is not None else None
    return te.compute(t.shape, lambda *i: cast(t[tuple(i)], dtype), f"{t.name}_{dtype}", axis_names=names, tag="cast")


def broadcast_load(t: te.Tensor, indices: Sequence[IndexLike]) -> Load:
    """The element of ``t`` at the trailing ``indices``, numpy style: axes of extent 1 repeat."""
    tail = indices[len(indices) - t.rank :]
    return t[tuple(0 if n == 1 else i for n, i in zip(t.shape, tail, strict=True))]


def broadcastable_to(source: Sequence[int], target: Sequence[int]) -> bool:
    """Whether ``source`` repeats to exactly ``target``, numpy style."""
    if len(source) > len(target):
        return False
    tail = target[len(target) - len(source) :]
    return all(a in (1, b) for a, b in zip(source, tail, strict=True))

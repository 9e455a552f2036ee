"""Random numbers: a function of a key, of a stream and of the element's position, so that any order gives the same."""

from __future__ import annotations

from collections.abc import Sequence

from mlc.ir import te
from mlc.ir.expr import Expr, IndexValue, binary, call, cast, const
from mlc.ir.graph import Attrs, FusionKind, Graph, Value
from mlc.ir.index import Linear
from mlc.ir.types import TensorType, dtype_of, f32, f64, i32, u32, u64
from mlc.ops._broadcast import check_count
from mlc.ops.common import check
from mlc.ops.registry import operator

MAX_ELEMENTS = 1 << 32
"""A counter's first word tells the elements of a tensor apart, its second word the streams."""

MAX_STREAMS = 1 << 31

# Digits that the type can hold below 1, so that rounding never gives 1 itself; of f64 they come from two words.
_DIGITS = {"f16": 11, "bf16": 8, "f32": 24}


def _infer_uniform(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
    check_count("uniform", types, 1)
    check(types[0] == TensorType((), u64), "uniform", f"the key is {types[0]}, not u64[]")
    out = TensorType(tuple(attrs["shape"]), dtype_of(attrs["dtype"]))
    check(out.dtype.is_float, "uniform", f"the result is {out.dtype}, a float type is needed")
    check(out.size <= MAX_ELEMENTS, "uniform", f"{out} has more than {MAX_ELEMENTS} elements")
    check(0 <= attrs["stream"] < MAX_STREAMS, "uniform", f"there is no stream {attrs['stream']}")
    return [out]


def seed_of(graph: Graph) -> Value | None:
    """The input of a graph by which it draws random numbers, if it draws any."""
    keys = {n.inputs[0] for n in graph.nodes if n.op.name == "uniform"}
    return next((v for v in graph.inputs if v in keys), None)


@operator("uniform", FusionKind.INJECTIVE, _infer_uniform, shape=..., stream=0, dtype="f32")
def _uniform(inputs: Sequence[te.Tensor], attrs: Attrs) -> Sequence[te.Tensor]:
    """Uniform numbers in ``[0, 1)``, each a multiple of a power of two that its type holds exactly.

    The same key and stream give the same numbers; streams are independent of each other, and so are keys.
    """
    (key,) = inputs
    shape, dtype = tuple(attrs["shape"]), dtype_of(attrs["dtype"])

    def word(position: Linear, part: int) -> Expr:
        low, high = cast(key[()], u32), cast(binary("shr", key[()], 32), u32)
        counter = IndexValue(position, u32)
        return call("threefry", low, high, counter, const(2 * attrs["stream"] + part, u32))

    def element(*indices: Linear) -> Expr:
        position = Linear({}, 0)
        for i, n in zip(indices, shape, strict=True):
            position = position * n + i
        if dtype is f64:
            high = cast(binary("shr", word(position, 0), 5), f64)
            low = cast(binary("shr", word(position, 1), 6), f64)
            return (high * float(1 << 26) + low) * 2.0**-53
        digits = _DIGITS[dtype.name]
        # what is left of the word is positive as a signed number, too, which converts in one instruction anywhere
        kept = cast(binary("shr", word(position, 0), 32 - digits), i32)
        return cast(cast(kept, f32) * 2.0**-digits, dtype)

    return [te.compute(shape, element, "uniform", tag="uniform")]

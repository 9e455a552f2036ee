"""The vector math library of the LLVM targets: functions of whole vectors as textual LLVM IR (LLVM 22).

The common functions of single precision are polynomials (:mod:`mlc.targets.llvm.math_f32`); all others, and everything
in double precision, call the C library lane by lane. Half precision types are computed in ``f32`` by the caller.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from mlc.errors import CodegenError
from mlc.ir.threefry import threefry
from mlc.targets.llvm import math_f32
from mlc.targets.llvm.math_emit import Emitter, Value

# Every function there is, and the number of its operands.
_UNARY = "exp log tanh sigmoid erf sin cos tan asin acos atan sinh cosh asinh acosh atanh"
ARITY = {**{fn: 1 for fn in _UNARY.split()}, "pow": 2, "threefry": 4}
_KINDS = {"f32": "float", "f64": "double", "u32": "i32"}


def math_symbol(fn: str, dtype_name: str, lanes: int) -> str:
    """The name of a function, such as ``mlc.exp.v16f32`` (``v1`` is the scalar one).

    Raises:
        CodegenError: there is no such function.
    """
    if fn not in ARITY:
        raise CodegenError(f"no vector function {fn!r}", hint="known: " + ", ".join(ARITY))
    if dtype_name not in _KINDS or (dtype_name == "u32") != (fn == "threefry"):
        raise CodegenError(f"{fn}: no vector functions of {dtype_name!r}", hint="compute it in f32")
    if lanes < 1:
        raise CodegenError(f"{fn}: a vector cannot have {lanes} lanes")
    return f"mlc.{fn}.v{lanes}{dtype_name}"


def math_definition(fn: str, dtype_name: str, lanes: int) -> str:
    """The function as LLVM IR text, always inlined: vectors of ``lanes`` elements in and out, scalars when that is 1.

    The text may call functions of the C library, which :func:`math_module` declares.

    Raises:
        CodegenError: there is no such function.
    """
    return _build(fn, dtype_name, lanes)[0]


def math_module(requests: Iterable[tuple[str, str, int]]) -> str:
    """Definitions of all the functions asked for, each once, and the declarations they need.

    Args:
        requests: (function, ``f32``, ``f64`` or ``u32``, lanes) triples.
    Raises:
        CodegenError: there is no such function.
    """
    built = [_build(*request) for request in dict.fromkeys(requests)]
    declarations = sorted({line for _, lines in built for line in lines})
    return "\n".join([*declarations, "", *(text for text, _ in built)])


@cache
def _build(fn: str, dtype_name: str, lanes: int) -> tuple[str, tuple[str, ...]]:
    """The definition and the declarations it needs."""
    symbol = math_symbol(fn, dtype_name, lanes)
    e = Emitter(lanes)
    kind = _KINDS[dtype_name]
    operands = [Value(e, kind, name) for name in ("%x", "%y", "%z", "%w")[: ARITY[fn]]]
    if fn == "threefry":
        result = threefry(lambda number: e.value(kind, number), *operands)
    elif dtype_name == "f32" and fn in math_f32.FUNCTIONS:
        result = math_f32.FUNCTIONS[fn](e, *operands)
    elif fn == "sigmoid":
        result = _sigmoid_f64(e, operands[0])
    else:
        result = e.call_each(fn + ("f" if dtype_name == "f32" else ""), operands)
    return e.function(symbol, operands, result), tuple(e.declarations)


def _sigmoid_f64(e: Emitter, x: Value) -> Value:
    """As in single precision: no overflow for negative x."""
    z = e.call_each("exp", [-abs(x)])
    return (x < 0.0).select(z, 1.0) / (z + 1.0)

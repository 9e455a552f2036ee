"""Every scalar operator as machine code, on every element type, for scalars and vectors: what the interpreter says."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from mlc.errors import CodegenError
from mlc.ir import loop
from mlc.ir.expr import BINARY, INTRINSICS, Binary, Call, Cast, Const, Expr, Load, binary, call, cast, const, select
from mlc.ir.index import Linear, Var, as_index
from mlc.ir.interp import run_function
from mlc.ir.interp.scalar import is_float
from mlc.ir.types import ALL_DTYPES, DType, bf16, boolean, f16, f32, f64, i8, i16, i32, u8
from mlc.targets.llvm.function import emit_function
from mlc.targets.llvm.module import Machine, ModuleText, assembly_of
from tests.unit.targets.llvm.host import Kernel

DTYPES = list(ALL_DTYPES.values())
LANES = [0, 4, 5, 16]
COUNT = 400  # pairs of operands, a multiple of all lanes

EXACT = {"popcount", "sqrt", "floor", "ceil", "round", "trunc", "neg", "abs", "sign", "not", "isnan", "isinf"}
TRANSCENDENTAL = {*INTRINSICS, "pow"} - EXACT
# two values of equal rank for which IEEE 754 leaves a choice: the sign of a zero
EITHER_ZERO = {"min", "max", "sign", "mod"}
TOLERANCE = {f16: 2.0**-10, bf16: 2.0**-7, f32: 1e-6, f64: 1e-14}


def special(dtype: DType) -> np.ndarray:
    """Values that operators trip over."""
    if dtype is boolean:
        return np.array([False, True])
    if not dtype.is_float:
        lo, hi, bits = int(dtype.min_value), int(dtype.max_value), dtype.bits
        wished = [0, 1, 2, 3, 7, -1, -2, -3, -7, lo, lo + 1, hi, hi - 1, bits - 1, bits, bits + 1, 100, 120]
        return np.array([n for n in wished if lo <= n <= hi], dtype.numpy)
    tiny = {f16: 6e-8, bf16: 1e-40, f32: 1e-45, f64: 5e-324}[dtype]
    top = {f16: 65504, bf16: 3.3895e38, f32: 3.4028235e38, f64: 1.7976931348623157e308}[dtype]
    plus = [0.0, 0.5, 1.0, 1.5, 2.5, 3.0, 7.25, 100.0, tiny, top, np.inf]
    return np.array([*plus, *[-x for x in plus], np.nan], np.float64).astype(dtype.numpy)


def pairs(dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of special values, or as many as fit, and random ones."""
    x = special(dtype)
    rng = np.random.default_rng(3)
    both = np.array([(p, q) for p in range(len(x)) for q in range(len(x))])
    chosen = rng.permutation(both)[:COUNT] if len(both) >= COUNT else np.resize(both, (COUNT, 2))
    return x[chosen[:, 0]], x[chosen[:, 1]]


Build = Callable[[Load, Load], Expr]


def elementwise(dtype: DType, lanes: int, builds: Sequence[Build]) -> loop.Function:
    """A kernel that applies each of the functions to pairs of elements."""
    a, b = loop.Buffer("a", (COUNT,), dtype), loop.Buffer("b", (COUNT,), dtype)
    width = max(lanes, 1)
    at = Var("i", 0, COUNT // width - 1)
    lane = Var("lane", 0, lanes - 1) if lanes else None
    where: Linear = as_index(at) * width + (lane if lane is not None else 0)
    values = [build(Load(a, (where,)), Load(b, (where,))) for build in builds]
    outs = [loop.Buffer(f"out{k}", (COUNT,), v.dtype) for k, v in enumerate(values)]
    body = loop.seq([loop.Store(o, (where,), v, lane) for o, v in zip(outs, values, strict=True)])
    whole = loop.For(at, COUNT // width, loop.ForKind.SERIAL, body)
    return loop.Function("kernel", (a, b, *outs), len(outs), whole)


def check(dtype: DType, lanes: int, opt_level: int, builds: dict[str, Build]) -> None:
    """The compiled kernel equals the interpreted one (which takes all elements at once, to save time)."""
    a, b = pairs(dtype)
    fn, oracle = (elementwise(dtype, n, list(builds.values())) for n in (lanes, COUNT))
    got, want = ([np.zeros(COUNT, o.dtype.numpy) for o in fn.params[2:]] for _ in range(2))
    run_function(oracle, [a, b, *want])
    Kernel(fn, opt_level).run([a, b, *got], at_end=bool(lanes % 2))
    for name, x, y in zip(builds, got, want, strict=True):
        wrong = ~equal(name, x, y)
        examples = [f"{name}({a[k]}, {b[k]}) gives {x[k]}, not {y[k]}" for k in np.flatnonzero(wrong)[:5]]
        assert not examples, f"{dtype}, {lanes} lanes: " + "; ".join(examples)


def equal(name: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Where two results are the same value: to the last bit, but for functions that nobody computes exactly."""
    if not is_float(x):
        return x == y
    op = name.split()[0]
    wide, other = x.astype(np.float64), y.astype(np.float64)
    same = (np.isnan(wide) & np.isnan(other)) | (wide == other)
    if op not in EITHER_ZERO:
        same &= np.isnan(wide) | (np.signbit(wide) == np.signbit(other))
    if op in TRANSCENDENTAL:
        dtype = next(t for t in TOLERANCE if t.numpy == x.dtype)
        smallest = {f16: 6e-5, bf16: 1.2e-38, f32: 1.2e-38, f64: 2.3e-308}[dtype]
        with np.errstate(invalid="ignore"):
            same |= np.abs(wide - other) <= TOLERANCE[dtype] * np.maximum(np.abs(other), smallest)
    return same


def _binaries(dtype: DType) -> dict[str, Build]:
    ops = [op for op, (kinds, _) in BINARY.items() if dtype.kind in kinds]
    return {op: lambda x, y, op=op: binary(op, x, y) for op in ops}  # type: ignore[misc]


def _unaries(dtype: DType) -> dict[str, Build]:
    fns = [fn for fn, (arity, kinds, _) in INTRINSICS.items() if arity == 1 and dtype.kind in kinds]
    builds: dict[str, Build] = {fn: lambda x, _, fn=fn: call(fn, x) for fn in fns}  # type: ignore[misc]
    if "nearest" in builds:  # of what fits
        builds["nearest"] = lambda x, _: call("nearest", select(binary("lt", call("abs", x), 6e4), x, 0.0))
    return builds


def _by_constants(dtype: DType) -> dict[str, Build]:
    """With a literal on one side, which saves guards or changes the instructions."""
    values: list[float] = [0, 1, 3] + ([-1, -3] if dtype.kind in "fi" else [])
    if dtype.is_float:
        values += [float("nan"), float("inf"), -0.0]
    builds: dict[str, Build] = {}
    for op in ("add", "sub", "mul", "div", "mod", "fmod", "min", "max", "shl", "shr", "pow", "lt", "eq"):
        if dtype.kind not in BINARY[op][0]:
            continue
        for v in values:
            builds[f"{op} by {v}"] = lambda x, _, op=op, v=v: Binary(op, x, const(v, dtype), _type(op, dtype))  # type: ignore[misc]
        builds[f"{op} of 1"] = lambda _, y, op=op: Binary(op, const(1, dtype), y, _type(op, dtype))  # type: ignore[misc]
    return builds


def _type(op: str, dtype: DType) -> DType:
    return boolean if BINARY[op][1] else dtype


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_binary_operators(dtype: DType, lanes: int) -> None:
    check(dtype, lanes, 0 if lanes in (0, 5) else 3, _binaries(dtype))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_unary_functions(dtype: DType, lanes: int) -> None:
    check(dtype, lanes, 0 if lanes in (0, 16) else 3, _unaries(dtype))


@pytest.mark.parametrize("lanes", [0, 4])
@pytest.mark.parametrize("dtype", [t for t in DTYPES if t is not boolean], ids=str)
def test_binary_operators_with_a_literal(dtype: DType, lanes: int) -> None:
    check(dtype, lanes, 3 if lanes else 0, _by_constants(dtype))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_casts(dtype: DType, lanes: int) -> None:
    builds: dict[str, Build] = {f"cast to {t}": lambda x, _, t=t: cast(x, t) for t in DTYPES}  # type: ignore[misc]
    check(dtype, lanes, 0 if lanes in (0, 5) else 3, builds)


@pytest.mark.parametrize("lanes", [0, 5])
@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64], ids=str)
def test_conversions_round_once(dtype: DType, lanes: int) -> None:
    """Values in the middle between two of the narrow type, and next to the middle."""
    middles = {f64: 1 + 2.0**-11, f32: 1 + 2.0**-8, f16: 1.0, bf16: 1.0}[dtype]
    narrow = [f16, bf16, f32]
    near = np.array(
        [
            middles,
            middles * (1 + 2.0**-40),
            middles * (1 - 2.0**-40),
            1 + 2.0**-11 + 2.0**-30,
            1 + 2.0**-8 + 2.0**-40,
            65519.99,
            65520,
        ]
    )
    with np.errstate(over="ignore"):
        x = np.resize(np.concatenate([near, -near]), COUNT).astype(dtype.numpy)
        want = [x.astype(t.numpy).astype(np.float64) for t in narrow]
    fn = elementwise(dtype, lanes, [lambda v, _, t=t: cast(v, t) for t in narrow])  # type: ignore[misc]
    got = [np.zeros(COUNT, t.numpy) for t in narrow]
    Kernel(fn).run([x, x, *got])
    for t, y, z in zip(narrow, got, want, strict=True):
        np.testing.assert_array_equal(y.astype(np.float64), z, err_msg=str(t))


@pytest.mark.parametrize(
    "value, message",
    [
        (Binary("and", Const(1.0, f32), Const(2.0, f32), f32), "no instruction for and on f32"),
        (Binary("hypot", Const(1, i32), Const(2, i32), i32), "no instruction for hypot on i32"),
        (Call("exp", (Const(1, i32),), i32), "no instruction for exp on i32"),
    ],
)
def test_unknown_instructions_are_refused(value: Expr, message: str) -> None:
    out = loop.Buffer("out", (1,), value.dtype)
    fn = loop.Function("kernel", (out,), 1, loop.Store(out, (as_index(0),), value))
    with pytest.raises(CodegenError, match=message):
        emit_function(fn, ModuleText())


def test_cast_to_the_same_type_is_nothing() -> None:
    x = Const(1.0, f32)
    assert cast(x, f32) is x
    assert isinstance(cast(x, f64), Cast)


@pytest.mark.parametrize("cpu", ["haswell", "skylake-avx512", "sapphirerapids"])
@pytest.mark.parametrize("source, to", [(f32, u8), (f16, i16), (bf16, i8)], ids=str)
def test_narrow_integers_are_converted_to_by_whole_vectors(cpu: str, source: DType, to: DType) -> None:
    """The conversions of single halves that LLVM chooses for Sapphire Rapids take NaN to the smallest i16."""
    module = ModuleText()
    emit_function(elementwise(source, 16, [lambda x, _: cast(x, to)]), module)
    target = Machine("x86_64-unknown-linux-gnu", cpu, "-prefer-256-bit", 512)
    text = assembly_of(module.text(target).replace("internal void @kernel", "void @kernel"), target)
    assert "vcvttps2dq" in text
    assert not re.search(r"vcvtt[sp][sh]2u?[sw]", text)

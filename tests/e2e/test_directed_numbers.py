"""Numbers at the edge: compiled code means what numpy means, and constants fold to what would have been computed.

Integers wrap, division by zero gives zero, shifts by the width or more leave nothing; NaN goes through everything that
looks at it; denormals are numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.e2e.compiled import LEVELS, Arrays, assert_same, compiled, interpreted, load, network

node = helper.make_node
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
TINY = np.float32(1e-40)  # a denormal
SPECIAL = np.array(
    [
        np.nan,
        np.inf,
        -np.inf,
        0.0,
        -0.0,
        TINY,
        -TINY,
        3.4e38,
        -3.4e38,
        1.2e-38,
        1,
        -1,
        0.5,
        -0.5,
        1.5,
        2.5,
        -2.5,
        7,
        88,
        -104,
    ],
    np.float32,
)


@pytest.fixture(autouse=True)
def _quiet() -> object:
    """NaN and overflow are what these tests are about."""
    with np.errstate(all="ignore"):
        yield


def folded(nodes: list[onnx.NodeProto], stored: Arrays, outputs: list[str]) -> dict[str, np.ndarray]:
    """Outputs of a model that is all constants, so that folding computes it."""
    return compiled(network(nodes, {}, outputs, stored), {})


# -- integers ---------------------------------------------------------------------------------------------------------
def truncated(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """C's division, and 0 where that has none."""
    out = []
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        quotient = 0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        out.append(quotient)
    return wrapped(out, a.dtype)


def modulo(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Python's remainder: the sign is the divisor's."""
    return wrapped([0 if y == 0 else x % y for x, y in zip(a.tolist(), b.tolist(), strict=True)], a.dtype)


def remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """C's remainder: the sign is the dividend's."""
    out = [0 if y == 0 else abs(x) % abs(y) * (-1 if x < 0 else 1) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    return wrapped(out, a.dtype)


def wrapped(values: list[int], dtype: np.dtype) -> np.ndarray:
    bits = dtype.itemsize * 8
    kept = [v % (1 << bits) for v in values]
    if dtype.kind == "i":
        kept = [v - (1 << bits) if v >= 1 << (bits - 1) else v for v in kept]
    return np.array(kept, dtype)


def edges(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of the least, the greatest, and numbers around zero and around 2^53."""
    info = np.iinfo(dtype)
    values = [info.min, info.max, 0, 1, 2, 7, info.max - 1, info.min + 1]
    values += [-1, -7] if info.min else [info.max // 2]
    values += [2**53 + 1, 2**53 - 1] if info.max > 2**53 else []
    a, b = np.meshgrid(np.array(values, dtype), np.array(values, dtype))
    return a.reshape(-1).copy(), b.reshape(-1).copy()


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_arithmetic_at_the_edges(dtype: str) -> None:
    """Sums, products, quotients and remainders, at run time and folded."""
    a, b = edges(dtype)
    bits = a.dtype.itemsize * 8
    wide_a, wide_b = a.tolist(), b.tolist()
    want = {
        "add": wrapped([x + y for x, y in zip(wide_a, wide_b, strict=True)], a.dtype),
        "sub": wrapped([x - y for x, y in zip(wide_a, wide_b, strict=True)], a.dtype),
        "mul": wrapped([x * y for x, y in zip(wide_a, wide_b, strict=True)], a.dtype),
        "div": truncated(a, b),
        "mod": modulo(a, b),
        "fmod": remainder(a, b),
        "max": np.maximum(a, b),
        "min": np.minimum(a, b),
        "less": a < b,
        "equal": a == b,
        "abs": wrapped([abs(x) for x in wide_a], a.dtype),
    }
    names = {
        "add": "Add",
        "sub": "Sub",
        "mul": "Mul",
        "div": "Div",
        "max": "Max",
        "min": "Min",
        "less": "Less",
        "equal": "Equal",
    }
    nodes = [node(op, ["a", "b"], [name]) for name, op in names.items()]
    nodes += [node("Mod", ["a", "b"], ["mod"]), node("Mod", ["a", "b"], ["fmod"], fmod=1), node("Abs", ["a"], ["abs"])]
    if a.dtype.kind == "u":
        left = [x << y if y < bits else 0 for x, y in zip(wide_a, wide_b, strict=True)]
        right = [x >> y if y < bits else 0 for x, y in zip(wide_a, wide_b, strict=True)]
        want |= {"left": wrapped(left, a.dtype), "right": wrapped(right, a.dtype)}
        nodes += [node("BitShift", ["a", "b"], [way], direction=way.upper()) for way in ("left", "right")]
    feeds = {"a": a, "b": b}
    for options in LEVELS:
        assert_same(compiled(network(nodes, feeds, list(want)), feeds, **options), want)
    assert_same(folded(nodes, feeds, list(want)), want)


@pytest.mark.parametrize("divisor", [0, -1, 1, 2, -2, 7, np.iinfo(np.int64).min])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_division_by_a_constant(dtype: str, divisor: int) -> None:
    """What strength reduction works on."""
    if divisor < np.iinfo(dtype).min:
        divisor = int(np.iinfo(dtype).min)
    a, _ = edges(dtype)
    b = np.array(divisor, dtype)
    spread = np.broadcast_to(b, a.shape)
    nodes = [node("Div", ["a", "b"], ["q"]), node("Mod", ["a", "b"], ["r"]), node("Mod", ["a", "b"], ["f"], fmod=1)]
    want = {"q": truncated(a, spread), "r": modulo(a, spread), "f": remainder(a, spread)}
    assert_same(compiled(network(nodes, {"a": a}, list(want), {"b": b}), {"a": a}), want)


def test_long_integers_do_not_pass_through_doubles() -> None:
    """2^53 + 1 survives sums, products, comparisons, gathers and reductions, computed and folded."""
    big = np.array([2**53 + 1, -(2**53) - 1, 2**62 + 1, 3], np.int64)
    nodes = [
        node("Add", ["a", "one"], ["plus"]),
        node("Mul", ["a", "one"], ["times"]),
        node("Div", ["a", "one"], ["over"]),
        node("Greater", ["a", "near"], ["greater"]),
        node("ReduceMax", ["a"], ["max"], keepdims=0),
        node("ReduceSum", ["a"], ["sum"], keepdims=0),
        node("CumSum", ["a", "axis"], ["running"]),
        node("Gather", ["a", "order"], ["gathered"]),
        node("ArgMax", ["a"], ["position"], axis=0, keepdims=0),
        node("Where", ["greater", "a", "near"], ["chosen"]),
        node("TopK", ["a", "k"], ["top", "places"]),
    ]
    one, near, order = np.array(1, np.int64), big - 1, np.array([2, 0], np.int64)
    want = {
        "plus": big + 1,
        "times": big,
        "over": big,
        "greater": big > near,
        "max": big.max(),
        "sum": big.sum(),
        "running": big.cumsum(),
        "gathered": big[order],
        "position": np.int64(2),
        "chosen": big,
        "top": np.sort(big)[::-1][:2],
        "places": np.array([2, 0], np.int64),
    }
    want = {name: np.asarray(a) for name, a in want.items()}
    stored = {"one": one, "near": near, "axis": np.array(0, np.int64), "order": order, "k": np.array([2], np.int64)}
    for options in LEVELS:
        assert_same(compiled(network(nodes, {"a": big}, list(want), stored), {"a": big}, **options), want)
    assert_same(folded(nodes, {"a": big, **stored}, list(want)), want)


def test_powers_of_integers() -> None:
    a = np.array([0, 1, -1, 2, -2, 7, -7, 10], np.int64)
    b = np.array([0, 1, 2, 3, 13, 40, 62, 63], np.int64)
    x, y = (m.reshape(-1).copy() for m in np.meshgrid(a, b))
    want = {"p": wrapped([i**j for i, j in zip(x.tolist(), y.tolist(), strict=True)], x.dtype)}
    nodes = [node("Pow", ["x", "y"], ["p"])]
    assert_same(compiled(network(nodes, {"x": x, "y": y}, ["p"]), {"x": x, "y": y}), want)


# -- floats -----------------------------------------------------------------------------------------------------------
F = np.float32
UNARY: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    # operator: (its meaning in double precision, relative tolerance)
    "Abs": (np.abs, 0),
    "Neg": (np.negative, 0),
    "Floor": (np.floor, 0),
    "Ceil": (np.ceil, 0),
    "Round": (np.rint, 0),
    "Sqrt": (np.sqrt, 1e-6),
    "Reciprocal": (lambda x: 1 / x, 1e-6),
    "Relu": (lambda x: np.maximum(x, 0), 0),
    "LeakyRelu": (lambda x: np.where(x < 0, F(0.01) * x, x), 1e-6),
    "Sign": (np.sign, 0),
    "Exp": (np.exp, 1e-5),
    "Log": (np.log, 1e-5),
    "Tanh": (np.tanh, 1e-5),
    "Sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 1e-5),
    "Softplus": (lambda x: np.logaddexp(x, 0), 1e-5),
    "Sinh": (np.sinh, 1e-5),
    "Cosh": (np.cosh, 1e-5),
    "Atan": (np.arctan, 1e-5),
    "Asin": (np.arcsin, 1e-5),
    "Acos": (np.arccos, 1e-5),
    "Asinh": (np.arcsinh, 1e-5),
    "Acosh": (np.arccosh, 1e-5),
    "Atanh": (np.arctanh, 1e-5),
    "IsNaN": (np.isnan, 0),
    "IsInf": (np.isinf, 0),
    "Clip": (lambda x: np.clip(x, -1, 2), 0),
    "HardSigmoid": (lambda x: np.clip(0.2 * x + 0.5, 0, 1), 1e-6),
    "ThresholdedRelu": (lambda x: np.where(np.isnan(x) | (x > 1), x, 0), 0),
}
EXACT_SIGNS = ("Abs", "Neg", "Floor", "Ceil", "Round", "Sqrt", "Reciprocal")


@pytest.mark.parametrize("cpu", ["native", "haswell", "x86-64"])
@pytest.mark.parametrize("count", [len(SPECIAL), 67])
def test_functions_of_special_numbers(count: int, cpu: str) -> None:
    """In vectors and in what is left over."""
    x = np.resize(SPECIAL, count)
    bounds = {"lo": np.array(-1, np.float32), "hi": np.array(2, np.float32)}
    nodes = [node(op, ["x", "lo", "hi"] if op == "Clip" else ["x"], [op]) for op in (*UNARY, "Elu")]
    model = network(nodes, {"x": x}, [*UNARY, "Elu"], bounds)
    got = compiled(model, {"x": x}, target=f"x86 -mcpu={cpu}")
    for op, (fn, tolerance) in UNARY.items():
        want = fn(x.astype(np.float64))
        want = want if want.dtype == bool else want.astype(np.float32)
        # one unit of the least denormal beside the relative tolerance
        np.testing.assert_allclose(got[op], want, rtol=tolerance, atol=1.5e-45 if tolerance else 0, err_msg=op)
        if op in EXACT_SIGNS:
            number = ~np.isnan(want)
            np.testing.assert_array_equal(np.signbit(got[op])[number], np.signbit(want)[number], err_msg=op)
    # defined with a difference that cancels near zero
    np.testing.assert_allclose(got["Elu"], np.where(x < 0, np.expm1(x), x), rtol=1e-6, atol=1e-7)


def test_arithmetic_of_special_numbers_as_either_operand() -> None:
    a, b = (m.reshape(-1).copy() for m in np.meshgrid(SPECIAL, SPECIAL))
    exact: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
        "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Max": np.maximum, "Min": np.minimum,
        "Less": np.less, "Greater": np.greater, "Equal": np.equal, "LessOrEqual": np.less_equal,
        "GreaterOrEqual": np.greater_equal, "Mod": np.fmod,
    }  # fmt: skip
    nodes = [node(op, ["a", "b"], [op], **({"fmod": 1} if op == "Mod" else {})) for op in exact]
    feeds = {"a": a, "b": b}
    want = {op: fn(a, b) for op, fn in exact.items()}
    for options in LEVELS:
        assert_same(compiled(network(nodes, feeds, list(want)), feeds, **options), want)
    assert_same(folded(nodes, feeds, list(want)), want)


def test_a_constant_on_either_side_of_special_numbers() -> None:
    """Rules such as x · 0 = 0, x - x = 0 and x / x = 1 would be wrong."""
    x = SPECIAL
    stored = {"zero": F(0), "one": F(1), "nan": F(np.nan), "inf": F(np.inf), "minus": F(-0.0)}
    want: dict[str, np.ndarray] = {}
    nodes = []
    table = {
        "Add": np.add,
        "Sub": np.subtract,
        "Mul": np.multiply,
        "Div": np.divide,
        "Max": np.maximum,
        "Min": np.minimum,
    }
    for op, fn in table.items():
        for name, value in stored.items():
            for operands, result in (((x, value), ["x", name]), ((value, x), [name, "x"])):
                want[f"{op}_{'_'.join(result)}"] = fn(*operands)
                nodes.append(node(op, result, [f"{op}_{'_'.join(result)}"]))
        want[f"{op}_x_x"] = fn(x, x)
        nodes.append(node(op, ["x", "x"], [f"{op}_x_x"]))
    model = network(nodes, {"x": x}, list(want), {k: np.asarray(v) for k, v in stored.items()})
    got = compiled(model, {"x": x})
    assert_same(got, want)
    for name in ("Mul_x_one", "Sub_x_zero", "Add_x_minus", "Add_x_zero", "Mul_one_x"):
        number = ~np.isnan(want[name])
        np.testing.assert_array_equal(np.signbit(got[name])[number], np.signbit(want[name])[number], err_msg=name)


def test_powers_of_special_numbers() -> None:
    a, b = (
        m.reshape(-1).copy()
        for m in np.meshgrid(SPECIAL[:19], np.array([0, 1, 2, -1, 0.5, 3, -2.5, np.nan, np.inf, -np.inf], F))
    )
    feeds = {"a": a, "b": b}
    got = compiled(network([node("Pow", ["a", "b"], ["p"])], feeds, ["p"]), feeds)
    np.testing.assert_allclose(got["p"], np.power(a.astype(np.float64), b).astype(F), rtol=2e-5, atol=1e-44)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("length", [1, 2, 5, 16, 17, 40])
def test_reductions_of_special_numbers(length: int, axis: int) -> None:
    """NaN, Inf and -Inf first, in the middle and last, along memory and across it."""
    plain = np.random.default_rng(0).standard_normal((9, length)).astype(F)
    rows = [plain[0]]
    for special in (np.nan, np.inf, -np.inf):
        for place in {0, length // 2, length - 1}:
            row = plain[1].copy()
            row[place] = special
            rows.append(row)
    both = plain[2].copy()
    both[0], both[-1] = np.inf, np.nan
    rows += [
        both,
        np.full(length, -np.inf, F),
        np.full(length, np.nan, F),
        np.zeros(length, F),
        np.full(length, -0.0, F),
    ]
    x = np.stack(rows)
    x = np.ascontiguousarray(x.T) if axis == 0 else x
    wide = x.astype(np.float64)
    masked = wide - np.max(wide, axis, keepdims=True)
    soft = np.exp(masked) / np.exp(masked).sum(axis, keepdims=True)
    want = {
        "ReduceSum": wide.sum(axis), "ReduceMean": wide.mean(axis), "ReduceProd": wide.prod(axis),
        "ReduceMax": x.max(axis), "ReduceMin": x.min(axis), "ReduceL2": np.sqrt((wide * wide).sum(axis)),
        "Softmax": soft, "LogSoftmax": masked - np.log(np.exp(masked).sum(axis, keepdims=True)),
    }  # fmt: skip
    nodes = [
        node(op, ["x"], [op], axis=axis) if "Softmax" in op else node(op, ["x", "axis"], [op], keepdims=0)
        for op in want
    ]
    positions = {"ArgMax": np.argmax, "ArgMin": np.argmin}
    nodes += [node(op, ["x"], [op], axis=axis, keepdims=0) for op in positions]
    outputs = [*want, *positions]
    for options in LEVELS:
        got = compiled(network(nodes, {"x": x}, outputs, {"axis": np.array([axis], np.int64)}), {"x": x}, **options)
        for op, expected in want.items():
            np.testing.assert_allclose(got[op], expected.astype(F), rtol=2e-5, atol=2e-6, err_msg=op)
        for op, fn in positions.items():
            np.testing.assert_array_equal(got[op], fn(x, axis), err_msg=op)


@pytest.mark.parametrize("last", [0, 1])
def test_position_of_equal_numbers(last: int) -> None:
    """The first (or last) of equals, in every lane, with -0.0 equal to 0.0."""
    rng = np.random.default_rng(3)
    x = rng.integers(0, 3, (7, 37)).astype(F)
    x[3] = 0.0
    x[3, ::2] = -0.0
    nodes = [node("ArgMax", ["x"], [f"a{k}"], axis=k, keepdims=0, select_last_index=last) for k in (0, 1)]
    want = {}
    for k in (0, 1):
        turned = np.flip(x, k) if last else x
        place = np.argmax(turned, k)
        want[f"a{k}"] = x.shape[k] - 1 - place if last else place
    assert_same(compiled(network(nodes, {"x": x}, list(want)), {"x": x}), want)


def test_pools_of_special_numbers() -> None:
    """Padding is no number: it neither wins over negative ones nor hides NaN."""
    x = -1 - np.random.default_rng(0).random((1, 17, 6, 6)).astype(F)
    x[0, 0] = -np.inf
    x[0, 1, 2, 3] = np.nan
    x[0, 2, 0, 0] = np.inf
    nodes = [
        node("MaxPool", ["x"], ["max"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("AveragePool", ["x"], ["mean"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    ]
    framed = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(framed, (3, 3), (2, 3))
    zeros = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    ones = np.pad(np.ones_like(x), ((0, 0), (0, 0), (1, 1), (1, 1)))
    sums, counts = (
        np.lib.stride_tricks.sliding_window_view(a, (3, 3), (2, 3)).sum((-2, -1), dtype=np.float64)
        for a in (zeros, ones)
    )
    want = {"max": windows.max((-2, -1)), "mean": (sums / counts).astype(F)}
    for options in LEVELS:
        assert_same(compiled(network(nodes, {"x": x}, list(want)), {"x": x}, **options), want, tolerance=1e-6)


def test_nan_and_infinity_in_weights() -> None:
    """Zero times Inf is NaN: padding of a block must not read weights, nor a clean input meet padded ones."""
    x = np.ones((1, 3, 5, 5), F)
    w = np.ones((17, 3, 3, 3), F)
    w[4, 0, 0, 0], w[5, 1, 1, 1], w[16] = np.nan, np.inf, -np.inf
    nodes = [node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1]), node("Relu", ["y"], ["z"])]
    model = network(nodes, {"x": x}, ["y", "z"], {"w": w})
    got = compiled(model, {"x": x})
    clean = [c for c in range(17) if c not in (4, 5, 16)]
    assert np.isfinite(got["y"][:, clean]).all()
    assert np.isnan(got["y"][0, 4, 2, 2])
    assert got["y"][0, 5, 2, 2] == np.inf
    assert got["y"][0, 16, 2, 2] == -np.inf
    assert np.isnan(got["z"][0, 4, 2, 2])


# -- conversions ------------------------------------------------------------------------------------------------------
TYPES: dict[str, tuple[int, object]] = {
    "float64": (TensorProto.DOUBLE, np.float64),
    "float32": (TensorProto.FLOAT, np.float32),
    "float16": (TensorProto.FLOAT16, np.float16),
    "bfloat16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
    "bool": (TensorProto.BOOL, np.bool_),
    **{name: (getattr(TensorProto, name.upper()), np.dtype(name)) for name in INTEGERS},
}


def samples(dtype: np.dtype) -> np.ndarray:
    """Numbers of a type, its greatest and least among them."""
    if dtype.kind == "b":
        return np.resize([True, False, False], 35)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return np.resize(np.array([info.min, info.max, 0, 1, 2, 65, 127, info.max - 1, info.max // 2 + 1], dtype), 35)
    values = [
        np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, -0.5, 0.99, -0.99, 1, -1, 1.5, 2.5, 255, 256, 300.7, -300.7, 65504,
        65520, 70000, -70000, 2.0**31, -(2.0**31), 2.0**32, 2.0**63, -(2.0**63), 2.0**64, 1e30, 1e-7, 6e-8, 1e-40,
    ]  # fmt: skip
    return np.array(values).astype(dtype)


@pytest.mark.parametrize("source", TYPES)
def test_cast_from_every_type_to_every_type(source: str) -> None:
    """Integers wrap, floats that do not fit saturate, NaN becomes 0, ``bool`` is ``!= 0``; run, folded, interpreted."""
    x = samples(np.dtype(TYPES[source][1]))
    targets = [t for t in TYPES if t != source]
    nodes = [node("Cast", ["x"], [t], to=TYPES[t][0]) for t in targets]
    model = network(nodes, {"x": x}, targets)
    want = interpreted(model, {"x": x})
    for t in targets:
        assert want[t].dtype == TYPES[t][1]
    for options in LEVELS:
        assert_same(compiled(model, {"x": x}, **options), want)
    assert_same(folded(nodes, {"x": x}, targets), want)


@pytest.mark.parametrize(
    "value, via, want",
    [
        (np.array([300, -1, 256, 255], np.int32), "uint8", [44, 255, 0, 255]),
        (np.array([200, 127, 128], np.uint8), "int8", [-56, 127, -128]),
        (np.array([2**32 + 5, -(2**31) - 1], np.int64), "int32", [5, 2**31 - 1]),
        (np.array([0.0, -0.0, np.nan, 1e-40, -2], np.float32), "bool", [False, False, True, True, True]),
        (np.array([2.9, -2.9, 300.5, -1.5, np.nan], np.float32), "uint8", [2, 0, 255, 0, 0]),
        (np.array([1e10, -1e10, np.inf], np.float32), "int32", [2**31 - 1, -(2**31), 2**31 - 1]),
        (np.array([True, False]), "float16", [1.0, 0.0]),
        (np.array([65519, 65520, 2049], np.float32), "float16", [65504, np.inf, 2048]),
    ],
)
def test_cast_of_chosen_numbers(value: np.ndarray, via: str, want: list[float]) -> None:
    nodes = [node("Cast", ["x"], ["y"], to=TYPES[via][0])]
    expected = {"y": np.array(want, TYPES[via][1])}
    assert_same(compiled(network(nodes, {"x": value}, ["y"]), {"x": value}), expected)


def test_casts_there_and_back_are_not_dropped() -> None:
    """f32 to f16 and back rounds; i32 to u8 and back wraps; to bool and back gives 0 and 1."""
    x = np.array([0.1, 1 / 3, 70000, 1e-8, -2.5], F)
    k = np.array([300, -1, 0, 7, 255], np.int32)
    nodes = []
    for name, via, back in (
        ("x", "float16", "float32"),
        ("k", "uint8", "int32"),
        ("k", "bool", "int32"),
        ("x", "bfloat16", "float32"),
    ):
        middle = f"{name}_{via}"
        nodes += [
            node("Cast", [name], [middle], to=TYPES[via][0]),
            node("Cast", [middle], [f"{middle}_back"], to=TYPES[back][0]),
        ]
    want = {
        "x_float16_back": x.astype(np.float16).astype(F),
        "k_uint8_back": k.astype(np.uint8).astype(np.int32),
        "k_bool_back": (k != 0).astype(np.int32),
        "x_bfloat16_back": x.astype(ml_dtypes.bfloat16).astype(F),
    }
    feeds = {"x": x, "k": k}
    for options in LEVELS:
        assert_same(compiled(network(nodes, feeds, list(want)), feeds, **options), want)


FAR = np.array([7, -1, -9, 2, 2**40, -(2**63)], np.int64)


@pytest.mark.parametrize("level", LEVELS)
def test_indices_out_of_range_take_the_nearest_element(level: dict[str, int]) -> None:
    """Positions that only the run knows; docs/onnx-conformance.md promises this and no access outside."""
    x = np.arange(5, dtype=np.float32) * 10
    feeds = {"x": x, "i": FAR}
    model = network([node("Gather", ["x", "i"], ["y"])], feeds, ["y"])
    np.testing.assert_array_equal(compiled(model, feeds, **level)["y"], [40, 40, 0, 20, 40, 0])
    feeds |= {"u": np.arange(1, 7, dtype=np.float32)}
    model = network([node("ScatterElements", ["x", "i", "u"], ["y"])], feeds, ["y"])
    np.testing.assert_array_equal(compiled(model, feeds, **level)["y"], [6, 10, 4, 30, 5])


ERF = np.vectorize(math.erf)
IN_DOUBLE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Erf": ERF,
    "Gelu": lambda x: x / 2 * (1 + ERF(x / math.sqrt(2))),
    "Tanh": np.tanh,
    "Softplus": lambda x: np.log1p(np.exp(x)),
    "Mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "Elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "HardSwish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "LogSoftmax": lambda x: x - np.log(np.exp(x).sum(-1, keepdims=True)),
    "ReduceLogSumExp": lambda x: np.log(np.exp(x).sum(keepdims=True)),
}


@pytest.mark.parametrize("op", IN_DOUBLE)
def test_doubles_stay_doubles(op: str) -> None:
    feeds = {"x": np.random.default_rng(0).standard_normal((3, 7))}
    model = network([node(op, ["x"], ["y"])], feeds, ["y"], opset=22)
    assert {v.type.dtype.name for n in load(model).graph.nodes for v in n.outputs} <= {"f64", "bool"}
    assert_same(compiled(model, feeds), {"y": IN_DOUBLE[op](feeds["x"])}, tolerance=1e-13)

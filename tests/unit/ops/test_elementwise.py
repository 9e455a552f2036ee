from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from mlc.errors import UsageError, VerifyError
from mlc.ops import get
from tests.unit.ops.oracle import evaluate

SHAPES = [(), (0,), (1,), (3, 0, 2), (2, 3), (1, 5, 1, 2)]
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -3.5, 90.0, -90.0, np.inf, -np.inf, np.nan, 1e-40]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softplus(x):
    return np.logaddexp(0, x)


erf = np.vectorize(math.erf, otypes=[np.float64])

FLOAT_UNARY = {
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "tanh": np.tanh,
    "sigmoid": sigmoid, "erf": lambda x: erf(x) if x.size else x, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "floor": np.floor, "ceil": np.ceil,
    "round": np.rint, "trunc": np.trunc, "reciprocal": lambda x: 1 / x,
    "softplus": softplus, "softsign": lambda x: x / (1 + np.abs(x)),
    "mish": lambda x: x * np.tanh(softplus(x)),
    "hard_swish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "neg": np.negative, "abs": np.abs, "sign": np.sign, "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
}  # fmt: skip

WITH_ATTRS = [
    ("leaky_relu", {"alpha": 0.3}, lambda x: np.where(x < 0, 0.3 * x, x)),
    ("elu", {"alpha": 1.5}, lambda x: np.where(x < 0, 1.5 * np.expm1(x), x)),
    ("selu", {"alpha": 1.5, "gamma": 2.0}, lambda x: 2.0 * np.where(x > 0, x, 1.5 * np.expm1(x))),
    ("celu", {"alpha": 2.0}, lambda x: np.maximum(x, 0) + np.minimum(0, 2 * np.expm1(x / 2))),
    ("hard_sigmoid", {"alpha": 0.3, "beta": 0.4}, lambda x: np.clip(0.3 * x + 0.4, 0, 1)),
    ("gelu", {}, lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2)))),
    (
        "gelu",
        {"approximate": "tanh"},
        lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ),
    ("swish", {"alpha": 0.7}, lambda x: x * sigmoid(0.7 * x)),
    ("thresholded_relu", {"alpha": 0.6}, lambda x: np.where(x <= 0.6, 0, x)),
    ("shrink", {"lambd": 0.5, "bias": 0.25}, lambda x: np.where(x < -0.5, x + 0.25, np.where(x > 0.5, x - 0.25, 0))),
    ("clip", {"lo": -0.5, "hi": 0.7}, lambda x: np.minimum(np.maximum(x, -0.5), 0.7)),
    ("clip", {"lo": 0.1}, lambda x: np.maximum(x, 0.1)),
    ("clip", {"hi": 0.1}, lambda x: np.minimum(x, 0.1)),
    ("clip", {}, lambda x: x),
]


def close(actual, wanted, rtol=2e-6, atol=1e-6):
    np.testing.assert_allclose(
        np.asarray(actual, np.float64), np.asarray(wanted, np.float64), rtol=rtol, atol=atol, equal_nan=True
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", FLOAT_UNARY)
def test_unary_of_every_shape(rng, name, shape):
    x = rng.uniform(0.1, 0.9, shape).astype(np.float32) + (1 if name == "acosh" else 0)
    close(evaluate(name, x), FLOAT_UNARY[name](x.astype(np.float64)))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", sorted(set(FLOAT_UNARY) - {"rsqrt", "sigmoid", "mish", "softsign", "hard_swish"}))
def test_unary_of_special_values(name):
    x = np.array(SPECIAL, np.float32)
    wanted = FLOAT_UNARY[name](x.astype(np.float64)).astype(np.float32)
    close(evaluate(name, x), wanted)


@pytest.mark.parametrize("name, attrs, wanted", WITH_ATTRS)
def test_activations_with_attributes(rng, name, attrs, wanted):
    x = rng.normal(size=(3, 7)).astype(np.float32)
    close(evaluate(name, x, **attrs), wanted(x.astype(np.float64)))
    assert evaluate(name, np.zeros((0, 2), np.float32), **attrs).shape == (0, 2)
    assert evaluate(name, np.float64(0.25), **attrs).dtype == np.float64


@pytest.mark.parametrize("name, attrs", [(n, a) for n, a, _ in WITH_ATTRS if n != "shrink"])
def test_activations_hand_nan_on(name, attrs):
    assert np.isnan(evaluate(name, np.array([np.nan], np.float32), **attrs)).all()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", ["exp", "gelu", "mish", "selu", "floor", "tanh", "relu", "neg"])
def test_sixteen_bit_floats_round_once(rng, name, dtype):
    x = rng.normal(size=50).astype(dtype)
    wide = evaluate(name, x.astype(np.float32)).astype(dtype)
    got = evaluate(name, x)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, wide)


@pytest.mark.parametrize("name", ["neg", "abs", "sign", "relu", "identity"])
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_unary_of_integers(name, dtype):
    x = np.array([0, 1, -1, 5, np.iinfo(dtype).min, np.iinfo(dtype).max], dtype)
    np.testing.assert_array_equal(evaluate(name, x), FLOAT_UNARY[name](x).astype(dtype))


def test_clip_of_integers():
    x = np.array([0, 100, 200, 255], np.uint8)
    np.testing.assert_array_equal(evaluate("clip", x, lo=10, hi=150), [10, 100, 150, 150])


def test_clip_with_crossed_bounds_gives_the_upper():
    np.testing.assert_array_equal(evaluate("clip", np.array([0, 5, 9], np.float32), lo=8.0, hi=3.0), [3, 3, 3])


def test_shrink_of_integers():
    np.testing.assert_array_equal(
        evaluate("shrink", np.array([-3, -1, 0, 1, 3]), lambd=1.5, bias=1.0), [-2, 0, 0, 0, 2]
    )


def test_not_of_booleans_and_of_bits():
    np.testing.assert_array_equal(evaluate("not", np.array([True, False])), [False, True])
    np.testing.assert_array_equal(evaluate("bitwise_not", np.array([0, 255, 3], np.uint8)), [255, 0, 252])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_nearest_takes_the_even_one_of_two(dtype):
    x = np.array([-2.5, -1.5, -0.5, -0.25, 0.0, 0.5, 0.75, 1.5, 2.5, 100.0]).astype(dtype)
    got = evaluate("nearest", x)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, [-2, -2, 0, 0, 0, 0, 1, 2, 2, 100])


def test_isnan_and_isinf():
    x = np.array([1.0, np.nan, np.inf, -np.inf], np.float32)
    np.testing.assert_array_equal(evaluate("isnan", x), [False, True, False, False])
    np.testing.assert_array_equal(evaluate("isinf", x), [False, False, True, True])
    np.testing.assert_array_equal(evaluate("isinf", x, detect_negative=False), [False, False, True, False])
    np.testing.assert_array_equal(evaluate("isinf", x, detect_positive=False), [False, False, False, True])


ARITHMETIC = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
COMPARE = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal
}  # fmt: skip


@pytest.mark.parametrize(
    "a, b",
    [((), ()), ((3,), ()), ((2, 3), (3,)), ((2, 1, 4), (3, 1)), ((0, 3), (1, 3)), ((1,), (0,)), ((5, 1), (1, 4))],
)
@pytest.mark.parametrize("name", [*ARITHMETIC, *COMPARE, "div"])
def test_binary_broadcasts(rng, name, a, b):
    x, y = rng.normal(size=a).astype(np.float32), rng.normal(size=b).astype(np.float32)
    wanted = {**ARITHMETIC, **COMPARE, "div": np.divide}[name](x, y)
    np.testing.assert_array_equal(evaluate(name, x, y), wanted)


@pytest.mark.parametrize("name", ["min", "max"])
def test_nan_wins_on_either_side(name):
    x, y = np.array([np.nan, 1.0], np.float32), np.array([1.0, np.nan], np.float32)
    assert np.isnan(evaluate(name, x, y)).all()


def test_integer_division_truncates_and_never_traps():
    low = np.iinfo(np.int32).min
    a = np.array([7, -7, 7, -7, 5, low], np.int32)
    b = np.array([2, 2, -2, -2, 0, -1], np.int32)
    np.testing.assert_array_equal(evaluate("div", a, b), [3, -3, -3, 3, 0, low])
    np.testing.assert_array_equal(evaluate("mod", a, b), [1, 1, -1, -1, 0, 0])
    np.testing.assert_array_equal(evaluate("fmod", a, b), [1, -1, 1, -1, 0, 0])


def test_float_remainders():
    a, b = np.array([5.5, -5.5, 5.5], np.float32), np.array([3, 3, -3], np.float32)
    np.testing.assert_array_equal(evaluate("mod", a, b), np.mod(a, b))
    np.testing.assert_array_equal(evaluate("fmod", a, b), np.fmod(a, b))


def test_pow_of_floats_and_integers():
    a, b = np.array([2, 3, -2, 0], np.float32), np.array([3, 0.5, 2, 0], np.float32)
    close(evaluate("pow", a, b), np.power(a, b))
    i, j = np.array([2, -3, 2, 1, 0]), np.array([10, 3, -1, -5, 0])
    np.testing.assert_array_equal(evaluate("pow", i, j), [1024, -27, 0, 1, 1])


def test_logic_and_bits():
    a, b = np.array([True, True, False]), np.array([True, False, False])
    np.testing.assert_array_equal(evaluate("and", a, b), a & b)
    np.testing.assert_array_equal(evaluate("or", a, b), a | b)
    np.testing.assert_array_equal(evaluate("xor", a, b), a ^ b)
    x, y = np.array([12, 255, 1], np.uint8), np.array([10, 1, 9], np.uint8)
    np.testing.assert_array_equal(evaluate("xor", x, y), x ^ y)
    np.testing.assert_array_equal(evaluate("shl", x, y), [0, 254, 0])
    np.testing.assert_array_equal(evaluate("shr", x, y), [0, 127, 0])


def test_prelu_broadcasts_the_slope(rng):
    x, slope = rng.normal(size=(2, 3, 4)).astype(np.float32), rng.normal(size=(3, 1)).astype(np.float32)
    np.testing.assert_array_equal(evaluate("prelu", x, slope), np.where(x < 0, slope * x, x))


def test_where_broadcasts_all_three(rng):
    c, a, b = rng.random((4, 1)) > 0.5, rng.normal(size=(2, 1, 3)), rng.normal(size=())
    np.testing.assert_array_equal(evaluate("where", c, a, b), np.where(c, a, b))


@pytest.mark.parametrize(
    "value, to, wanted",
    [
        (np.array([1.9, -1.9, np.nan], np.float32), "i32", [1, -1, 0]),
        (np.array([300, -1], np.int32), "u8", [44, 255]),
        (np.array([0.0, 0.3, np.nan], np.float32), "bool", [False, True, True]),
        (np.array([True, False]), "f16", [1.0, 0.0]),
        (np.float32(2.5), "f64", 2.5),
        (np.zeros((0, 3), np.int64), "f32", np.zeros((0, 3))),
    ],
)
def test_cast(value, to, wanted):
    np.testing.assert_array_equal(evaluate("cast", value, to=to), wanted)


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 5), (1, 3, 2, 2), (0, 3, 4)])
def test_batch_norm_runs_along_axis_one(rng, shape):
    x = rng.normal(size=shape).astype(np.float32)
    scale, bias, mean = (rng.normal(size=3).astype(np.float32) for _ in range(3))
    var = rng.uniform(0.5, 2, 3).astype(np.float32)
    column = (3,) + (1,) * (len(shape) - 2)
    wanted = (x - mean.reshape(column)) / np.sqrt(var.reshape(column) + 1e-3)
    close(
        evaluate("batch_norm", x, scale, bias, mean, var, epsilon=1e-3),
        wanted * scale.reshape(column) + bias.reshape(column),
        rtol=1e-5,
    )


F = np.zeros((2, 3), np.float32)
REFUSED = [
    ("exp", [np.zeros(2, np.int32)], {}, "exp: x is i32, it may be: float"),
    ("not", [np.zeros(2, np.int32)], {}, "not: x is i32, it may be: bool"),
    ("relu", [F, F], {}, "relu: 2 operands, 1 are needed"),
    ("gelu", [F], {"approximate": "fast"}, "gelu: approximate='fast'"),
    ("isinf", [F], {"detect_positive": False, "detect_negative": False}, "isinf: detects neither sign"),
    ("celu", [F], {"alpha": 0.0}, "celu: alpha is 0"),
    ("add", [F, F.astype(np.float64)], {}, "add: operands are f32 and f64"),
    ("add", [F, np.zeros((2, 2), np.float32)], {}, r"add: shapes \[2, 3\] and \[2, 2\] do not broadcast"),
    ("add", [F > 0, F > 0], {}, "add: x is bool, it may be: float, signed, unsigned"),
    ("and", [F, F], {}, "and: x is f32"),
    ("prelu", [F, np.zeros((4, 1, 3), np.float32)], {}, "prelu: slope .* does not broadcast to"),
    ("where", [F, F, F], {}, "where: condition is f32"),
    ("where", [F > 0, F, F > 0], {}, "where: operands are f32 and bool"),
    ("batch_norm", [np.zeros(3, np.float32)] * 5, {}, "batch_norm: x has rank 1"),
    ("batch_norm", [F, *[np.zeros(2, np.float32)] * 4], {}, r"batch_norm: scale has shape \[2\], \[3\] is needed"),
]


@pytest.mark.parametrize("name, arrays, attrs, message", REFUSED)
def test_mistyped_calls_are_refused(name, arrays, attrs, message):
    with pytest.raises(VerifyError, match=message):
        evaluate(name, *arrays, **attrs)


def test_cast_to_an_unknown_type_is_refused():
    with pytest.raises(UsageError, match="unknown element type 'f8'"):
        evaluate("cast", F, to="f8")


def test_elementwise_is_marked():
    assert all(get(n).elementwise for n in ("add", "exp", "where", "cast", "prelu"))
    assert not get("batch_norm").elementwise

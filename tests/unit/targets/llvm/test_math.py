"""The vector math library, compiled by LLVM and compared with double precision over the whole range of arguments."""

from __future__ import annotations

import ctypes
import math
import platform
import re
import struct
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from mlc.errors import CodegenError
from mlc.targets.llvm.math import ARITY, math_definition, math_module, math_symbol
from mlc.targets.llvm.math_emit import Emitter, Value, float_literal

llvm = pytest.importorskip("llvmlite.binding")
llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()

POLYNOMIALS = ("exp", "log", "tanh", "sigmoid", "erf", "sin", "cos", "pow")
LIBRARY = sorted(set(ARITY) - {*POLYNOMIALS, "threefry"})

# Units in the last place of single precision. The rational functions end with the rounding errors of two polynomials
# and a quotient, which are 3.5e-7 relative to the result at most.
ULPS = {"exp": 1.2, "log": 1.0, "tanh": 6.0, "sigmoid": 2.4, "erf": 6.0, "sin": 1.6, "cos": 1.6, "pow": 0.55}

# Where each function has most of its shape.
SHAPELY = {
    "exp": (-105, 90),
    "log": (0, 3),
    "tanh": (-10, 10),
    "sigmoid": (-105, 20),
    "erf": (-4.5, 4.5),
    "sin": (-4.3e6, 4.3e6),
    "cos": (-4.3e6, 4.3e6),
}

_SPECIAL = [0.0, math.inf, math.nan, 2.0**-149, 2.0**-126, 2.0**-127, 3.4028235e38, 0.5, 1.0, 2.0, 3.0, 1e5]
_EDGES = [88.72284, 87.33655, 103.97208, 104.0, 9.02, 3.93, 80.0, 4194304.0, 8388607.5, 2.0**24, 2.0**24 + 2, 1e10]
SPECIAL = np.array([*_SPECIAL, *_EDGES], np.float32)
SPECIAL = np.concatenate([SPECIAL, np.nextafter(SPECIAL, np.float32(0)), np.nextafter(SPECIAL, np.float32(1e30))])
SPECIAL = np.concatenate([SPECIAL, -SPECIAL])

KERNEL = """
define void @kernel(ptr noalias %out, ptr noalias %a, ptr noalias %b, i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %a.p = getelementptr {scalar}, ptr %a, i64 %i
  %b.p = getelementptr {scalar}, ptr %b, i64 %i
  %out.p = getelementptr {scalar}, ptr %out, i64 %i
  %x = load {vector}, ptr %a.p, align 4
  %y = load {vector}, ptr %b.p, align 4
  %r = call {vector} @{symbol}({arguments})
  store {vector} %r, ptr %out.p, align 4
  %next = add i64 %i, {lanes}
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %leave
leave:
  ret void
}}
"""

CPUS = ("host", "haswell", "x86-64")
X86, ARM = "x86_64-linux-gnu", "aarch64-linux-gnu"


def target_machine(cpu: str, triple: str) -> llvm.TargetMachine:
    """Code generation for one processor, skipping the test where this machine cannot run it."""
    features = ""
    if cpu == "host":
        cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    elif triple == llvm.get_default_triple():
        if platform.machine() != "x86_64":
            pytest.skip(f"{cpu} code does not run on {platform.machine()}")
        present = llvm.get_host_cpu_features()
        if cpu == "haswell" and not all(present.get(feature) for feature in ("avx2", "fma", "bmi2")):
            pytest.skip("this machine lacks AVX2, FMA or BMI2")
    target = llvm.Target.from_triple(triple)
    return target.create_target_machine(cpu=cpu, features=features, opt=2, reloc="pic", codemodel="small")


def optimised(text: str, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    module = llvm.parse_assembly(text)
    module.verify()
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return module


def kernel_text(fn: str, dtype: str, lanes: int) -> str:
    scalar = {"f32": "float", "f64": "double"}[dtype]
    vector = scalar if lanes == 1 else f"<{lanes} x {scalar}>"
    arguments = ", ".join(f"{vector} {name}" for name in ("%x", "%y")[: ARITY[fn]])
    return math_module([(fn, dtype, lanes)]) + KERNEL.format(
        scalar=scalar, vector=vector, symbol=math_symbol(fn, dtype, lanes), arguments=arguments, lanes=lanes
    )


def assembly(fn: str, lanes: int, cpu: str, triple: str) -> str:
    machine = target_machine(cpu, triple)
    return machine.emit_assembly(optimised(kernel_text(fn, "f32", lanes), machine))


def evaluate(fn: str, x: np.ndarray, y: np.ndarray | None = None, *, lanes: int, cpu: str = "host") -> np.ndarray:
    """The compiled function of whole arrays of float32 or float64."""
    dtype = {"float32": "f32", "float64": "f64"}[x.dtype.name]
    machine = target_machine(cpu, llvm.get_default_triple())
    code = machine.emit_object(optimised(kernel_text(fn, dtype, lanes), machine))
    builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process().export_symbol("kernel")
    jit = llvm.create_lljit_compiler(use_jit_link=True)
    tracker = builder.link(jit, "math")
    kernel = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)(tracker["kernel"])
    padding = np.ones(-len(x) % lanes, x.dtype)
    a = np.concatenate([x, padding])
    b = a if y is None else np.concatenate([y, padding])
    out = np.empty_like(a)
    kernel(out.ctypes.data, a.ctypes.data, b.ctypes.data, len(a))
    tracker.close()
    return out[: len(x)]


def ulps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Errors in units of the last place of the wanted result in single precision.

    Infinite where one of the two is NaN, infinite or negative and the other is not.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = want.astype(np.float32)
        place = np.spacing(np.minimum(np.abs(rounded), np.finfo(np.float32).max)).astype(np.float64)
        error = np.abs(got.astype(np.float64) - want) / place
    special = ~np.isfinite(rounded) | ~np.isfinite(got)
    alike = (np.isnan(rounded) & np.isnan(got)) | (rounded == got)
    signs = (np.signbit(got) != np.signbit(rounded)) & ~np.isnan(rounded)
    return np.where(special, np.where(alike, 0.0, np.inf), np.where(signs, np.inf, error))


def sigmoid(x: np.ndarray) -> np.ndarray:
    z = np.exp(-np.abs(x))
    return np.where(x < 0, z, 1) / (1 + z)


REFERENCE: dict[str, Callable[..., np.ndarray]] = {
    **{fn: getattr(np, fn) for fn in ("exp", "log", "tanh", "sin", "cos", "tan", "sinh", "cosh")},
    **{fn: getattr(np, "arc" + fn[1:]) for fn in ("asin", "acos", "atan", "asinh", "acosh", "atanh")},
    "sigmoid": sigmoid,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "pow": np.power,
}


def any_bits(rng: np.random.Generator, count: int) -> np.ndarray:
    """Floats of every exponent, NaN, infinities and subnormal numbers included."""
    return rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)


def singles(*parts: np.ndarray) -> np.ndarray:
    return np.concatenate([part.ravel().astype(np.float32, copy=False) for part in parts])


@cache
def samples(fn: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Operands of a function and its results in double precision."""
    rng = np.random.default_rng(0)
    if fn == "pow":
        count = 60_000
        grid = np.meshgrid(SPECIAL, np.concatenate([SPECIAL, np.arange(-7.5, 8, 0.5, np.float32)]))
        x = [np.exp(rng.normal(0, 3, count)), rng.uniform(-20, 0, count), rng.normal(1, 0.01, count)]
        y = [rng.normal(0, 8, count), rng.integers(-20, 20, count), rng.normal(0, 9000, count)]
        a, b = (singles(special, any_bits(rng, count), *more) for special, more in zip(grid, (x, y), strict=True))
    else:
        count = 100_000
        near = [rng.uniform(*SHAPELY[fn], count), rng.uniform(-1, 1, count), rng.normal(0, 30, count)]
        if fn in ("sin", "cos"):
            near.append(np.arange(1, 400_000, 7) * (np.pi / 2))  # close to the zeros
        a = b = singles(SPECIAL, any_bits(rng, count), *near)
    with np.errstate(all="ignore"):
        operands = [v.astype(np.float64) for v in (a, b)[: ARITY[fn]]]
        return a, b, REFERENCE[fn](*operands)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("fn", POLYNOMIALS)
def test_single_precision_is_accurate_over_the_whole_range(fn: str, cpu: str) -> None:
    x, y, want = samples(fn)
    error = ulps(evaluate(fn, x, y, lanes=16, cpu=cpu), want)
    worst = int(np.argmax(error))
    assert error[worst] <= ULPS[fn], f"{fn}({x[worst]!r}, {y[worst]!r}) is {error[worst]:.2f} ulp off {want[worst]!r}"


@pytest.mark.parametrize("lanes", [1, 4, 5, 8])
@pytest.mark.parametrize("fn", POLYNOMIALS)
def test_result_does_not_depend_on_the_number_of_lanes(fn: str, lanes: int) -> None:
    x, y, _ = (v[:20_003] for v in samples(fn))
    assert np.array_equal(evaluate(fn, x, y, lanes=lanes), evaluate(fn, x, y, lanes=16), equal_nan=True)


@pytest.mark.parametrize("dtype, bound", [(np.float32, 2.0), (np.float64, 4.0)])
@pytest.mark.parametrize("lanes", [1, 5, 16])
def test_remaining_functions_agree_with_the_c_library(dtype: type, bound: float, lanes: int) -> None:
    rng = np.random.default_rng(1)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-30, -740.0]
    x = np.concatenate([special, rng.normal(0, 2, 2000)]).astype(dtype)
    y = rng.normal(0, 5, len(x)).astype(dtype)
    for fn in LIBRARY if dtype is np.float32 else sorted(set(ARITY) - {"threefry"}):
        got = evaluate(fn, x, y, lanes=lanes)
        with np.errstate(all="ignore"):
            want = REFERENCE[fn](*(v.astype(np.float64) for v in (x, y)[: ARITY[fn]]))
            place = np.spacing(np.abs(want.astype(dtype))).astype(np.float64)
            close = np.abs(got - want) <= bound * place
        assert (close | (got == want.astype(dtype)) | (np.isnan(got) & np.isnan(want))).all(), fn


@pytest.mark.parametrize("fn, beyond", [("tanh", 9.02), ("erf", 3.93), ("sigmoid", 17.0)])
def test_saturation_is_exact_and_never_overshoots(fn: str, beyond: float) -> None:
    x = np.linspace(0, 2 * beyond, 200_003, dtype=np.float32)
    y = evaluate(fn, x, lanes=16)
    assert y.max() == 1
    assert (y[x > beyond * 1.001] == 1).all()
    lower = evaluate(fn, -x, lanes=16)
    assert (lower >= 0).all() if fn == "sigmoid" else np.array_equal(lower, -y)


@pytest.mark.parametrize("fn", ["tanh", "erf", "sin"])
def test_odd_functions_keep_the_sign_of_zero(fn: str) -> None:
    zeros = evaluate(fn, np.array([0.0, -0.0], np.float32), lanes=4)
    assert np.signbit(zeros).tolist() == [False, True]


def test_exp_and_cos_of_zero_are_exactly_one() -> None:
    zero = np.zeros(1, np.float32)
    assert evaluate("exp", zero, lanes=1) == 1
    assert evaluate("cos", zero, lanes=1) == 1


@pytest.mark.parametrize(
    "cpu, triple, lanes",
    [("x86-64", X86, 4), ("haswell", X86, 8), ("skylake-avx512", X86, 16), ("cortex-a53", ARM, 4)],
)
def test_no_processor_needs_library_calls_but_those_declared(cpu: str, triple: str, lanes: int) -> None:
    for fn in POLYNOMIALS:
        called = set(re.findall(r"^\t(?:callq?|bl|jmp)\t([a-z]\w*)", assembly(fn, lanes, cpu, triple), re.MULTILINE))
        assert called == ({fn + "f"} if fn in ("sin", "cos") else set()), fn


def test_products_and_sums_fuse_where_the_processor_can() -> None:
    assert "vfmadd" in assembly("exp", 8, "haswell", X86)
    assert "fmla" in assembly("exp", 4, "cortex-a53", ARM)
    assert "fmadd" not in assembly("exp", 4, "x86-64", X86)


def test_avx512_code_uses_whole_registers_without_spills() -> None:
    text = assembly("exp", 16, "skylake-avx512", X86)
    assert "%zmm" in text
    assert "(%rsp)" not in text


def test_module_defines_each_function_and_declares_each_library_function_once() -> None:
    requests = [("sin", "f32", 16), ("sin", "f32", 8), ("exp", "f64", 2), ("sigmoid", "f64", 2), ("sin", "f32", 16)]
    text = math_module(requests)
    llvm.parse_assembly(text).verify()
    assert text.count("define ") == 4
    declared = re.findall(r"^declare .*", text, re.MULTILINE)
    assert declared == ["declare double @exp(double)", "declare float @sinf(float)"]
    assert math_definition("sin", "f32", 8) in text
    assert math_module([]).strip() == ""


def test_symbol_names_function_lanes_and_type() -> None:
    assert math_symbol("exp", "f32", 16) == "mlc.exp.v16f32"
    assert math_symbol("pow", "f64", 1) == "mlc.pow.v1f64"


def test_refusals_name_what_is_wrong() -> None:
    with pytest.raises(CodegenError, match="no vector function 'gamma'"):
        math_symbol("gamma", "f32", 4)
    with pytest.raises(CodegenError, match="exp: no vector functions of 'f16'"):
        math_definition("exp", "f16", 4)
    with pytest.raises(CodegenError, match="exp: a vector cannot have 0 lanes"):
        math_module([("exp", "f32", 0)])


def test_literals_are_exact_for_their_type() -> None:
    (bits,) = struct.unpack("<Q", struct.pack("<d", float(np.float32(0.1))))
    assert float_literal("float", 0.1) == f"0x{bits:016X}"
    assert float_literal("double", 0.1) == "0x3FB999999999999A"
    assert float_literal("float", -math.inf) == "0xFFF0000000000000"


def test_operators_emit_one_instruction_each_and_constants_none() -> None:
    e = Emitter(4)
    x = Value(e, "float", "%x")
    text = e.function("f", [x], (x * 2.0 + x).at_most(1.0))
    assert text == (
        "define internal <4 x float> @f(<4 x float> %x) alwaysinline nounwind {\n"
        "entry:\n"
        "  %v1 = fmul contract <4 x float> %x, splat (float 0x4000000000000000)\n"
        "  %v2 = fadd contract <4 x float> %v1, %x\n"
        "  %v3 = fcmp olt <4 x float> splat (float 0x3FF0000000000000), %v2\n"
        "  %v4 = select <4 x i1> %v3, <4 x float> splat (float 0x3FF0000000000000), <4 x float> %v2\n"
        "  ret <4 x float> %v4\n"
        "}\n"
    )

"""OpenCL C, version 1.2."""

from __future__ import annotations

from dataclasses import replace

from mlc.targets.gpu.dialect import Dialect, VectorMath

# Half precision is optional, loads and stores of it are not: https://registry.khronos.org/OpenCL (vload_half).
_CONVERSIONS = {
    "mlc_from_f16": "float mlc_from_f16(ushort a) { return vload_half(0, (const __private half*)&a); }",
    "mlc_to_f16": "ushort mlc_to_f16(float a) { ushort r; vstore_half_rte(a, 0, (__private half*)&r); return r; }",
    "mlc_from_bf16": "float mlc_from_bf16(ushort a) { return as_float((uint)a << 16); }",
    "mlc_to_bf16": (
        "ushort mlc_to_bf16(float a) { uint u = as_uint(a); "
        "return a != a ? u >> 16 | 64 : (u + 0x7fff + (u >> 16 & 1)) >> 16; }"
    ),
}

# Whether products are rounded before they are added to is open; what is fast, the language tells. A comparison of
# vectors has the highest bit set where it is true, by which `select` goes.
_MATH = VectorMath(
    widths=(2, 4, 8, 16),
    splat="({vector})({value})",
    mad=(
        "#ifdef FP_FAST_FMAF\n#define mlc_mad(a, b, c) fma(a, b, c)\n"
        "#else\n#define mlc_mad(a, b, c) ((a) * (b) + (c))\n#endif"
    ),
    choose="select({b}, {a}, {cond})",
    largest="static {vector} {name}({vector} a, {vector} b) {{ return select(b, a, (a != a) | (a > b)); }}",
    smallest="static {vector} {name}({vector} a, {vector} b) {{ return select(b, a, (a != a) | (a < b)); }}",
    sigmoid=(
        "static {vector} {name}({vector} a) "
        "{{ {vector} e = exp(-fabs(a)); return select(({vector})(1.0f), e, a < 0.0f) / (1.0f + e); }}"
    ),
    load_half="vload_half{n}(0, (__global const half*)({at}))",
    store_half="vstore_half{n}_rte({value}, 0, (__global half*)({at}));",
    round_half=(
        "static float{n} {name}(float{n} a) {{ ushort r[{n}]; vstore_half{n}_rte(a, 0, (__private half*)r); "
        "return vload_half{n}(0, (__private const half*)r); }}"
    ),
)

OPENCL_C = Dialect(
    types={
        "f32": "float", "f64": "double", "i8": "char", "i16": "short", "i32": "int", "i64": "long",
        "u8": "uchar", "u16": "ushort", "u32": "uint", "u64": "ulong", "bool": "uchar",
        "f16": "ushort", "bf16": "ushort",
    },
    conversions=_CONVERSIONS,
    copies={},
    collectives={},
    unsigned={8: "uchar", 16: "ushort", 32: "uint", 64: "ulong"},
    kernel="__kernel __attribute__((reqd_work_group_size({x}, {y}, {z}))) void",
    device="static",
    parameter="__global {type}* restrict {name}",
    constant="__global const {type}* restrict {name}",
    shared="__local {type} {name}[{size}];",
    index={
        "blockIdx.x": "get_group_id(0)", "blockIdx.y": "get_group_id(1)", "blockIdx.z": "get_group_id(2)",
        "threadIdx.x": "get_local_id(0)", "threadIdx.y": "get_local_id(1)", "threadIdx.z": "get_local_id(2)",
    },
    blocks=((1 << 31) - 1,) * 3,
    barrier="barrier(CLK_LOCAL_MEM_FENCE);",
    shuffle="",  # subgroups are an extension that says nothing of their size
    vectors=(2, 4, 8, 16),
    load="vload{n}(0, {at})",
    store="vstore{n}({value}, 0, {at});",
    vector="{type}{n}",
    make="({vector})({values})",
    lane="{value}.s{k}",
    single="",
    infinity="INFINITY",
    nan="NAN",
    preamble="",
    math=_MATH,
)  # fmt: skip

# PoCL looks at all ways from the begin or a barrier to the end before LLVM makes vectors of threads: ten conditions
# written out, such as stores at a ragged edge or taps of a window, take it minutes.
POCL_C = replace(OPENCL_C, unroll="", loop="#pragma nounroll")

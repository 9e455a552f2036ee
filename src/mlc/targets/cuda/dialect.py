"""CUDA C++, as NVRTC takes it: without a single header."""

from __future__ import annotations

from mlc.targets.cuda.arch import STATIC_SHARED
from mlc.targets.cuda.copies import COPIES
from mlc.targets.cuda.mma import COLLECTIVES
from mlc.targets.gpu.dialect import Dialect

# An aligned array is loaded and stored at once, whatever its elements; CUDA's own float4 is there for few types only.
_PREAMBLE = """\
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
template <class T, int N> struct __align__(sizeof(T) * N) mlc_vector { T at[N]; };
template <class T, class... A> __device__ inline mlc_vector<T, sizeof...(A)> mlc_pack(A... a) { return {{T(a)...}}; }
"""

# The types of half precision are in headers that NVRTC has not; what they stand on are conversions of a register.
_CONVERSIONS = {
    "mlc_from_f16": (
        'float mlc_from_f16(unsigned short a) { float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(a)); return r; }'
    ),
    "mlc_to_f16": (
        "unsigned short mlc_to_f16(float a) "
        '{ unsigned short r; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(a)); return r; }'
    ),
    "mlc_from_bf16": "float mlc_from_bf16(unsigned short a) { return __int_as_float(a << 16); }",
    "mlc_to_bf16": (
        "unsigned short mlc_to_bf16(float a) { unsigned u = __float_as_uint(a); "
        "return a != a ? u >> 16 | 64 : (u + 0x7fff + (u >> 16 & 1)) >> 16; }"
    ),
}

CUDA_C = Dialect(
    types={
        "f32": "float", "f64": "double", "i8": "signed char", "i16": "short", "i32": "int", "i64": "long long",
        "u8": "unsigned char", "u16": "unsigned short", "u32": "unsigned", "u64": "unsigned long long",
        "bool": "unsigned char", "f16": "unsigned short", "bf16": "unsigned short",
    },
    conversions=_CONVERSIONS,
    copies=COPIES,
    collectives=COLLECTIVES,
    unsigned={8: "unsigned char", 16: "unsigned short", 32: "unsigned", 64: "unsigned long long"},
    kernel='extern "C" __global__ void __launch_bounds__({threads})',
    device="__device__ inline",
    parameter="{type}* __restrict__ {name}",
    constant="const {type}* __restrict__ {name}",
    shared="__shared__ __align__(16) {type} {name}[{size}];",
    index={
        "blockIdx.x": "blockIdx.x", "blockIdx.y": "blockIdx.y", "blockIdx.z": "blockIdx.z",
        "threadIdx.x": "threadIdx.x", "threadIdx.y": "threadIdx.y", "threadIdx.z": "threadIdx.z",
    },
    blocks=((1 << 31) - 1, 65535, 65535),
    barrier="__syncthreads();",
    shuffle="__shfl_xor_sync(0xffffffff, {value}, {flip})",
    vectors=(2, 4, 8, 16),
    load="*(const {type}*)({at})",
    store="*({type}*)({at}) = {value};",
    vector="mlc_vector<{type}, {n}>",
    make="mlc_pack<{type}>({values})",
    lane="{value}.at[0x{k}]",
    single="f",
    most_shared=STATIC_SHARED,
    dynamic="extern __shared__ __align__(16) unsigned char mlc_shared[];",
    part="{type}* const {name} = ({type}*)(mlc_shared + {at});",
    infinity="INFINITY",
    nan="NAN",
    preamble=_PREAMBLE,
)  # fmt: skip

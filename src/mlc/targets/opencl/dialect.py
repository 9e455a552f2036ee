"""OpenCL C, version 1.2."""

from __future__ import annotations

from mlc.targets.gpu.dialect import Dialect

OPENCL_C = Dialect(
    types={
        "f32": "float", "f64": "double", "i8": "char", "i16": "short", "i32": "int", "i64": "long",
        "u8": "uchar", "u16": "ushort", "u32": "uint", "u64": "ulong", "bool": "uchar",
    },
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
)  # fmt: skip

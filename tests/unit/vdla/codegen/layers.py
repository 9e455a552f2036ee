"""Convolutions on the accelerator for tests: a schedule, the stream of it, and what it must give in plain numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mlc.ir import te
from mlc.ir.expr import Expr, all_of, binary, cast, select, within
from mlc.ir.index import Linear, Var, as_index
from mlc.ir.loop import Function
from mlc.ir.types import DType, i8, i32
from mlc.lower.build import build
from mlc.lower.schedule import Schedule
from mlc.lower.tensorize import tensorize
from mlc.vdla.check import check, describe
from mlc.vdla.codegen.assemble import Dram, Task, assemble
from mlc.vdla.codegen.constants import Constants
from mlc.vdla.codegen.emit import Emitter
from mlc.vdla.codegen.statements import Binding, emit
from mlc.vdla.config import VdlaConfig
from mlc.vdla.intrinsics import ACC, INP, WGT, gemm
from mlc.vdla.program import Program
from mlc.vdla.sim import Device, Report

B = 16


@dataclass
class Conv:
    """A convolution of blocks, ``[c, h, w, 16] * [o, c, r, s, 16, 16]``, and how it is tiled.

    ``epilogue``: ``None`` for int32 sums, else from sums and the place of the element to what is stored.
    """

    c: int = 1
    o: int = 1
    h: int = 8
    w: int = 8
    window: int = 1
    stride: int = 1
    dilation: int = 1
    pad: int = 0
    tile: tuple[int, int, int, int] = (1, 4, 8, 1)  # o, h, w, c
    seed: int = 0
    slots: Mapping[str, int] = field(default_factory=lambda: {ACC: 2})

    @property
    def space(self) -> tuple[int, int]:
        reach = self.dilation * (self.window - 1) + 1
        h, w = ((n + 2 * self.pad - reach) // self.stride + 1 for n in (self.h, self.w))
        return h, w

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(self.seed)
        x = rng.integers(-128, 128, (self.c, self.h, self.w, B)).astype(np.int8)
        w = rng.integers(-128, 128, (self.o, self.c, self.window, self.window, B, B)).astype(np.int8)
        return x, w

    def sums(self) -> np.ndarray:
        """int32 ``[o, h, w, 16]``, by numpy alone."""
        x, w = (a.astype(np.int64) for a in self.arrays())
        x = np.pad(x, ((0, 0), (self.pad, self.pad), (self.pad, self.pad), (0, 0)))
        h, wide = self.space
        out = np.zeros((self.o, h, wide, B), np.int64)
        for r in range(self.window):
            for s in range(self.window):
                y0, x0 = r * self.dilation, s * self.dilation
                part = x[:, y0 : y0 + h * self.stride : self.stride, x0 : x0 + wide * self.stride : self.stride]
                out += np.einsum("chwk,ocjk->ohwj", part, w[:, :, r, s])
        return out.astype(np.int32)


def sums_of(conv: Conv) -> tuple[te.Tensor, te.Tensor, te.Tensor, te.Tensor]:
    """Data, weights, padded data, sums."""
    data = te.placeholder((conv.c, conv.h, conv.w, B), i8, "data")
    weights = te.placeholder((conv.o, conv.c, conv.window, conv.window, B, B), i8, "weights")
    p = conv.pad
    pad = te.compute(
        (conv.c, conv.h + 2 * p, conv.w + 2 * p, B),
        lambda c, y, x, k: select(
            all_of([within(y - p, 0, conv.h), within(x - p, 0, conv.w)]), data[c, y - p, x - p, k], 0
        ),
        "pad",
        axis_names=("c", "y", "x", "k"),
    )
    ko, ki = te.reduce_axis(conv.c, "ko"), te.reduce_axis(B, "ki")
    r, s = te.reduce_axis(conv.window, "r"), te.reduce_axis(conv.window, "s")
    step, apart = conv.stride, conv.dilation
    sums = te.compute(
        (conv.o, *conv.space, B),
        lambda o, y, x, j: te.sum_of(
            cast(pad[ko, y * step + as_index(r) * apart, x * step + as_index(s) * apart, ki], i32)
            * cast(weights[o, ko, r, s, j, ki], i32),
            (ko, r, s, ki),
        ),
        "sums",
        axis_names=("o", "y", "x", "j"),
    )
    return data, weights, pad, sums


def schedule_sums(
    s: Schedule, conv: Conv, sums: te.Tensor, pad: te.Tensor, tiles: te.Tensor, config: VdlaConfig
) -> None:
    """Order of a product whose result is attached: reductions outside, operands loaded at the outer one."""
    stage = s[sums]
    o, y, x, j = stage.axes
    ko, r, t, ki = stage.reduce_axes
    kc, kb = stage.split(ko, conv.tile[3])
    stage.reorder(kc, o, kb, r, t, y, x, j, ki)
    stage.set_scope(ACC)
    stage.tensorize(j, gemm(config))
    for operand, scope in ((pad, INP), (tiles, WGT)):
        s[operand].set_scope(scope)
        s[operand].compute_at(stage, kc)


def tiled(s: Schedule, out: te.Tensor, conv: Conv) -> Var:
    """Split a result in tiles; gives the innermost loop over tiles."""
    stage = s[out]
    o, y, x, j = stage.axes
    oo, oi = stage.split(o, conv.tile[0])
    yo, yi = stage.split(y, conv.tile[1])
    xo, xi = stage.split(x, conv.tile[2])
    stage.reorder(oo, yo, xo, oi, yi, xi, j)
    return xo


def plain(conv: Conv, config: VdlaConfig) -> Function:
    """A convolution that stores its sums."""
    data, weights, pad, sums = sums_of(conv)
    s = Schedule([sums])
    acc = s.cache_write(sums, ACC)
    tiles = s.cache_read(weights, WGT, [acc])
    at = tiled(s, sums, conv)
    s[acc].compute_at(s[sums], at)
    schedule_sums(s, conv, acc, pad, tiles, config)
    return lowered(s, [data, weights, sums], "conv")


def lowered(s: Schedule, params: Sequence[te.Tensor], name: str) -> Function:
    fn = build(s, params, name)
    return Function(fn.name, fn.params, fn.outputs, tensorize(fn.body), fn.attrs)


def program_of(
    fn: Function, config: VdlaConfig, constants: Mapping[int, np.ndarray], slots: Mapping[str, int]
) -> Program:
    """A program of one kernel; parameters with known arrays are constants."""
    packed = Constants()
    emitter = Emitter(config, packed)
    buffers = []
    bindings = []
    for k, b in enumerate(fn.params):
        out = k >= len(fn.params) - fn.outputs
        buffers.append(Dram(b.name, "const" if k in constants else "out" if out else "in", b.nbytes))
        bindings.append(Binding(k, constants.get(k)))
    emit(emitter, fn, bindings, slots)
    return assemble(config, emitter.steps, buffers, packed, [Task(fn.name, 0, 0)])


def executed(
    program: Program, arrays: Mapping[str, np.ndarray], shape: Sequence[int], dtype: DType, out: str
) -> tuple[np.ndarray, Report]:
    """Check a program, run it, and give its output."""
    violations = check(program)
    assert not violations, "\n".join(describe(program, v) for v in violations[:5])
    device = Device(program.config)
    for name, array in arrays.items():
        device.bind(name, np.ascontiguousarray(array))
    result = np.full(shape, 99, dtype.numpy)
    device.bind(out, result)
    report = device.run(program)
    return result, report


@dataclass
class Finish:
    """What happens to sums before they are stored as int8.

    ``bias``, ``shifts``: one number a channel; ``shift``: for all; ``residual``: added after ``<< up``, ``ahead`` of
    the product.
    """

    bias: bool = False
    shift: int = 7
    shifts: bool = False
    residual: bool = False
    up: int = 0
    ahead: bool = False
    relu: bool = False
    most: int | None = None

    def constants(self, conv: Conv) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(conv.seed + 1)
        known = {}
        if self.bias:
            known["bias"] = rng.integers(-(1 << 20), 1 << 20, (conv.o, B)).astype(np.int32)
        if self.shifts:
            known["shifts"] = rng.integers(0, 12, (conv.o, B)).astype(np.int32)
        return known

    def other(self, conv: Conv) -> np.ndarray:
        rng = np.random.default_rng(conv.seed + 2)
        return rng.integers(-128, 128, (conv.o, *conv.space, B)).astype(np.int8)

    def result(self, conv: Conv) -> np.ndarray:
        """int8 ``[o, h, w, 16]``, by numpy alone."""
        known = {k: v[:, None, None].astype(np.int64) for k, v in self.constants(conv).items()}
        v = conv.sums().astype(np.int64) + known.get("bias", 0)
        if self.residual:
            v = v + (self.other(conv).astype(np.int64) << self.up)
        if self.relu:
            v = np.maximum(v, 0)
        if self.most is not None:
            v = np.minimum(v, self.most)
        s = known.get("shifts", self.shift)
        v = np.where(s > 0, (v + (1 << np.maximum(s, 1) >> 1)) >> s, v)
        return np.clip(v, -128, 127).astype(np.int8)


def rounded(v: Expr, by: Expr | int) -> Expr:
    """``v / 2**by``, halves up."""
    if isinstance(by, int):
        return binary("shr", v, by) + binary("and", binary("shr", v, by - 1), 1) if by else v
    half = binary("and", binary("shr", v, binary("max", by, 1) - 1), 1)
    return select(binary("gt", by, 0), binary("shr", v, by) + half, v)


def finished(conv: Conv, finish: Finish, config: VdlaConfig) -> tuple[Function, dict[int, np.ndarray]]:
    """A convolution that stores int8, and which of its parameters are constants."""
    data, weights, pad, sums = sums_of(conv)
    extra = {name: te.placeholder((conv.o, B), i32, name) for name in finish.constants(conv)}
    params = [data, weights, *extra.values()]
    known = {1: conv.arrays()[1], **{2 + k: v for k, v in enumerate(finish.constants(conv).values())}}
    other = ident = identity = wide = None
    if finish.residual:
        given = other = te.placeholder(sums.shape, i8, "other")
        params.append(other)
        if config.ext_alu:
            wide = te.compute(other.shape, lambda *at: cast(given[tuple(at)], i32), "wide")
        if wide is not None and finish.ahead:
            loaded = wide
            wide = te.compute(other.shape, lambda *at: binary("shl", loaded[tuple(at)], finish.up), "moved")
    if finish.residual and not config.ext_alu:
        # 2**up times the unit matrix
        ident = te.placeholder((B, B), i8, "unit")
        known[len(params)] = (np.eye(B) * (1 << finish.up)).astype(np.int8)
        params.append(ident)
        k = te.reduce_axis(B, "k")
        assert other is not None
        more, unit = other, ident
        identity = te.compute(
            sums.shape, lambda o, y, x, j: te.sum_of(cast(more[o, y, x, k], i32) * cast(unit[j, k], i32), k), "more"
        )

    def element(o: Linear, y: Linear, x: Linear, j: Linear) -> Expr:
        v: Expr = sums[o, y, x, j]
        if "bias" in extra:
            v = v + extra["bias"][o, j]
        if identity is not None:
            v = v + identity[o, y, x, j]
        elif wide is not None:
            more = wide[o, y, x, j]
            v = more + v if finish.ahead else v + (binary("shl", more, finish.up) if finish.up else more)
        if finish.relu:
            v = binary("max", v, 0)
        if finish.most is not None:
            v = binary("min", v, finish.most)
        v = rounded(v, extra["shifts"][o, j] if "shifts" in extra else finish.shift)
        return cast(binary("min", binary("max", v, -128), 127), i8)

    out = te.compute(sums.shape, element, "out", axis_names=("o", "y", "x", "j"))
    s = Schedule([out])
    tiles = s.cache_read(weights, WGT, [sums])
    at = tiled(s, out, conv)
    for name in extra:
        cached = s.cache_read(extra[name], ACC, [out])
        s[cached].compute_at(s[out], at)
    s[sums].compute_at(s[out], at)
    schedule_sums(s, conv, sums, pad, tiles, config)
    for stage in [stage for stage in s.stages if stage.name in ("wide", "moved")]:
        stage.set_scope(ACC)
        stage.compute_at(s[out], at)
    if identity is not None:
        assert other is not None
        assert ident is not None
        stage = s[identity]
        stage.set_scope(ACC)
        stage.tensorize(stage.axes[-1], gemm(config))
        for t, scope in ((other, INP), (ident, WGT)):
            cached = s.cache_read(t, scope, [identity])
            s[cached].compute_at(s[out], at)
        stage.compute_at(s[out], at)
    return lowered(s, [*params, out], "layer"), known

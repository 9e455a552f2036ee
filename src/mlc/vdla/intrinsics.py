"""What schedules see of the accelerator: its memories by scope, and its matrix product as a tensor expression."""

from __future__ import annotations

from dataclasses import dataclass

from mlc.ir import te
from mlc.ir.expr import cast
from mlc.ir.intrinsic import Kind, Operand, TensorIntrinsic
from mlc.ir.types import i8, i32
from mlc.vdla.config import VdlaConfig
from mlc.vdla.isa.instruction import Mem

INP, WGT, ACC = "vdla.inp", "vdla.wgt", "vdla.acc"


@dataclass(frozen=True)
class Scope:
    """One on-chip memory.

    Args:
        name: as in ``Stage.set_scope``.
        mem: what loads of it name.
        lanes: numbers in one element, the unit of addresses.
        depth: elements.
    """

    name: str
    mem: Mem
    lanes: int
    depth: int


def scopes(config: VdlaConfig) -> dict[str, Scope]:
    """The memories of a configuration by name."""
    return {
        INP: Scope(INP, Mem.INP, config.inp_element, config.inp_depth),
        WGT: Scope(WGT, Mem.WGT, config.wgt_element, config.wgt_depth),
        ACC: Scope(ACC, Mem.ACC, config.out_element, config.acc_depth),
    }


def gemm(config: VdlaConfig) -> TensorIntrinsic:
    """``y[b, j] = sum(i32(x[b, k]) * i32(w[j, k]) for k)``, one step of the GEMM unit; no ``b`` where batch is 1."""
    k = te.reduce_axis(config.block_in, "k")
    rows = () if config.batch == 1 else (config.batch,)
    x = te.placeholder((*rows, config.block_in), i8, "x")
    w = te.placeholder((config.block_out, config.block_in), i8, "w")
    y = te.compute(
        (*rows, config.block_out),
        lambda *at: te.sum_of(cast(x[(*at[:-1], k)], i32) * cast(w[at[-1], k], i32), k),
        "y",
    )
    memory = scopes(config)
    operands = {t: Operand(s, memory[s].lanes) for t, s in ((x, INP), (w, WGT), (y, ACC))}
    return TensorIntrinsic("vdla.gemm", y, operands, (Kind.BODY, Kind.RESET, Kind.UPDATE))

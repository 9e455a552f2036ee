"""A stream becomes a program that says which instructions are whose."""

from __future__ import annotations

from mlc.vdla.codegen.assemble import Task, _ranges
from mlc.vdla.codegen.stream import Step, Touched
from mlc.vdla.isa.instruction import Finish, Gemm, GemmMode


def test_a_layer_of_which_the_compute_unit_does_nothing_is_empty() -> None:
    """Where a bias outweighs all else, what remains of a layer may be constants that are there already."""
    steps = [Step(Finish(), layer=k) for k in (0, 0, 1, 3)]
    gemm = Gemm(GemmMode.SET, 0, 0, 1, 1, 0, 1, 0, 1, 0, 0)
    work = [Step(gemm, touched=Touched(slice(0, 1)), layer=k) for k in (0, 1, 3)]
    found = _ranges([Task(name, 1, 1) for name in "abcde"], [*steps, *work])
    assert [(r["first"], r["last"]) for r in found] == [(0, 5), (5, 6), (6, 6), (6, 7), (7, 7)]

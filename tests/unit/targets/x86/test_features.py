"""What a package says that a machine must have: all that LLVM may have used."""

from __future__ import annotations

import re

import pytest

from mlc.ir.expr import Load, cast
from mlc.ir.index import Var, as_index
from mlc.ir.loop import Buffer, For, ForKind, Function, Store
from mlc.ir.types import f16, i16
from mlc.targets.base import CallSpec, get_target
from mlc.targets.x86 import features, record
from mlc.targets.x86.features import needed_features
from mlc.targets.x86.record import record_for


def test_half_precision_instructions_are_asked_for_where_they_are_used() -> None:
    """Sapphire Rapids converts and moves halves with instructions that Skylake stops at."""
    i = Var("i", 0, 15)
    a, out = Buffer("a", (16,), i16), Buffer("out", (16,), f16)
    body = Store(out, (as_index(i),), cast(Load(a, (as_index(i),)), f16))
    fn = Function("k", (a, out), 1, For(i, 16, ForKind.SERIAL, body))
    call = CallSpec("k", (("input", 0), ("output", 0)))
    for cpu, used in (("sapphirerapids", True), ("icelake-server", False)):
        target = get_target(f"x86 -mcpu={cpu}")
        text = target.assembly(target.codegen(target.emit({"k": fn}), [call], opt_level=3).sources, opt_level=3)
        assert bool(re.search(r"\t(vmovw|vcvtw2ph|vcvtsi2sh|vcvtps2phx)\t", text)) is used
        assert ("avx512fp16" in needed_features(record_for(cpu))) is used


@pytest.mark.parametrize(
    "cpu, lacking, having",
    [
        ("x86-64", "ssse3", "sse2"),
        ("sandybridge", "avx2", "avx"),
        ("haswell", "avx512f", "fma"),
        ("knl", "avx512vl", "avx512f"),
        ("skylake-avx512", "avx512vnni", "avx512vl"),
        ("icelake-server", "avx512fp16", "avx512vbmi"),
        ("znver3", "gfni", "sse4a"),
    ],
)
def test_processors_have_what_their_makers_state(cpu: str, lacking: str, having: str) -> None:
    needed = needed_features(record_for(cpu))
    assert having in needed
    assert lacking not in needed


def test_flags_add_and_take_away() -> None:
    needed = needed_features(record_for("sapphirerapids", ("-avx512fp16", "+xop", "+clwb")))
    assert "avx512fp16" not in needed
    assert "xop" in needed
    assert "clwb" not in needed, "no code comes to use it"


def test_features_are_of_processors_that_are_known() -> None:
    assert set(features._OF) <= {*record._AVX512, *record._AVX2, *record._SSE}

"""Products of bits as instructions: what processors have for them, what is gained, and the innermost loops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

import mlc
from mlc.frontend.base import ModelSource
from mlc.ir.graph import Builder, Graph
from mlc.ir.types import TensorType, u8, u32, u64
from mlc.ops import get
from mlc.ops.bits import PAIR, WORD, Weights, pack_constant
from mlc.pipeline.passes import optimise
from mlc.settings import CompileOptions, Observer
from mlc.targets.arm.record import record_for as arm_record
from mlc.targets.base import get_target
from mlc.targets.cpu.estimate import estimate
from mlc.targets.cpu.loops import InnerLoop, inner_loops
from mlc.targets.x86.record import record_for as x86_record
from tests.unit.targets.cpu.test_target import kernel_text, prepared

TARGETS = ("x86 -mcpu=znver4", "x86 -mcpu=haswell", "arm -mcpu=cortex-a53", "arm -mcpu=cortex-a76")


def convolution(channels: int = 256, filters: int = 128) -> Graph:
    """Data of two bits by bipolar weights of one."""
    b = Builder()
    x = b.input("x", TensorType((1, channels // 32, 14, 14), u64))
    bits = np.random.default_rng(0).integers(0, 2, (filters, channels, 3, 3))
    attrs = {"strides": (1, 1), "pads": (1,) * 4, "dilations": (1, 1), "weights": Weights.BIPOLAR.value}
    return b.finish(b.add(get("conv_bits"), [x, b.constant(pack_constant(bits, 1, 1), "w")], attrs))


def innermost(target: str) -> InnerLoop:
    model = mlc.Model(convolution(), ModelSource("test", "", "bits", "", "0" * 64, (), ()), "test")
    sources = {"model.ll": mlc.compile(model, target).members["src/model.ll"].decode()}
    return max(inner_loops(get_target(target).assembly(sources)), key=lambda found: found.multiply_adds)


@pytest.mark.parametrize("target", TARGETS)
def test_innermost_loop(target: str, golden: Callable[[str], None]) -> None:
    """Instructions by name: no sum leaves its register, and nothing but the product is left."""
    found = innermost(target)
    stack = ("(%rsp)", "[sp")
    assert not [line for line in found.text if any(s in line for s in stack)]
    golden("".join(f"{n:4} {name}\n" for name, n in sorted(Counter(t.split()[0] for t in found.text).items())))


def test_what_processors_count_with() -> None:
    names = {
        cpu: getattr(x86_record(cpu).bit_counter, "name", None)
        for cpu in ("znver4", "icelake-server", "skylake-avx512", "haswell", "x86-64-v2", "x86-64", "core2", "knl")
    }
    assert names == {
        "znver4": "vpopcntd", "icelake-server": "vpopcntd", "skylake-avx512": "vpshufb", "haswell": "vpshufb",
        "x86-64-v2": "vpshufb", "x86-64": None, "core2": "vpshufb", "knl": None,
    }  # fmt: skip
    counter = arm_record("cortex-a53").bit_counter
    assert counter is not None
    assert counter.name == "cnt"


def test_one_instruction_a_kind_of_product() -> None:
    record = x86_record("znver4")
    assert record.dot_of(u64, u32, Weights.BIPOLAR) is record.dot_of(u64, u32, Weights.BIPOLAR)
    assert record.dot_of(u64, u32) is None
    assert x86_record("x86-64").dot_of(u64, u32, Weights.BIPOLAR) is None


@pytest.mark.parametrize(
    ("cpu", "channels", "filters", "of_w", "stride", "pays"),
    [
        ("x86 -mcpu=znver4", 256, 128, 1, 1, True),
        ("x86 -mcpu=znver4", 16, 128, 1, 1, False),  # a pair of words is mostly empty
        ("x86 -mcpu=znver4", 256, 4, 1, 1, False),  # as are vectors of results
        ("x86 -mcpu=haswell", 256, 128, 1, 2, True),
        ("x86 -mcpu=haswell", 256, 128, 1, 1, False),  # Winograd's algorithm, exact in words, is faster
        ("x86 -mcpu=x86-64", 256, 128, 1, 1, False),  # no table of nibbles
        ("x86 -mcpu=cascadelake", 256, 128, 2, 1, False),  # tables are no faster than VNNI
        ("arm -mcpu=cortex-a53", 256, 128, 1, 1, True),
    ],
)
def test_bits_are_taken_where_they_pay(
    cpu: str, channels: int, filters: int, of_w: int, stride: int, pays: bool
) -> None:
    b = Builder("net")
    x = b.input("x", TensorType((1, channels, 14, 14), u8))
    (few,) = b.add(get("clip"), [x], {"lo": 0, "hi": 3})
    levels = (-1, 1) if of_w == 1 else (-3, -1, 1, 3)
    w = b.constant(np.random.default_rng(0).choice(levels, (filters, channels, 3, 3)).astype(np.int8), "w")
    attrs = {"strides": (stride,) * 2, "pads": (1,) * 4, "dilations": (1, 1)}
    graph = b.finish(b.add(get("conv"), [few, w], attrs))
    found = optimise(graph, get_target(cpu), CompileOptions("net", "", ""), Observer())
    assert ("conv_bits" in repr(found)) is pays


def test_kernels_hold_the_instruction() -> None:
    text = kernel_text(prepared(convolution()).nodes[0], "x86 -mcpu=znver4")
    assert "@llvm.ctpop.v16i32" in text


@pytest.mark.parametrize("target", TARGETS)
def test_estimates_count_all_instructions_of_a_product(target: str) -> None:
    made = get_target(target)
    kernel = made.kernel(prepared(convolution(), target).nodes[0], "k")
    found = estimate(kernel, made.record)
    products = 14 * 14 * 128 // made.record.lanes * 9 * 256 // (PAIR * WORD)
    dot = made.record.dot_of(u64, u32, Weights.BIPOLAR)
    least = products * dot.operations / made.record.fmas
    assert least <= found.cycles < 1.6 * least

"""Strided reads that become transpositions in registers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mlc.ir import loop, te
from mlc.ir.expr import Expr, Load, binary, const, select, within
from mlc.ir.index import Linear, Var, as_index
from mlc.ir.interp import run_function
from mlc.ir.layout import blocked
from mlc.ir.types import f32
from mlc.lower import Schedule, lower
from mlc.lower.relayout import relayout
from mlc.targets.cpu.schedules.injective import spread
from mlc.targets.llvm.function import emit_function
from mlc.targets.llvm.module import ModuleText
from mlc.targets.llvm.transpose import shuffles
from mlc.targets.x86.record import record_for
from tests.unit.targets.llvm.host import Kernel


@pytest.mark.parametrize("size", [4, 8, 16])
def test_shuffles_transpose(size: int) -> None:
    rows = [np.arange(size) + size * k for k in range(size)]
    for distance, *masks in shuffles(size):
        low, high = ([int(w.removeprefix("i32 ")) for w in m.split("<")[2].strip(">").split(", ")] for m in masks)
        for k in range(size):
            if not k & distance:
                both = np.concatenate([rows[k], rows[k | distance]])
                rows[k], rows[k | distance] = both[low], both[high]
    np.testing.assert_array_equal(np.stack(rows), np.arange(size * size).reshape(size, size).T)


@pytest.mark.parametrize("to_blocks", [True, False])
def test_conversions_between_layouts_do_not_gather(to_blocks: bool) -> None:
    target = record_for("haswell")
    shape = (1, 16, 5, 24)
    x = te.placeholder(shape, f32, "x")
    y = te.compute(shape, lambda n, c, h, w: x[n, c, h, w], "y", axis_names="nchw")
    layout = blocked(shape, 1, 8)
    (out,), new = relayout([y], {y: layout} if to_blocks else {x: layout})
    s = Schedule([out])
    spread(s[out], target)
    fn = lower(s, [new.get(x, x), out], "k")
    array = np.random.default_rng(0).standard_normal(shape, np.float32)
    result = np.empty(out.shape, np.float32)
    run_function(fn, [array if to_blocks else layout.pack(array), result])
    np.testing.assert_array_equal(result, layout.pack(array) if to_blocks else array)
    module = ModuleText()
    emit_function(fn, module)
    text = "\n".join(module.definitions)
    assert "gather" not in text
    assert "shufflevector <8 x float>" in text


@pytest.mark.parametrize("height, width, columns", [(2, 16, 16), (3, 21, 16), (3, 21, 19)])
def test_transposes_between_reshapes_do_not_gather(height: int, width: int, columns: int) -> None:
    """As vision transformers have them around a depthwise convolution; rows that are no whole vectors, too."""
    target = record_for("haswell")
    x = te.placeholder((height * width, columns), f32, "x")
    turned = te.compute((columns, height * width), lambda i, j: x[j, i], "turned")
    y = te.compute((columns, height, width), lambda c, h, w: turned[c, h * width + w], "y")
    s = Schedule([y])
    s[turned].compute_inline()
    spread(s[y], target)
    fn = lower(s, [x, y], "k")
    array = np.random.default_rng(0).standard_normal(x.shape, np.float32)
    result = np.empty(y.shape, np.float32)
    run_function(fn, [array, result])
    np.testing.assert_array_equal(result, array.T.reshape(y.shape))
    module = ModuleText()
    emit_function(fn, module)
    assert "shufflevector <8 x float>" in "\n".join(module.definitions)


def test_axes_of_one_element_do_not_hide_a_transpose() -> None:
    """As the weights of convolutions of single pixels have them, turned around for the derivative by the data."""
    target = record_for("haswell")
    x = te.placeholder((16, 24, 1, 1), f32, "x")
    y = te.compute((24, 16, 1, 1), lambda i, j, h, w: x[j, i, h, w], "y")
    s = Schedule([y])
    spread(s[y], target)
    fn = lower(s, [x, y], "k")
    array = np.random.default_rng(0).standard_normal(x.shape, np.float32)
    result = np.empty(y.shape, np.float32)
    run_function(fn, [array, result])
    np.testing.assert_array_equal(result, array.transpose(1, 0, 2, 3))
    module = ModuleText()
    emit_function(fn, module)
    assert "gather" not in "\n".join(module.definitions)


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize(
    "width, before, stride", [(14, 1, 1), (16, 0, 1), (13, 2, 1), (40, 3, 1), (27, 1, 2), (30, 2, 2)]
)
def test_zeros_around_rows_are_no_rows_of_the_square(masks: bool, width: int, before: int, stride: int) -> None:
    """As a convolution's input in blocks of channels is copied with its border; nothing outside of it is touched."""
    x = te.placeholder((2, 3, width, 16), f32, "x")
    columns = -(-(width + 2 * before) // stride)

    def element(c: Linear, h: Linear, w: Linear) -> Expr:
        at = w * stride - before
        return select(within(at, 0, width), x[c // 16, h, at, c % 16], const(0, f32))

    y = te.compute((32, 3, columns), element, "y")
    s = Schedule([y])
    stage = s[y]
    c, h, w = stage.op.axes
    block, inner = stage.split(c, 16)
    vectors, lane = stage.split(w, 16)
    stage.reorder(block, h, vectors, inner, lane)
    stage.unroll(inner)
    stage.vectorize(lane)
    fn = lower(s, [x, y], "k")
    array, result = np.random.default_rng(0).standard_normal(x.shape, np.float32), np.empty(y.shape, np.float32)
    kernel = Kernel(fn, masks=masks)
    wanted = np.zeros((2, 16, 3, columns * stride), np.float32)
    wanted[..., before : before + width] = array.transpose(0, 3, 1, 2)[..., : columns * stride - before]
    for at_end in (True, False):
        kernel.run([array, result], at_end=at_end)
        np.testing.assert_array_equal(result, wanted[..., ::stride].reshape(y.shape))
    assert not masks or "gather" not in kernel.text


@pytest.mark.parametrize("outer, channels, taps", [(5, 16, (3, 3)), (3, 37, (3, 3)), (2, 32, (2, 3)), (3, 20, (1, 5))])
@pytest.mark.parametrize("masks", [False, True])
def test_gradients_of_taps_are_turned_beside_other_results(
    masks: bool, outer: int, channels: int, taps: tuple[int, int]
) -> None:
    """As a momentum takes in the derivative of a convolution's weights, whose channels lie along memory."""
    x = te.placeholder((outer, *taps, channels), f32, "x")
    m = te.placeholder((outer, channels, *taps), f32, "m")
    limit = te.placeholder((1,), f32, "limit")
    turned = te.compute(m.shape, lambda i, j, k, h: x[i, k, h, j], "turned")
    moment, new = te.compute_many(
        m.shape,
        lambda i, j, k, h: (
            select(binary("lt", limit[0], 1.0), turned[i, j, k, h] + m[i, j, k, h], m[i, j, k, h]),
            m[i, j, k, h] - turned[i, j, k, h],
        ),
        "both",
    )
    s = Schedule([moment, new])
    s[turned].compute_inline()
    spread(s[moment], record_for("znver4"))
    fn = lower(s, [x, m, limit, moment, new], "k")
    rng = np.random.default_rng(0)
    one, two = (rng.standard_normal(t.shape, np.float32) for t in (x, m))
    results = [np.empty(m.shape, np.float32) for _ in range(2)]
    kernel = Kernel(fn, masks=masks)
    for at_end in (True, False):
        kernel.run([one, two, np.zeros(1, np.float32), *results], at_end=at_end)
        turned_round = one.transpose(0, 3, 1, 2)
        np.testing.assert_array_equal(results, [turned_round + two, two - turned_round])
    assert not masks or channels % 16 or "gather" not in kernel.text


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    "outputs, channels, taps", [(32, 32, (3, 3)), (48, 16, (2, 4)), (16, 32, (4, 4)), (32, 16, (1, 3))]
)
def test_weights_of_windows_are_packed_without_gathers(
    turned: bool, outputs: int, channels: int, taps: tuple[int, int]
) -> None:
    """Weights that are learned, for a convolution and, turned around, for its derivative by the data."""
    target = record_for("znver4")
    height, width = taps
    w = te.placeholder((outputs, channels, *taps), f32, "w")
    if turned:
        y = te.compute((channels, outputs, *taps), lambda i, j, k, h: w[j, i, height - 1 - k, width - 1 - h], "y")
    else:
        y = te.compute(w.shape, lambda i, j, k, h: w[i, j, k, h], "y")
    layout = blocked(y.shape, 0, 16)
    (out,), new = relayout([y], {y: layout})
    s = Schedule([out])
    spread(s[out], target)
    fn = lower(s, [new.get(w, w), out], "k")
    array = np.random.default_rng(0).standard_normal(w.shape, np.float32)
    result = np.empty(out.shape, np.float32)
    kernel = Kernel(fn, masks=True)
    kernel.run([array, result])
    plain = array.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1] if turned else array
    np.testing.assert_array_equal(result, layout.pack(np.ascontiguousarray(plain)))
    assert height * width < 8 or "gather" not in kernel.text


@pytest.mark.parametrize("nested", [False, True])
def test_columns_that_were_written_since_are_read_again(nested: bool) -> None:
    """As sums in memory are that rows of a tile add to, and an activation reads then."""
    rows, columns = 4, 6
    x, t, y, z = (loop.Buffer(name, (rows, columns), f32) for name in "xtyz")
    lane, zero = Var("lane", 0, rows - 1), const(0.0, f32)

    def column(j: int) -> tuple[Linear, Linear]:
        return as_index(lane), as_index(j)

    def each(to: loop.Buffer, value: Callable[[int], Expr]) -> list[loop.Stmt]:
        return [loop.Store(to, column(j), value(j), lane) for j in range(columns)]

    added = each(t, lambda j: Load(t, column(j)) + Load(x, column(j)))
    again: list[loop.Stmt] = (
        [loop.For(Var("again", 0, 1), 2, loop.ForKind.SERIAL, loop.seq(added))] if nested else added
    )
    first, last = (each(to, lambda j: Load(t, column(j))) for to in (z, y))
    fn = loop.Function("kernel", (x, t, z, y), 3, loop.seq([*each(t, lambda j: zero), *first, *again, *last]))
    array = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    results = [np.empty((rows, columns), np.float32) for _ in range(3)]
    Kernel(fn).run([array, *results])
    wanted = (2 if nested else 1) * array
    for got, want in zip(results, (wanted, 0 * array, wanted), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("channels", [9, 17, 24])
def test_reads_from_one_place_on_may_be_of_other_rows(masks: bool, channels: int) -> None:
    """Of eight pixels with a border, the second vector of a block begins where the first of the next block does."""
    size = 8
    x = te.placeholder((-(-channels // size), size, size), f32, "x")

    def element(c: Linear, w: Linear) -> Expr:
        return select(within(w - 1, 0, size), x[c // size, w - 1, c % size], const(0, f32))

    y = te.compute((channels, 2 * size), element, "y")
    s = Schedule([y])
    stage = s[y]
    c, w = stage.op.axes
    block, inner = stage.split(c, size)
    vectors, lane = stage.split(w, size)
    stage.reorder(block, vectors, inner, lane)
    for a in (block, vectors, inner):
        stage.unroll(a)
    stage.vectorize(lane)
    fn = lower(s, [x, y], "k")
    array, expected = np.random.default_rng(0).standard_normal(x.shape, np.float32), np.empty(y.shape, np.float32)
    run_function(fn, [array, expected])
    assert expected.any(axis=1).all()
    result = np.full(y.shape, 77, np.float32)
    Kernel(fn, masks=masks).run([array, result])
    np.testing.assert_array_equal(result, expected)

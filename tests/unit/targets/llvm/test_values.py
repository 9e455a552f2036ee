"""Memory accesses of compiled kernels: guarded loads stay inside their buffers, lanes are gathered and scattered."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest

from mlc.ir.expr import Expr, IndexValue, Load, all_of, as_expr, binary, cast, const, select, within
from mlc.ir.index import IndexLike, Linear, Var, as_index, dynamic
from mlc.ir.interp import run_function
from mlc.ir.loop import Allocate, Buffer, For, ForKind, Function, Store, seq
from mlc.ir.types import ALL_DTYPES, DType, bf16, boolean, f16, f32, f64, i8, i32, i64, u8
from mlc.targets.llvm.function import emit_function
from mlc.targets.llvm.module import ModuleText
from tests.unit.targets.llvm.host import Kernel, guarded

DTYPES = list(ALL_DTYPES.values())
N = 7
I = Var("i", 0, N + 1)
LEVELS = [0, 3]


def lanes(n: int) -> Var:
    return Var("lane", 0, n - 1)


def check(fn: Function, *arrays: np.ndarray, masks: bool = False) -> str:
    """Interpreted equals compiled, at both levels and with memory that ends before and after every array.

    Gives the LLVM text.
    """
    outs = [np.full(b.shape, 77, b.dtype.numpy) for b in fn.params[len(arrays) :]]
    want = [o.copy() for o in outs]
    run_function(fn, [*arrays, *want])
    for level in LEVELS:
        kernel = Kernel(fn, level, masks=masks)
        for at_end in (False, True):
            got = [o.copy() for o in outs]
            kernel.run([*arrays, *got], at_end=at_end)
            for g, w in zip(got, want, strict=True):
                np.testing.assert_array_equal(g.astype(np.float64), w.astype(np.float64), err_msg=repr(fn))
    return kernel.text


def kernel(params: Sequence[Buffer], *stmts: Store) -> Function:
    return Function("kernel", tuple(params), 1, seq(stmts))


def values(dtype: DType, *shape: int) -> np.ndarray:
    rng = np.random.default_rng(5)
    return rng.integers(0, 2 if dtype is boolean else 100, shape).astype(dtype.numpy)


# -- guards -----------------------------------------------------------------------------------------------------------
def padded(x: Buffer, ix: IndexLike) -> Expr:
    """``x`` with one element of padding on both sides."""
    before = as_index(ix) - 1
    return select(within(before, 0, N), Load(x, (before,)), const(1, x.dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_guarded_loads_of_lanes_touch_only_their_buffer(dtype: DType) -> None:
    x, out, lane = Buffer("x", (N,), dtype), Buffer("out", (N + 2,), dtype), lanes(N + 2)
    text = check(kernel([x, out], Store(out, (as_index(lane),), padded(x, lane), lane)), values(dtype, N))
    assert "llvm.masked.load" in text


@pytest.mark.parametrize("dtype", [f16, f32, i64, boolean, bf16], ids=str)
def test_guarded_loads_of_scalars_touch_only_their_buffer(dtype: DType) -> None:
    x, out = Buffer("x", (N,), dtype), Buffer("out", (N + 2,), dtype)
    fn = kernel([x, out], Store(out, (as_index(I),), padded(x, I)))
    fn.body = For(I, N + 2, ForKind.SERIAL, fn.body)
    assert "phi" in check(fn, values(dtype, N))


@pytest.mark.parametrize("dtype", [f32, i8, bf16], ids=str)
@pytest.mark.parametrize("step, how", [(-1, "load"), (2, "load"), (3, "load"), (-3, "load"), (5, "gather")])
def test_guarded_loads_at_a_distance_touch_only_their_buffer(dtype: DType, step: int, how: str) -> None:
    size = abs(step) * N
    x, out, lane = Buffer("x", (size,), dtype), Buffer("out", (N + 2,), dtype), lanes(N + 2)
    at = as_index(lane) * step + (-1 if step > 0 else size)
    value = select(within(at, 0, size), Load(x, (at,)), const(1, dtype))
    text = check(kernel([x, out], Store(out, (as_index(lane),), value, lane)), values(dtype, size))
    assert {"load", "gather"} & set(re.findall(r"llvm\.masked\.(\w+)", text)) == {how}


@pytest.mark.parametrize("dtype", [f32, u8, bf16, boolean], ids=str)
@pytest.mark.parametrize("step", [1, 2])
def test_zeros_around_what_is_loaded_are_not_chosen_again(dtype: DType, step: int) -> None:
    size = step * N
    x, out, lane = Buffer("x", (size,), dtype), Buffer("out", (N + 2,), dtype), lanes(N + 2)
    at = as_index(lane) * step - 1
    inner = select(within(at, 0, size), Load(x, (at,)), const(0, dtype))
    value = select(within(lane, 0, N), inner, const(0, dtype))
    text = check(kernel([x, out], Store(out, (as_index(lane),), value, lane)), values(dtype, size))
    assert "llvm.masked.load" in text
    assert "= select" not in text


@pytest.mark.parametrize("other", [-0.0, 1.0])
def test_what_is_not_zero_is_chosen(other: float) -> None:
    x, out, lane = Buffer("x", (N,), f32), Buffer("out", (N + 2,), f32), lanes(N + 2)
    at = as_index(lane) - 1
    inner = select(within(at, 0, N), Load(x, (at,)), const(other, f32))
    value = select(within(lane, 0, N), inner, const(0, f32))
    text = check(kernel([x, out], Store(out, (as_index(lane),), value, lane)), values(f32, N))
    assert text.count("= select") == 2


@pytest.mark.parametrize("step", [-4, -1, 2, 3, 4, 6])
def test_loads_at_a_distance_stay_between_the_first_and_the_last(step: int) -> None:
    size = abs(step) * 7 + 1
    x, out, lane = Buffer("x", (size,), f32), Buffer("out", (8,), f32), lanes(8)
    at = as_index(lane) * step + (0 if step > 0 else size - 1)
    check(kernel([x, out], Store(out, (as_index(lane),), Load(x, (at,)), lane)), values(f32, size))


@pytest.mark.parametrize(("step", "loads"), [(2, 4), (3, 6), (4, 8), (-2, 4)])
def test_neighbours_at_a_distance_pick_from_vectors_that_are_read_once(step: int, loads: int) -> None:
    """Three taps of a window that hangs over both ends of a row between others: what lies there is chosen away."""
    width = abs(step) * 7
    x, out, lane = Buffer("x", (3, width), f32), Buffer("out", (24,), f32), lanes(8)
    taps = []
    for tap in range(3):
        column = as_index(lane) * step + tap - 1 + (0 if step > 0 else -7 * step)
        value = select(within(column, 0, width), Load(x, (as_index(1), column)), const(0, f32))
        taps.append(Store(out, (as_index(lane) + 8 * tap,), value, lane))
    text = check(kernel([x, out], *taps), values(f32, 3, width))
    assert text.count("= load <8 x float>") == loads
    assert "masked.load" not in text


def test_parts_of_a_register() -> None:
    tile = Buffer("tile", (8,), f32, "register")
    x, out, lane, few = Buffer("x", (8,), f32), Buffer("out", (4,), f32), lanes(8), lanes(3)
    fn = kernel(
        [x, out],
        Store(tile, (as_index(lane),), Load(x, (as_index(lane),)), lane),
        Store(out, (as_index(few),), Load(tile, (as_index(few) + 2,)), few),
        Store(out, (as_index(3),), Load(tile, (as_index(7),))),
    )
    fn.body = Allocate(tile, fn.body)
    assert "alloca" not in check(fn, values(f32, 8))


def test_both_sides_of_a_choice_may_leave() -> None:
    x, y, out, lane = Buffer("x", (3,), f32), Buffer("y", (5,), f32), Buffer("out", (8,), f32), lanes(8)
    value = select(within(lane, 0, 3), Load(x, (as_index(lane),)), Load(y, (as_index(lane) - 3,)))
    check(kernel([x, y, out], Store(out, (as_index(lane),), value, lane)), values(f32, 3), values(f32, 5))


def test_choices_within_choices() -> None:
    x, out, lane = Buffer("x", (4,), f32), Buffer("out", (8,), f32), lanes(8)
    inner = select(within(lane, 2, 6), Load(x, (as_index(lane) - 2,)), -1.0)
    value = select(within(lane, 1, 5), inner, select(within(lane, 4, 6), Load(x, (as_index(lane) - 2,)), -2.0))
    check(kernel([x, out], Store(out, (as_index(lane),), value, lane)), values(f32, 4))


def test_condition_of_one_value_around_lanes() -> None:
    """A guard on the loop, a guard on the lane, and loads that vary with neither, one or both."""
    x, out, lane = Buffer("x", (3, 4), f32), Buffer("out", (5, 6), f32), lanes(6)
    r = Var("r", 0, 4)
    row, column = as_index(r) - 1, as_index(lane) - 1
    deep = select(within(column, 0, 4), Load(x, (row, column)) + Load(x, (row, as_index(0))), -1.0)
    fn = kernel([x, out], Store(out, (as_index(r), as_index(lane)), select(within(row, 0, 3), deep, -2.0), lane))
    fn.body = For(r, 5, ForKind.SERIAL, fn.body)
    check(fn, values(f32, 3, 4))


def test_load_that_all_lanes_share_behind_a_guard_of_lanes() -> None:
    """No lane is chosen in the first and last rows, so nothing may be read there."""
    x, out, lane = Buffer("x", (3,), f32), Buffer("out", (5, 6), f32), lanes(6)
    r = Var("r", 0, 4)
    row = as_index(r) - 1
    value = select(all_of([within(row, 0, 3), within(lane, 1, 5)]), Load(x, (row,)), -1.0)
    fn = kernel([x, out], Store(out, (as_index(r), as_index(lane)), value, lane))
    fn.body = For(r, 5, ForKind.SERIAL, fn.body)
    assert "llvm.vector.reduce.or" in check(fn, values(f32, 3))


@pytest.mark.parametrize("width", [0, 6])
@pytest.mark.parametrize("shared", [True, False])
def test_empty_buffers_are_never_looked_at(width: int, shared: bool) -> None:
    x, y, out = Buffer("x", (0,), f32), Buffer("y", (6,), f32), Buffer("out", (6,), f32)
    lane = lanes(width) if width else None
    k = Var("k", 0, 5)
    at = as_index(lane if lane is not None else k)
    value = select(binary("gt", Load(y, (at,)), 1000.0), Load(x, (as_index(0) if shared else at,)), -1.0)
    body = Store(out, (at,), value, lane)
    fn = Function("kernel", (x, y, out), 1, body if lane is not None else For(k, 6, ForKind.SERIAL, body))
    check(fn, values(f32, 0), values(f32, 6))


@pytest.mark.parametrize("count", [0, 6])
def test_rows_chosen_at_run_time_behind_a_guard(count: int) -> None:
    """The place itself is read from memory, outside which it must not be looked for."""
    x, rows, out = Buffer("x", (3, 6), f32), Buffer("rows", (4,), i32), Buffer("out", (6, 6), f32)
    r, lane = Var("r", 0, 5), lanes(count) if count else None
    column: IndexLike = lane if lane is not None else 2
    at = dynamic(cast(Load(rows, (as_index(r) - 1,)), i64), 0, 2)
    guards = [within(as_index(r) - 1, 0, 4)] + ([within(lane, 1, 5)] if lane is not None else [])
    value = select(all_of(guards), Load(x, (at, as_index(column))), -1.0)
    fn = kernel([x, rows, out], Store(out, (as_index(r), as_index(column)), value, lane))
    fn.body = For(r, 6, ForKind.SERIAL, fn.body)
    check(fn, values(f32, 3, 6), np.array([2, 0, 1, 2], np.int32))


def test_places_that_differ_between_lanes_behind_a_guard() -> None:
    x, rows, out, lane = Buffer("x", (3,), f32), Buffer("rows", (4,), i32), Buffer("out", (6,), f32), lanes(6)
    at = dynamic(cast(Load(rows, (as_index(lane) - 1,)), i64), 0, 2)
    value = select(within(as_index(lane) - 1, 0, 4), Load(x, (at,)), -1.0)
    fn = kernel([x, rows, out], Store(out, (as_index(lane),), value, lane))
    check(fn, values(f32, 3), np.array([2, 0, 1, 2], np.int32))


def test_plain_choices_are_no_branches() -> None:
    x, out = Buffer("x", (4,), f32), Buffer("out", (4,), f32)
    k = Var("k", 0, 3)
    value = select(binary("gt", Load(x, (as_index(k),)), 50.0), Load(x, (as_index(k),)), 0.0)
    fn = kernel([x, out], Store(out, (as_index(k),), value))
    fn.body = For(k, 4, ForKind.SERIAL, fn.body)
    text = check(fn, values(f32, 4))
    assert "yes" not in text


# -- strides ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [4, 5])
def test_loads_and_stores_of_any_stride(dtype: DType, width: int) -> None:
    """Neighbours, the same for all, every other, backwards, and by a quotient and a remainder."""
    x, out, lane = Buffer("x", (16,), dtype), Buffer("out", (6, 16), dtype), lanes(width)
    forms: list[Linear] = [
        as_index(lane) + 3,
        as_index(2),
        as_index(lane) * 2 + 1,
        15 - as_index(lane),
        as_index(lane) // 2 * 3,
        (as_index(lane) * 3 + 1) % 7,
    ]
    loads = [Store(out, (as_index(k), as_index(lane)), Load(x, (f,)), lane) for k, f in enumerate(forms)]
    check(kernel([x, out], *loads), values(dtype, 16))
    stores = [
        Store(out, (as_index(k), f), Load(x, (as_index(lane),)), lane)
        for k, f in enumerate(forms)
        if k not in (1, 4)  # no two lanes in one place
    ]
    check(kernel([x, out], *stores), values(dtype, 16))


def test_negative_numerators_round_down() -> None:
    out, lane = Buffer("out", (4, 9), i64), lanes(9)
    k = Var("k", 0, 8)
    forms = [lambda v: (as_index(v) - 4) // 3, lambda v: (as_index(v) - 4) % 3]
    vector = [Store(out, (as_index(d), as_index(lane)), as_expr(f(lane)), lane) for d, f in enumerate(forms)]
    scalar = [Store(out, (as_index(d + 2), as_index(k)), as_expr(f(k))) for d, f in enumerate(forms)]
    fn = Function("kernel", (out,), 1, seq([*vector, For(k, 9, ForKind.SERIAL, seq(scalar))]))
    check(fn)


def test_loads_are_not_repeated_until_the_buffer_changes() -> None:
    x, out = Buffer("x", (4,), f32), Buffer("out", (4,), f32)
    first = Store(out, (as_index(0),), Load(x, (as_index(1),)))
    again = Store(out, (as_index(2),), Load(x, (as_index(1),)) + Load(out, (as_index(0),)))
    changed = Store(out, (as_index(3),), Load(out, (as_index(0),)) + Load(out, (as_index(2),)))
    text = check(kernel([x, out], first, again, changed), values(f32, 4))
    assert text.count("= load float") == 4


def test_parameters_that_share_memory_are_loaded_anew() -> None:
    """Without ``noalias``, and a store to the one forgets loads of the other."""
    x, out = Buffer("x", (2,), f32), Buffer("out", (2,), f32)
    stmts = [
        Store(out, (as_index(0),), Load(x, (as_index(0),)) + 1.0),
        Store(out, (as_index(1),), Load(x, (as_index(0),)) + 1.0),
    ]
    fn = Function("kernel", (x, out), 1, seq(stmts), {"aliased": ((0, 1),)})
    code = Kernel(fn, 0)
    assert "ptr noundef %p0, ptr noundef %p1" in code.text
    assert code.text.count("= load float") == 2
    apart = Function("kernel", (x, out), 1, seq(stmts))
    assert "ptr noalias noundef %p0, ptr noalias noundef %p1" in Kernel(apart, 0).text


@pytest.mark.parametrize("width, parts", [(4, [4]), (7, [4, 4]), (9, [8, 8]), (3, [3])])
def test_odd_vectors_are_stored_as_two_that_overlap(width: int, parts: list[int]) -> None:
    x, out, lane = Buffer("x", (width,), f32), Buffer("out", (width,), f32), lanes(width)
    text = check(kernel([x, out], Store(out, (as_index(lane),), Load(x, (as_index(lane),)), lane)), values(f32, width))
    assert [int(n) for n in re.findall(r"store <(\d+) x float>", text)] == parts


@pytest.mark.parametrize("dtype, width, whole", [(f32, 14, 16), (f32, 5, 8), (i32, 3, 4), (f64, 7, 8), (f32, 9, 16)])
def test_odd_vectors_are_read_and_stored_as_parts_of_registers(dtype: DType, width: int, whole: int) -> None:
    x, out, lane = Buffer("x", (width,), dtype), Buffer("out", (width,), dtype), lanes(width)
    fn = kernel([x, out], Store(out, (as_index(lane),), Load(x, (as_index(lane),)), lane))
    text = check(fn, values(dtype, width), masks=True)
    assert len(re.findall(rf"call <{whole} x \w+> @llvm.masked.load", text)) == 1
    assert len(re.findall(rf"call void @llvm.masked.store.v{whole}", text)) == 1
    assert "masked" not in check(fn, values(dtype, width))


@pytest.mark.parametrize("dtype, width", [(f32, 8), (f32, 2), (f64, 9), (i8, 7), (f16, 7), (f32, 17)])
def test_whole_vectors_and_small_elements_are_read_without_masks(dtype: DType, width: int) -> None:
    x, out, lane = Buffer("x", (width,), dtype), Buffer("out", (width,), dtype), lanes(width)
    fn = kernel([x, out], Store(out, (as_index(lane),), Load(x, (as_index(lane),)), lane))
    assert "masked" not in check(fn, values(dtype, width), masks=True)


def test_double_precision_literals_are_exact() -> None:
    out = Buffer("out", (3,), f64)
    fn = kernel([out], *[Store(out, (as_index(k),), const(v, f64)) for k, v in enumerate([0.1, 1e-310, -0.0])])
    check(fn)


def test_memory_between_unreadable_pages() -> None:
    """The tests' own instrument: a kernel that reads one element too many is caught."""
    x, out = Buffer("x", (4,), f32), Buffer("out", (1,), f32)
    fn = kernel([x, out], Store(out, (as_index(0),), Load(x, (as_index(4),))))
    data = [np.zeros(4, np.float32), np.zeros(1, np.float32)]
    with pytest.raises(pytest.fail.Exception, match="SIGSEGV in"):
        Kernel(fn, 0).run(data)
    with guarded([100, 0, 5000], at_end=True) as places:
        assert len({p // 4096 for p in places}) == 3


def test_emitting_needs_no_device() -> None:
    out = Buffer("out", (1,), f32)
    module = ModuleText()
    assert emit_function(kernel([out], Store(out, (as_index(0),), const(1.0, f32))), module) == 0
    assert "store float" in module.definitions[0]


@pytest.mark.parametrize("width", [0, 8])
def test_indices_that_share_parts_are_emitted_once(width: int) -> None:
    """Every level reads the one below twice: as a tree, the index has 2^40 leaves."""
    out = Buffer("out", (64,), i64)
    i, lane = Var("i", 0, 63 // max(width, 1)), lanes(width or 8)
    where = as_index(i) * width + lane if width else as_index(i)
    form = where + 100
    for k in range(40):
        form = form // 3 + form % 5 * 2 + k
    body = Store(out, (where,), IndexValue(form, i64), lane if width else None)
    fn = Function("kernel", (out,), 1, For(i, i.hi + 1, ForKind.SERIAL, body))
    got, want = np.zeros(64, np.int64), np.zeros(64, np.int64)
    run_function(fn, [want])
    Kernel(fn).run([got])
    np.testing.assert_array_equal(got, want)  # `check` would print the kernel

"""Nests that become intrinsics: what matches, what does not and why, and that results stay the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import ScheduleError
from mlc.ir import te
from mlc.ir.expr import Expr, cast, select, within
from mlc.ir.index import Linear, Var
from mlc.ir.interp import run_function, run_tensors
from mlc.ir.intrinsic import Kind, Operand, TensorIntrinsic
from mlc.ir.loop import Evaluate, Function, walk
from mlc.ir.types import DType, f32, i8, i32
from mlc.lower import Schedule, lower
from mlc.lower.build import build
from mlc.lower.pipeline import NEST_PASSES
from mlc.lower.stage import Stage
from mlc.lower.tensorize import tensorize
from tests.fuzz import examples
from tests.unit.lower.blocked import ALL, IN, SUMS, WEIGHTS, Blocked, convolution, product


def uses(fn: Function) -> list[str]:
    return [repr(s) for s in walk(fn.body) if type(s) is Evaluate and s.intrinsic is not None]


def schedule_of(
    conv: Blocked, rows: int, *, chunks: bool = True, kinds: tuple[Kind, ...] = ALL
) -> tuple[Schedule, Stage]:
    """Tiles of some rows, summed up over chunks of channels, every chunk in the unit's memories."""
    s = Schedule([conv.out])
    sums = s.cache_write(conv.out, SUMS)
    data = s.cache_read(conv.pad, IN, [sums])
    if conv.pad.op is not None:
        s[conv.pad].compute_inline()
    weights = s.cache_read(conv.weights, WEIGHTS, [sums])
    o, y, x, b = s[conv.out].axes
    tile, within_tile = s[conv.out].split(y, rows)
    s[conv.out].reorder(o, tile, within_tile, x, b)
    acc = s[sums]
    acc.compute_at(s[conv.out], tile)
    o, y, x, b = acc.axes
    ko, r, q, ki = acc.reduce_axes
    acc.reorder(*((o, ko, r, q, y, x, b, ki) if chunks else (o, y, x, b, ko, r, q, ki)))
    if chunks:
        s[data].compute_at(acc, ko)
        s[weights].compute_at(acc, ko)
    else:
        s[data].compute_at(s[conv.out], tile)
        s[weights].compute_at(s[conv.out], tile)
    acc.tensorize(b, product(kinds=kinds))
    return s, acc


def test_convolution_in_tiles(golden: Callable[[str], None]) -> None:
    conv = convolution(2, 3, 7, 5, window=3, padding=1)
    schedule, _ = schedule_of(conv, 4)
    fn = lower(schedule, conv.params, "conv", passes=NEST_PASSES)
    conv.check(fn)
    golden(repr(fn))


@given(data=st.data())
@examples(20)
def test_results_stay_the_same(data: st.DataObject) -> None:
    def draw(least: int, most: int) -> int:
        return data.draw(st.integers(least, most))

    window = data.draw(st.sampled_from([1, 2, 3]))
    block = data.draw(st.sampled_from([2, 4]))
    conv = convolution(draw(1, 2), draw(1, 2), draw(3, 6), draw(3, 4), window, draw(1, 2), draw(0, 1), block)
    schedule, acc = schedule_of(conv, draw(1, 5))
    acc.tensorized = None
    acc.tensorize(acc.axes[-1], product(block, data.draw(st.sampled_from([ALL, (Kind.RESET, Kind.UPDATE)]))))
    fn = lower(schedule, conv.params, "conv", passes=NEST_PASSES)
    assert any("update" in u for u in uses(fn))
    conv.check(fn)


def dot() -> TensorIntrinsic:
    """Four products and their sum, of any buffers."""
    a, b, k = te.placeholder((4,), i32, "a"), te.placeholder((4,), i32, "b"), te.reduce_axis(4, "k")
    return TensorIntrinsic("dot4", te.compute((), lambda: te.sum_of(a[k] * b[k], k), "d"), {}, ALL)


def dot_product(n: int, dtype: DType = i32) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    a, b, k = te.placeholder((3, n), dtype, "a"), te.placeholder((n,), dtype, "b"), te.reduce_axis(n, "k")
    return a, b, te.compute((3,), lambda i: te.sum_of(a[i, k] * b[k], k), "c")


def test_whole_reduction_is_a_body_and_part_of_one_an_update() -> None:
    a, b, c = dot_product(4)
    s = Schedule([c])
    s[c].tensorize(s[c].reduce_axes[0], dot())
    assert uses(lower(s, [a, b, c], "f")) == ["dot4(reset, c[i])", "dot4(update, c[i], a[i, 0], b[0])"]
    s = Schedule([c])
    s[c].split(s[c].reduce_axes[0], 4)
    s[c].tensorize(s[c].leaves[0], TensorIntrinsic("dots", *_rows()))
    assert uses(lower(s, [a, b, c], "f")) == ["dots(body, c[0], a[0, 0], b[0])"]
    a, b, c = dot_product(12)
    s = Schedule([c])
    _, k = s[c].split(s[c].reduce_axes[0], 4)
    s[c].tensorize(k, dot())
    fn = lower(s, [a, b, c], "f")
    assert uses(fn) == ["dot4(reset, c[i])", "dot4(update, c[i], a[i, 4*ko], b[4*ko])"]
    arrays = [np.arange(36, dtype=np.int32).reshape(3, 12), np.arange(12, dtype=np.int32), np.zeros(3, np.int32)]
    run_function(fn, arrays)
    np.testing.assert_array_equal(arrays[2], arrays[0] @ arrays[1])


def _rows() -> tuple[te.Tensor, dict[te.Tensor, Operand], tuple[Kind, ...]]:
    a, b, k = te.placeholder((3, 4), i32, "x"), te.placeholder((4,), i32, "y"), te.reduce_axis(4, "k")
    return te.compute((3,), lambda i: te.sum_of(a[i, k] * b[k], k), "d"), {}, ALL


def test_reduction_outside_its_data_axes() -> None:
    conv = convolution(1, 1, 4, 3)
    s, acc = schedule_of(conv, 2)
    acc.tensorized = None
    o, y, x, b = acc.axes
    ko, r, q, ki = acc.reduce_axes
    acc.reorder(o, ko, r, q, y, x, ki, b)
    acc.tensorize(ki, product())
    fn = lower(s, conv.params, "conv", passes=NEST_PASSES)
    assert [u.split(",")[0] for u in uses(fn)] == ["unit.product(reset", "unit.product(update"]
    conv.check(fn)


def test_without_a_body_the_whole_is_a_reset_and_an_update() -> None:
    for kinds, expected in ((ALL, ["body"]), ((Kind.RESET, Kind.UPDATE), ["reset", "update"])):
        conv = convolution(1, 2, 4, 3)
        s, _ = schedule_of(conv, 2, chunks=False, kinds=kinds)
        fn = lower(s, conv.params, "conv", passes=NEST_PASSES)
        assert [u.split("(")[1].split(",")[0] for u in uses(fn)] == expected
        conv.check(fn)


def test_elementwise_intrinsic_over_strided_rows() -> None:
    x = te.placeholder((4,), f32, "x")
    twice = te.compute((4,), lambda i: x[i] * 2.0, "y")
    a = te.placeholder((3, 8), f32, "a")
    apart, beside = Operand(dense=False), Operand(dense=False, neighbours=True)
    for operands, ok in (({x: apart}, True), ({}, False), ({x: beside}, False)):
        every_other = te.compute((3, 4), lambda i, j: a[i, j * 2] * 2.0, "b")
        s = Schedule([every_other])
        s[every_other].tensorize(s[every_other].axes[1], TensorIntrinsic("twice", twice, operands, (Kind.BODY,)))
        if not ok:
            with pytest.raises(ScheduleError, match=r"a, taken as x, has neighbours at distances 2, not 1"):
                lower(s, [a, every_other], "f")
            continue
        fn = lower(s, [a, every_other], "f")
        arrays = [np.arange(24, dtype=np.float32).reshape(3, 8), np.zeros((3, 4), np.float32)]
        run_function(fn, arrays)
        np.testing.assert_array_equal(arrays[1], run_tensors([every_other], {a: arrays[0]})[0])


def refuse(match: str, change: Callable[[Schedule, Stage, Blocked], object], **options: int) -> None:
    conv = convolution(**{"c": 2, "o": 2, "h": 4, "w": 4, **options})
    s, acc = schedule_of(conv, 2)
    change(s, acc, conv)
    with pytest.raises(ScheduleError, match=match):
        lower(s, conv.params, "conv", passes=NEST_PASSES)


def instead(acc: Stage, axis: Var, intrinsic: TensorIntrinsic) -> None:
    acc.tensorized = None
    acc.tensorize(axis, intrinsic)


def test_refusals_say_which_stage_and_what_differs() -> None:
    stage = r"tensorize: from b on, stage out\.unit\.sums is not unit\.product: "
    refuse(
        stage + "its loops have the extents 2, those of the intrinsic 4",
        lambda s, acc, conv: None, block=2,
    )  # fmt: skip
    refuse(
        r"from x on.*its loops have the extents 4, 4, those of the intrinsic 4\b",
        lambda s, acc, conv: instead(acc, acc.axes[2], product()),
    )
    refuse(
        stage + r"out\.unit\.sums, taken as y, lies in elsewhere, not in unit\.sums",
        lambda s, acc, conv: acc.set_scope("elsewhere"),
    )
    refuse(
        stage + r"weights.*, taken as w, lies in unit\.in, not in unit\.weights",
        lambda s, acc, conv: s[acc.op.inputs[1]].set_scope(IN),
    )


def test_refuses_another_expression() -> None:
    a, b, k = te.placeholder((3, 4), i32, "a"), te.placeholder((4,), i32, "b"), te.reduce_axis(4, "k")
    sums = te.compute((3,), lambda i: te.sum_of(b[k] + a[i, k], k), "c")
    most = te.compute((3,), lambda i: te.max_of(b[k] * a[i, k], k), "m")
    for c, differs in (
        (sums, r"it computes c\[i\] \+ \(b\[k\] \+ a\[i, k\]\), the intrinsic d\[\] \+ \(a\[k\] \* b\[k\]\)"),
        (most, r"it begins with -\d+ as i32, a reduction by sum with 0 as i32"),
    ):
        s = Schedule([c])
        s[c].tensorize(s[c].reduce_axes[0], dot())
        with pytest.raises(ScheduleError, match=f"from k on, stage {c.name} is not dot4: {differs}"):
            lower(s, [a, b, c], "f")


def test_refuses_other_types() -> None:
    a, b, c = dot_product(4, f32)
    s = Schedule([c])
    s[c].tensorize(s[c].reduce_axes[0], dot())
    with pytest.raises(
        ScheduleError, match=r"is not dot4: it begins with 0\.0 as f32, a reduction by sum with 0 as i32"
    ):
        lower(s, [a, b, c], "f")


def test_refuses_conditions_on_its_loops() -> None:
    a, b, c = dot_product(6)
    s = Schedule([c])
    _, k = s[c].split(s[c].reduce_axes[0], 4)
    s[c].tensorize(k, dot())
    with pytest.raises(ScheduleError, match=r"not all of its iterations count, only where 4\*ko \+ ki < 6"):
        lower(s, [a, b, c], "f")


def test_conditions_that_its_loops_never_change_stay_around_it() -> None:
    """The last tile of 12 rows by tiles of 8 has 4: pairs of them are there or not."""
    pair = te.placeholder((2,), f32, "x")
    twice = TensorIntrinsic("twice", te.compute((2,), lambda i: pair[i] * 2.0, "y"), {}, (Kind.BODY,))
    for rows, fits in ((12, True), (11, False)):
        a = te.placeholder((rows,), f32, "a")
        y = te.compute((rows,), lambda i, a=a: a[i] * 2.0, "y")
        s = Schedule([y])
        _, inner = s[y].split(y.op.axes[0], 8)
        s[y].tensorize(s[y].split(inner, 2)[1], twice)
        if fits:
            assert len(uses(lower(s, [a, y], "k", passes=NEST_PASSES))) == 2  # of whole tiles, and of the last
        else:
            with pytest.raises(ScheduleError, match="not all of its iterations count, only where"):
                lower(s, [a, y], "k", passes=NEST_PASSES)


def test_refuses_places_that_are_not_aligned() -> None:
    a, k = te.placeholder((3, 6), i32, "a"), te.reduce_axis(4, "k")
    x, r = te.placeholder((4,), i32, "x"), te.reduce_axis(4, "r")
    total = TensorIntrinsic("sum4", te.compute((), lambda: te.sum_of(x[r], r), "t"), {x: Operand(align=4)}, ALL)
    c = te.compute((3,), lambda i: te.sum_of(a[i, k], k), "c")
    s = Schedule([c])
    s[c].tensorize(s[c].reduce_axes[0], total)
    with pytest.raises(ScheduleError, match=r"a\[i, 0\], taken as x, is at offset 6\*i, not always a multiple of 4"):
        lower(s, [a, c], "f")


def test_refuses_what_is_computed_inside() -> None:
    a, b, c = dot_product(4)
    s = Schedule([c])
    copy = s.cache_read(a, "local", [c])
    s[copy].compute_at(s[c], s[c].leaves[0])
    s[c].tensorize(s[c].leaves[0], TensorIntrinsic("dots", *_rows()))
    with pytest.raises(ScheduleError, match="more than one result is computed in these loops"):
        lower(s, [a, b, c], "f")


def test_primitive_refuses_a_second_intrinsic_and_loops_that_are_gone() -> None:
    a, b, c = dot_product(4)
    s = Schedule([c])
    (k,) = s[c].reduce_axes
    s[c].tensorize(k, dot())
    with pytest.raises(ScheduleError, match="stage c is dot4 from k on already"):
        s[c].tensorize(k, dot())
    s[c].split(k, 2)
    with pytest.raises(ScheduleError, match="k, to be dot4, is no loop of c any more"):
        lower(s, [a, b, c], "f")


def test_intrinsics_that_make_no_sense() -> None:
    x, r = te.placeholder((4,), i32, "x"), te.reduce_axis(4, "r")
    total = te.compute((), lambda: te.sum_of(x[r], r), "t")
    with pytest.raises(ScheduleError, match="needs the kind body, or both reset and update"):
        TensorIntrinsic("f", total, {}, (Kind.UPDATE,))
    with pytest.raises(ScheduleError, match="f reduces nothing, so its only kind is body"):
        TensorIntrinsic("f", te.compute((4,), lambda i: x[i], "c"), {}, ALL)
    with pytest.raises(ScheduleError, match="one output of one compute over placeholders"):
        TensorIntrinsic("f", x, {}, ALL)
    with pytest.raises(ScheduleError, match="z is no operand of its behaviour"):
        TensorIntrinsic("f", total, {te.placeholder((1,), i32, "z"): Operand()}, ALL)


def test_factors_may_stand_in_another_order() -> None:
    x, k = te.placeholder((4,), i32, "x"), te.reduce_axis(4, "k")
    w, r = te.placeholder((4,), i32, "w"), te.reduce_axis(4, "r")
    total = te.compute((), lambda: te.sum_of(w[r] * x[r], r), "t")
    intrinsic = TensorIntrinsic("dot4", total, {x: Operand(IN), w: Operand(WEIGHTS)}, ALL)
    a, b = te.placeholder((4,), i32, "a"), te.placeholder((4,), i32, "b")
    c = te.compute((), lambda: te.sum_of(a[k] * b[k], k), "c")
    s = Schedule([c])
    s.cache_read(a, IN, [c])
    s.cache_read(b, WEIGHTS, [c])
    s[c].tensorize(k, intrinsic)
    assert uses(lower(s, [a, b, c], "f"))[1] == "dot4(update, c[], b.unit.weights[0], a.unit.in[0])"


def test_terms_that_count_only_somewhere_keep_the_reset_apart() -> None:
    a, b, k = te.placeholder((3, 4), i32, "a"), te.placeholder((4,), i32, "b"), te.reduce_axis(4, "k")
    c = te.compute((3,), lambda i: te.sum_of(select(within(i, 1, 3), a[i, k] * b[k], 0), k), "c")
    s = Schedule([c])
    s[c].split(s[c].axes[0], 1)
    s[c].tensorize(s[c].leaves[1], dot())
    fn = lower(s, [a, b, c], "f")
    assert [u.split(",")[0] for u in uses(fn)][:2] == ["dot4(reset", "dot4(reset"]
    arrays = [np.ones((3, 4), np.int32), np.arange(4, dtype=np.int32), np.full(3, 9, np.int32)]
    run_function(fn, arrays)
    np.testing.assert_array_equal(arrays[2], [0, 6, 6])


def elementwise(fn: Callable[[te.Tensor, Linear], Expr]) -> TensorIntrinsic:
    """Four elements of one operand."""
    x = te.placeholder((9,), i32, "x")
    y = te.compute((4,), lambda i: fn(x, i), "y")
    return TensorIntrinsic("four", y, {x: Operand(dense=False)}, (Kind.BODY,))


def test_all_reads_of_an_operand_have_to_agree() -> None:
    neighbours = elementwise(lambda x, i: x[i] - x[i + 1])
    a = te.placeholder((3, 9), i32, "a")
    for shift, fits in ((1, True), (2, False)):
        c = te.compute((3, 4), lambda i, j, shift=shift: a[i, j] - a[i, j + shift], "c")
        s = Schedule([c])
        s[c].tensorize(s[c].axes[1], neighbours)
        if fits:
            assert uses(lower(s, [a, c], "f")) == ["four(body, c[i, 0], a[i, 0])"]
        else:
            with pytest.raises(ScheduleError, match=r"it computes a\[i, j\] - a\[i, j \+ 2\], the intrinsic x\[i\] - "):
                lower(s, [a, c], "f")
    c = te.compute((3, 4), lambda i, j: a[i, j + 1] - a[i, j + 2], "c")
    s = Schedule([c])
    s[c].tensorize(s[c].axes[1], neighbours)
    assert uses(lower(s, [a, c], "f")) == ["four(body, c[i, 0], a[i, 1])"]
    last = elementwise(lambda x, i: x[i + 1] - 1)
    c = te.compute((3, 4), lambda i, j: a[i, j + 1] - 1, "c")
    s = Schedule([c])
    s[c].tensorize(s[c].axes[1], last)
    with pytest.raises(ScheduleError, match="it computes"):  # no read tells where the operand begins
        lower(s, [a, c], "f")


def test_strides_have_to_be_multiples_of_the_intrinsic_s() -> None:
    even = elementwise(lambda x, i: x[i * 2] + 1)
    a = te.placeholder((20,), i32, "a")
    for step, fits in ((2, True), (4, True), (3, False)):
        c = te.compute((4,), lambda i, step=step: a[i * step] + 1, "c")
        s = Schedule([c])
        s[c].tensorize(s[c].axes[0], even)
        if fits:
            (use,) = [x for x in walk(lower(s, [a, c], "f").body) if type(x) is Evaluate]
            assert use.args[2].strides == (step // 2,)
        else:
            with pytest.raises(ScheduleError, match="it computes"):
                lower(s, [a, c], "f")


def test_refuses_what_there_is_no_instruction_for() -> None:
    a, b, c = dot_product(8)
    s = Schedule([c])
    _, k = s[c].split(s[c].reduce_axes[0], 4)
    s[c].tensorize(k, TensorIntrinsic("dot4", dot().behaviour, {}, (Kind.BODY,)))
    with pytest.raises(ScheduleError, match="stage c is not dot4: there is no instruction for its reset"):
        lower(s, [a, b, c], "f")


def test_refuses_several_results() -> None:
    a = te.placeholder((4,), i32, "a")
    both = te.compute_many((4,), lambda i: (a[i] + 1, a[i] + 1), "c")
    s = Schedule(both)
    s[both[0]].tensorize(s[both[0]].axes[0], elementwise(lambda x, i: x[i] + 1))
    with pytest.raises(ScheduleError, match="stage c is not four: there are 2 statements in these loops"):
        lower(s, [a, *both], "f")


def test_nests_without_an_intrinsic_stay_themselves() -> None:
    a, b, c = dot_product(4)
    body = build(Schedule([c]), [a, b, c], "f").body
    assert tensorize(body) is body


def test_casts_are_part_of_what_is_matched() -> None:
    x, y = te.placeholder((4,), i8, "x"), te.placeholder((4,), i8, "y")
    k, r = te.reduce_axis(4, "k"), te.reduce_axis(4, "r")
    narrow = te.compute((), lambda: te.sum_of(cast(x[k], i32) * cast(y[k], i32), k), "d")
    wrapping = te.compute((), lambda: te.sum_of(cast(x[r] * y[r], i32), r), "c")
    s = Schedule([wrapping])
    s[wrapping].tensorize(s[wrapping].reduce_axes[0], TensorIntrinsic("narrow", narrow, {}, ALL))
    with pytest.raises(ScheduleError, match=r"it computes .*i32\(.*the intrinsic"):
        lower(s, [x, y, wrapping], "f")

"""The master template: whatever its knobs say, the kernel means the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from mlc.errors import ScheduleError
from mlc.ir import te
from mlc.ir.graph import Attrs, Builder, FusionKind, Operator
from mlc.ir.index import Linear, as_index
from mlc.ir.interp.loop import run_function
from mlc.ir.types import TensorType, f32
from mlc.lower.build import build
from mlc.lower.knobs import Config, Knobs
from mlc.lower.schedule import Schedule
from mlc.ops import get
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import get_target
from mlc.targets.cpu.schedules.master import product_tile, schedule_master
from mlc.targets.cpu.schedules.strips import strips_of, sum_in_strips
from mlc.targets.groups.group import Group
from mlc.targets.groups.roles import factors_of
from mlc.tuning.features import LoopFeatures
from mlc.tuning.task import Task, candidate, tasks_of

TARGET = get_target("x86 -mcpu=haswell")
CASES = {
    "abce,ced->abd": ((3, 10, 6, 4), (6, 4, 24)),
    "abc,abd->cd": ((2, 17, 33), (2, 17, 20)),
    "abc->ac": ((9, 32, 65),),
}


def _task(equation: str, *shapes: tuple[int, ...]) -> Task:
    g = Builder("reduction")
    inputs = [g.input(f"a{k}", TensorType(shape, f32)) for k, shape in enumerate(shapes or CASES[equation])]
    (p,) = g.add(get("einsum"), inputs, {"equation": equation}, names=["p"])
    (found,) = tasks_of(g.finish([p]), TARGET, CompileOptions("reduction", "onnx", ""), Observer())
    return found


@pytest.mark.parametrize("equation", CASES)
def test_every_configuration_computes_the_same(equation: str) -> None:
    task = _task(equation)
    assert task.space.size > 1000
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in CASES[equation]]
    wanted = np.einsum(equation, *arrays)
    rows = task.space.sample(rng, 60)
    rows = rows[LoopFeatures(task, TARGET).valid(rows)]
    for row in [task.space.row({}), *rows[:3]]:
        config = task.space.config(row)
        out = np.full(wanted.shape, np.nan, np.float32)
        run_function(TARGET.kernel(candidate(task, TARGET, config), "k"), [*arrays, out])
        np.testing.assert_allclose(out, wanted, atol=1e-4, err_msg=str(config))


def test_loops_that_threads_share_are_described_as_each_configuration_has_them() -> None:
    task = _task("abce,ced->abd")
    together = LoopFeatures(task, TARGET)
    rows = np.stack([task.space.row({"shared": n, "tile0": (3, 1, 1), "tile1": (5, 1, 2)}) for n in (1, 2, 3)])
    for row, found in zip(rows, together(rows), strict=True):
        np.testing.assert_array_equal(LoopFeatures(task, TARGET)(row[None])[0], found)


def test_vectors_of_channels_where_rows_are_no_whole_ones() -> None:
    """By name, of a convolution with constant weights: its sums lie by channels, whatever order the results have."""
    rng = np.random.default_rng(5)
    operands = [rng.standard_normal(shape).astype(np.float32) for shape in ((1, 6, 4, 5), (16, 6, 3, 3), (16, 1, 1))]
    x, w, b = operands
    g = Builder("convolution")
    attrs: Attrs = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}
    (y,) = g.add(get("conv"), [g.input("x", TensorType(x.shape, f32)), g.constant(w, "w")], attrs)
    (y,) = g.add(get("add"), [y, g.constant(b, "b")])
    outputs = g.add(get("relu"), [y])
    options = CompileOptions("convolution", "onnx", "")
    (task,) = tasks_of(g.finish(outputs), TARGET, options, Observer(), template="master")
    assert task.space.default["vector"] == 1
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3))
    wanted = np.maximum(np.einsum("ncyxhw,ochw->noyx", windows, w) + b, 0)
    across: Config = {"vector": 2, "tile1": (8, 1, 2), "tile2": (1, 1, 4), "tile3": (5, 1, 1), "sums": "local"}
    for config in (task.space.default, {**task.space.default, **across}):
        node = candidate(task, TARGET, config)
        layouts = [v.type.layout for v in node.inputs]
        arrays = [a if layout is None else layout.pack(a) for layout, a in zip(layouts, operands, strict=True)]
        out = np.full(wanted.shape, np.nan, np.float32)
        run_function(TARGET.kernel(node, "k"), [*arrays, out])
        np.testing.assert_allclose(out, wanted, atol=1e-4, err_msg=str(config))


@pytest.mark.parametrize(("pads", "pooling"), [((1, 1, 1, 1), False), ((0, 0, 0, 0), True)])
def test_rows_of_a_window_are_padded_to_whole_vectors(pads: tuple[int, ...], pooling: bool) -> None:
    """By name, of a depthwise convolution and a pooling over rows of no whole vectors, with what follows."""
    rng = np.random.default_rng(5)
    channels, height, width = 16, 6 + 2 - 2 * pads[0], 21 + 2 - 2 * pads[0]
    x = rng.standard_normal((1, channels, height, width)).astype(np.float32)
    w, b = (rng.standard_normal((channels, 1, k, k)).astype(np.float32) for k in (3, 1))
    g = Builder("window")
    v = g.input("x", TensorType(x.shape, f32))
    attrs: Attrs = {"strides": (1, 1), "pads": pads, "dilations": (1, 1)}
    if pooling:
        outputs = g.add(get("max_pool"), [v], {**attrs, "kernel": (3, 3)})
    else:
        (y,) = g.add(get("conv"), [v, g.constant(w, "w")], {**attrs, "groups": channels})
        (y,) = g.add(get("add"), [y, g.constant(b[:, :, 0], "b")])
        outputs = g.add(get("relu"), [y])
    (task,) = tasks_of(g.finish(outputs), TARGET, CompileOptions("window", "onnx", ""), Observer(), template="master")
    assert task.space.default["tile3"] == (3, 1, 8)  # three whole vectors for 21 numbers
    around = np.pad(x, ((0, 0), (0, 0), pads[:2], pads[:2]), constant_values=-np.inf if pooling else 0)
    windows = np.lib.stride_tricks.sliding_window_view(around, (3, 3), (2, 3))
    sums = np.einsum("ncyxhw,chw->ncyx", windows, w[:, 0])
    wanted = windows.max((4, 5)) if pooling else np.maximum(sums + b[:, :, 0], 0)
    operands = [x] if pooling else [x, w, b[:, :, 0]]
    rows = task.space.sample(rng, 60)
    rows = rows[LoopFeatures(task, TARGET).valid(rows)]
    for config in [task.space.default, *(task.space.config(row) for row in rows[:2])]:
        out = np.full(wanted.shape, np.nan, np.float32)
        node = candidate(task, TARGET, config)
        layouts = [v.type.layout for v in node.inputs]
        arrays = [a if layout is None else layout.pack(a) for layout, a in zip(layouts, operands, strict=True)]
        run_function(TARGET.kernel(node, "k"), [*arrays, out])
        np.testing.assert_allclose(out, wanted, atol=1e-4, err_msg=str(config))


def test_untuned_is_the_plain_schedule() -> None:
    assert _task("abc->ac").space.default["plan"] == "plain"


def test_products_over_pixels_are_tiled_untuned() -> None:
    """The gradient of a convolution by its weights: channels of results in vectors, some of the other's beside them."""
    d, x = te.placeholder((2, 5, 6, 12), f32, "d"), te.placeholder((2, 7, 8, 16), f32, "x")
    n, h, w = (te.reduce_axis(e, name) for e, name in ((2, "n"), (5, "h"), (6, "w")))

    def term(o: Linear, r: Linear, s: Linear, c: Linear) -> te.Reduction:
        return te.sum_of(d[n, h, w, o] * x[n, as_index(h) + r, as_index(w) + s, c], (n, h, w))

    t = te.compute((12, 3, 3, 16), term, "t")
    assert t.op is not None
    machine = TARGET.record  # type: ignore[attr-defined]
    assert product_tile(t.op, machine) == {3: 16, 0: 6}
    turned = te.compute((12, 3, 3, 16), lambda o, r, s, c: term(o, r, c % 3, c), "turned")  # vectors would not be rows
    assert turned.op is not None
    assert product_tile(turned.op, machine) is None
    row = te.compute((12,), lambda o: te.sum_of(d[n, h, w, o] * x[n, h, w, 0], (n, h, w)), "row")
    assert row.op is not None
    assert product_tile(row.op, machine) is None


@pytest.mark.parametrize(("channels", "tile"), [(16, {2: 8, 1: 3, 0: 2}), (12, {2: 6, 1: 3, 0: 2}), (3, None)])
def test_products_of_channels_by_themselves_are_tiled_over_taps(channels: int, tile: dict[int, int] | None) -> None:
    """The gradient of a depthwise convolution by its weights: a vector that is loaded serves all taps."""
    d, x = te.placeholder((2, 5, 6, channels), f32, "d"), te.placeholder((2, 6, 8, channels), f32, "x")
    n, h, w = (te.reduce_axis(e, name) for e, name in ((2, "n"), (5, "h"), (6, "w")))

    def term(r: Linear, s: Linear, c: Linear) -> te.Reduction:
        return te.sum_of(d[n, h, w, c] * x[n, as_index(h) + r, as_index(w) + s, c], (n, h, w))

    t = te.compute((2, 3, channels), term, "t")
    assert t.op is not None
    assert product_tile(t.op, TARGET.record) == tile  # type: ignore[attr-defined]
    s = schedule_master(Group([d, x], [t], t.op, {}, Knobs()), TARGET.record)  # type: ignore[attr-defined]
    rng = np.random.default_rng(7)
    arrays = [rng.standard_normal(a.shape).astype(np.float32) for a in (d, x)]
    windows = np.lib.stride_tricks.sliding_window_view(arrays[1], (2, 3), axis=(1, 2))  # [n, p, q, c, r, s]
    found = np.full(t.shape, np.nan, np.float32)
    run_function(build(s, [d, x, *s.outputs], "k"), [*arrays, found])
    np.testing.assert_allclose(found, np.einsum("npqc,npqcrs->rsc", arrays[0], windows), atol=1e-4)


def _over_pixels(n: int, height: int, width: int) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    """The gradient of a convolution of 6 by 16 channels by its weights, 3 by 1."""
    d, x = te.placeholder((n, height, width, 16), f32, "d"), te.placeholder((n, height + 2, width, 6), f32, "x")
    over = tuple(te.reduce_axis(e, name) for e, name in ((n, "n"), (height, "h"), (width, "w")))

    def term(c: Linear, r: Linear, s: Linear, o: Linear) -> te.Reduction:
        at = as_index(over[1]) + r, as_index(over[2]) + s
        return te.sum_of(d[(*over, o)] * x[(over[0], *at, c)], over)

    return d, x, te.compute((6, 3, 1, 16), term, "t")


@pytest.mark.parametrize(("n", "strips"), [(2, 1), (2, 2), (1, 2)])
@pytest.mark.parametrize("follows", [False, True])
def test_sums_in_strips_are_the_same_sums(n: int, strips: int, follows: bool) -> None:
    d, x, t = _over_pixels(n, 2, 3)
    assert t.op is not None
    out = te.compute(t.shape, lambda *at: t[at] * 2.0, "out") if follows else t
    s = Schedule([out])
    machine = replace(TARGET.record, l2=1 << 12)  # type: ignore[attr-defined]
    sum_in_strips(s, t.op, out, {3: 8, 0: 3}, strips, machine)
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(a.shape).astype(np.float32) for a in (d, x)]
    windows = np.lib.stride_tricks.sliding_window_view(arrays[1], (2, 3), axis=(1, 2))  # [n, r, s, c, h, w]
    wanted = np.einsum("nhwo,nrschw->crso", arrays[0], windows) * (2 if follows else 1)
    found = np.full(wanted.shape, np.nan, np.float32)
    run_function(build(s, [d, x, out], "k"), [*arrays, found])
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_strips_are_as_many_as_the_cache_asks_for() -> None:
    """Rows of 30 pixels: all terms at once, image by image, or row by row; never less than a row."""
    _, _, t = _over_pixels(4, 6, 30)
    assert t.op is not None
    factors = factors_of(t.op)
    assert factors is not None
    terms = 4 * (4 * 6 * 30 * 16 + 4 * 8 * 30 * 6)
    sizes = (2 * terms, terms, terms // 2, terms // 8, 64)
    machines = [replace(TARGET.record, l2=size) for size in sizes]  # type: ignore[attr-defined]
    assert [strips_of(t.op, factors, machine) for machine in machines] == [0, 1, 1, 2, 2]
    _, _, few = _over_pixels(4, 3, 7)
    assert few.op is not None
    assert strips_of(few.op, factors_of(few.op) or factors, machines[-1]) == 0


def test_tiles_that_do_not_fit_the_registers_are_refused() -> None:
    task = _task("abce,ced->abd")
    config = {**task.space.default, "plan": "tiled", "tile0": (1, 1, 3), "tile1": (1, 1, 10), "tile2": (1, 1, 24)}
    with pytest.raises(ScheduleError, match="do not fit the registers"):
        TARGET.kernel(candidate(task, TARGET, config), "k")


def test_an_axis_that_is_not_tiled_counts_as_a_whole() -> None:
    """Of 12x12x12x9 results, the 9 along the vectors are not tiled: two vectors for each element of a tile."""
    task = _task("abcde->abcd", (12, 12, 12, 9, 4))
    config = {**task.space.default, "plan": "tiled", "vector": 3, "tile0": (1, 1, 12), "tile1": (6, 1, 2)}
    config["tile2"] = (12, 1, 1)
    with pytest.raises(ScheduleError, match="do not fit the registers"):
        TARGET.schedule(candidate(task, TARGET, config), Knobs(config))
    config["tile1"] = (12, 1, 1)
    TARGET.schedule(candidate(task, TARGET, config), Knobs(config))


def _two_products(inputs: Sequence[te.Tensor], attrs: Attrs) -> list[te.Tensor]:
    """``(x y) z``: two reductions, of which the second is the heavier one."""
    x, y, z = inputs
    k, m = te.reduce_axis(x.shape[1], "k"), te.reduce_axis(y.shape[1], "m")
    first = te.compute((x.shape[0], y.shape[1]), lambda i, j: te.sum_of(x[i, k] * y[k, j], k), "first")
    return [te.compute((x.shape[0], z.shape[1]), lambda i, j: te.sum_of(first[i, m] * z[m, j], m), "second")]


def _turned(inputs: Sequence[te.Tensor], attrs: Attrs) -> list[te.Tensor]:
    """``2 (x y)^T``: the end has another shape than the sums."""
    x, y, _ = inputs
    k = te.reduce_axis(x.shape[1], "k")
    sums = te.compute((x.shape[0], y.shape[1]), lambda i, j: te.sum_of(x[i, k] * y[k, j], k), "sums")
    return [te.compute((y.shape[1], x.shape[0]), lambda i, j: sums[j, i] * 2.0, "turned")]


@pytest.mark.parametrize(
    ("express", "wanted"),
    [
        (_two_products, lambda x, y, z: [x @ y @ z]),
        (_turned, lambda x, y, z: [2 * (x @ y).T]),
    ],
)
def test_an_operator_of_ones_own_is_tuned_whatever_is_around_its_reduction(
    express: Callable[[Sequence[te.Tensor], Attrs], list[te.Tensor]], wanted: Callable[..., list[np.ndarray]]
) -> None:
    def infer(types: Sequence[TensorType], attrs: Attrs) -> list[TensorType]:
        results = express([te.placeholder(t.shape, t.dtype, f"i{k}") for k, t in enumerate(types)], attrs)
        return [TensorType(t.shape, t.dtype) for t in results]

    g = Builder("own")
    shapes = ((9, 40), (40, 46), (46, 45))
    inputs = [g.input(f"x{k}", TensorType(shape, f32)) for k, shape in enumerate(shapes)]
    outputs = g.add(Operator("own", FusionKind.REDUCTION, infer, express), inputs)
    (task,) = tasks_of(g.finish(outputs), TARGET, CompileOptions("own", "onnx", ""), Observer())
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    results = wanted(*arrays)
    rows = task.space.sample(rng, 200)
    rows = rows[LoopFeatures(task, TARGET).valid(rows)]
    for row in [task.space.row({}), *rows[:2]]:
        config = task.space.config(row)
        outs = [np.full(r.shape, np.nan, np.float32) for r in results]
        run_function(TARGET.kernel(candidate(task, TARGET, config), "k"), [*arrays, *outs])
        for out, result in zip(outs, results, strict=True):
            np.testing.assert_allclose(out, result, atol=1e-3, err_msg=str(config))


def test_rows_that_are_read_again_in_cache_have_nothing_to_choose() -> None:
    g = Builder("rows")
    x = g.input("x", TensorType((64, 512), f32))
    (y,) = g.add(get("softmax"), [x], {"axis": 1})
    assert not tasks_of(g.finish([y]), TARGET, CompileOptions("rows", "onnx", ""), Observer())

"""Machine code of whole kernels: the same results as the interpreter, whatever the schedule, level or threads."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from mlc.errors import CodegenError
from mlc.ir import te
from mlc.ir.expr import Expr, Load, as_expr, const, select, within
from mlc.ir.index import Var, as_index
from mlc.ir.interp import run_function
from mlc.ir.loop import (
    Allocate,
    Barrier,
    Buffer,
    Evaluate,
    For,
    ForKind,
    ForRange,
    Function,
    If,
    Stmt,
    Store,
    seq,
)
from mlc.ir.types import f32, i64
from mlc.lower import Schedule, lower
from mlc.lower.unroll import unroll
from mlc.targets.llvm.function import emit_function
from mlc.targets.llvm.module import Machine, ModuleText, assembly_of
from mlc.targets.llvm.runtime import pool_ir
from tests.fuzz import examples
from tests.unit.lower.computations import COMPUTATIONS, assert_results, empty_outputs, softmax
from tests.unit.lower.schedules import schedules, text
from tests.unit.targets.llvm.host import Kernel, machine


@pytest.mark.parametrize("name", COMPUTATIONS)
@given(data=st.data())
@examples(6)
def test_random_schedule_compiles_to_what_the_interpreter_computes(name: str, data: st.DataObject) -> None:
    computation = COMPUTATIONS[name]()
    schedule = data.draw(schedules(computation))
    note(text(schedule))
    arrays = computation.draw(data.draw(st.integers(0, 3)))
    fn = lower(schedule, computation.params, "kernel")
    note(repr(fn))
    want = computation.expect(arrays)
    kernel = Kernel(fn, data.draw(st.sampled_from([0, 3])))
    for threads in (1, 2):
        got = empty_outputs(computation)
        kernel.run([*arrays, *got], threads=threads, at_end=data.draw(st.booleans()))
        assert_results(computation, got, want, f"{threads} threads")


# -- registers --------------------------------------------------------------------------------------------------------
def tiled_product(columns: int = 32, width: int = 16) -> Function:
    """A matrix product whose tile of 4 x ``width`` sums is held in registers, rows shared among threads."""
    a, b = te.placeholder((8, 24), f32, "a"), te.placeholder((24, columns), f32, "b")
    k = te.reduce_axis(24, "k")
    c = te.compute((8, columns), lambda i, j: te.sum_of(a[i, k] * b[k, j], k), "c")
    schedule = Schedule([c])
    tile = schedule.cache_write(c, "register")
    out, inner = schedule[c], schedule[tile]
    io, jo, ii, ji = out.tile(*out.axes, 4, width)
    out.parallel(io)
    out.unroll(ii)
    ju, ji = out.split(ji, 16)
    out.unroll(ju)
    out.vectorize(ji)
    inner.compute_at(out, jo)
    i, j = inner.axes
    ju, j = inner.split(j, 16)
    inner.reorder(*inner.reduce_axes, i, ju, j)
    for axis in (i, ju):
        inner.unroll(axis)
    inner.vectorize(j)
    return lower(schedule, [a, b, c], "kernel")


def test_register_tile_is_values_only() -> None:
    """No memory for the sums: one fused multiply-add, one broadcast and one load a step."""
    kernel = Kernel(tiled_product())
    region = next(d for d in kernel.text.split("define ") if "@kernel.r1(" in d)
    assert "alloca" not in region
    assert region.count("phi <16 x float>") == 4
    assert region.count("store <16 x float>") == 4
    a, b = (np.random.default_rng(k).integers(-3, 4, s).astype(np.float32) for k, s in enumerate([(8, 24), (24, 32)]))
    for threads in (1, 2):
        c = np.zeros((8, 32), np.float32)
        kernel.run([a, b, c], threads=threads)
        np.testing.assert_array_equal(c, a @ b)


def test_ragged_tile_is_values_only() -> None:
    """Of 105 columns tiles are 64 wide; the rest is two vectors and one of 9 lanes, and not a column more."""
    kernel = Kernel(tiled_product(105, 64))
    region = next(d for d in kernel.text.split("define ") if "@kernel.r1(" in d)
    assert "alloca" not in region
    assert region.count("phi <16 x float>") == 4 * (4 + 2)
    assert region.count("phi <9 x float>") == 4
    a, b = (np.random.default_rng(k).integers(-3, 4, s).astype(np.float32) for k, s in enumerate([(8, 24), (24, 105)]))
    c = np.zeros((8, 105), np.float32)
    kernel.run([a, b, c], at_end=True)
    np.testing.assert_array_equal(c, a @ b)


def test_text_of_a_small_kernel(golden: Callable[[str], None]) -> None:
    """Two rows of four sums in registers: one load and two multiply-adds a step, pointers made outside the loop."""
    a, b = te.placeholder((2, 3), f32, "a"), te.placeholder((3, 4), f32, "b")
    k = te.reduce_axis(3, "k")
    c = te.compute((2, 4), lambda i, j: te.sum_of(a[i, k] * b[k, j], k), "c")
    schedule = Schedule([c])
    tile = schedule.cache_write(c, "register")
    for t in (tile, c):
        stage = schedule[t]
        stage.reorder(*stage.reduce_axes, *stage.axes)
        stage.unroll(stage.axes[0])
        stage.vectorize(stage.axes[1])
    module = ModuleText()
    emit_function(lower(schedule, [a, b, c], "product"), module)
    golden(module.definitions[0])


def test_assembly_of_a_register_tile_is_a_loop_of_multiply_adds() -> None:
    skylake = Machine("x86_64-unknown-linux-gnu", "skylake-avx512", "-prefer-256-bit", 512)
    assembly = assembly_of(Kernel(tiled_product()).text + pool_ir(skylake.triple), skylake)
    body = assembly[assembly.index("kernel.r1:") :].partition(".Lfunc_end")[0]
    assert len(re.findall(r"vfmadd\w+\s.*\{1to16\}, %zmm", body)) == 4
    assert "Spill" not in body


def test_registers_keep_their_values_through_branches_and_loops() -> None:
    """Assigned in one branch only, in both, and in a loop around them."""
    x, out, held = Buffer("x", (6,), f32), Buffer("out", (1,), f32), Buffer("held", (1,), f32, "register")
    k = Var("k", 0, 5)
    at, one = as_index(k), as_index(0)

    def put(value: Expr) -> Store:
        return Store(held, (one,), value)

    now = Load(held, (one,))
    either = If(within(at % 2, 0, 1), put(now + Load(x, (at,))), put(now * 2))
    maybe = If(within(at, 4, 6), put(now + 100.0))
    body = seq([put(const(1.0, f32)), For(k, 6, ForKind.SERIAL, seq([either, maybe])), Store(out, (one,), now)])
    fn = Function("kernel", (x, out), 1, Allocate(held, body))
    for level in (0, 3):
        kernel = Kernel(fn, level)
        assert "alloca" not in kernel.text
        got, want = np.zeros(1, np.float32), np.zeros(1, np.float32)
        data = np.arange(6, dtype=np.float32)
        kernel.run([data, got])
        run_function(fn, [data, want])
        np.testing.assert_array_equal(got, want)


# -- buffers ----------------------------------------------------------------------------------------------------------
def test_large_intermediate_tensors_live_in_scratch_memory() -> None:
    computation = softmax()
    fn = lower(Schedule(computation.outputs), computation.params, "kernel")
    kernel = Kernel(fn)
    assert kernel.scratch_bytes == 64 + 128 + 64  # top, e, total: each a multiple of 64
    assert "alloca" not in kernel.text.partition("define internal void @kernel")[2].partition("\n}")[0]


def test_copies_of_a_body_share_the_buffer() -> None:
    """Unrolling allocates a buffer many times, one after the other."""
    x, out, tmp = Buffer("x", (64,), f32), Buffer("out", (64,), f32), Buffer("tmp", (64,), f32, "local")
    i, j = Var("i", 0, 63), Var("j", 0, 63)
    fill = For(j, 64, ForKind.SERIAL, Store(tmp, (as_index(j),), Load(x, (as_index(j),))))
    use = Store(out, (as_index(i),), Load(tmp, (63 - as_index(i),)))
    fn = Function("kernel", (x, out), 1, unroll(For(i, 64, ForKind.UNROLLED, Allocate(tmp, seq([fill, use])))))
    kernel = Kernel(fn, 0)
    assert kernel.text.count("alloca") == 1
    data, got = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    kernel.run([data, got])
    np.testing.assert_array_equal(got, data[::-1])


def test_copies_of_a_tile_share_memory_where_it_is_in_memory() -> None:
    x, out = Buffer("x", (8,), f32), Buffer("out", (8,), f32)
    i = Var("i", 0, 3)

    def part(first: int) -> Stmt:
        tile = Buffer("tile", (4,), f32, "register")
        fill = For(i, 4, ForKind.SERIAL, Store(tile, (as_index(i),), Load(x, (as_index(i) + first,))))
        turn = For(i, 4, ForKind.SERIAL, Store(out, (as_index(i) + first,), Load(tile, (3 - as_index(i),))))
        return Allocate(tile, seq([fill, turn]))

    kernel = Kernel(Function("kernel", (x, out), 1, seq([part(0), part(4)])), 0)
    assert kernel.text.count("alloca") == 1
    data, got = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    kernel.run([data, got])
    np.testing.assert_array_equal(got, [3, 2, 1, 0, 7, 6, 5, 4])


@pytest.mark.parametrize("n", [18, 20, 29, 35])
def test_ends_of_own_buffers_are_written_and_read_as_whole_vectors(n: int) -> None:
    """What was written in parts could only be read as a whole once it has reached the cache."""
    x, out, tmp = Buffer("x", (n,), f32), Buffer("out", (n,), f32), Buffer("tmp", (n,), f32, "local")
    rest, lane, whole = Var("r", 0, n % 16 - 1), Var("l", 0, 15), n - n % 16
    at = as_index(rest) + whole
    first = For(Var("i", 0, whole - 1), whole, ForKind.SERIAL, Store(tmp, (as_index(0),), const(0.0, f32)))
    fill = Store(tmp, (at,), Load(x, (at,)) * 2, rest)
    end = as_index(lane) + whole
    value = select(within(end, 0, n), Load(tmp, (end,)), 0.0)
    held = Buffer("held", (16,), f32, "register")
    use = [Store(held, (as_index(lane),), value, lane), Store(out, (at,), Load(held, (as_index(rest),)), rest)]
    body = Allocate(tmp, seq([first, fill, Allocate(held, seq(use))]))
    kernel = Kernel(Function("kernel", (x, out), 1, body), masks=True)
    assert kernel.text.count("masked.load") == kernel.text.count("masked.store") == 2 * (n % 16 not in (2, 4))
    data, got = np.arange(n, dtype=np.float32), np.zeros(n, np.float32)
    kernel.run([data, got], at_end=True)
    np.testing.assert_array_equal(got[whole:], 2 * data[whole:])


@pytest.mark.parametrize("threads", [1, 2])
def test_buffers_of_threads_are_their_own(threads: int) -> None:
    """A buffer allocated in a parallel loop, and once more before it, in another part of the same loop."""
    x, out, tmp = Buffer("x", (9, 8), f32), Buffer("out", (9, 8), f32), Buffer("tmp", (8,), f32, "local")

    def part(first: int, rows: int) -> Stmt:
        i, j = Var("i", 0, rows - 1), Var("j", 0, 7)
        at = as_index(i) + first
        fill = For(j, 8, ForKind.SERIAL, Store(tmp, (as_index(j),), Load(x, (at, as_index(j)))))
        turn = For(j, 8, ForKind.SERIAL, Store(out, (at, as_index(j)), Load(tmp, (7 - as_index(j),))))
        return For(i, rows, ForKind.PARALLEL if rows > 1 else ForKind.SERIAL, Allocate(tmp, seq([fill, turn])))

    fn = Function("kernel", (x, out), 1, seq([part(0, 1), part(1, 8)]))
    data, got = np.arange(72, dtype=np.float32).reshape(9, 8), np.zeros((9, 8), np.float32)
    Kernel(fn).run([data, got], threads=threads)
    np.testing.assert_array_equal(got, data[:, ::-1])


def test_elements_of_a_register_vector_can_be_read() -> None:
    x, out, held = Buffer("x", (8,), f32), Buffer("out", (3,), f32), Buffer("held", (8,), f32, "register")
    lane = Var("l", 0, 7)
    put = Store(held, (as_index(lane),), Load(x, (as_index(lane),)) * 10, lane)
    use = [Store(out, (as_index(k),), Load(held, (as_index(7 - 2 * k),))) for k in range(3)]
    kernel = Kernel(Function("kernel", (x, out), 1, Allocate(held, seq([put, *use]))))
    assert "alloca" not in kernel.text.partition("define internal void @kernel(")[2].partition("\n}")[0]
    data, got = np.arange(8, dtype=np.float32), np.zeros(3, np.float32)
    kernel.run([data, got])
    np.testing.assert_array_equal(got, [70, 50, 30])


@pytest.mark.parametrize("outer", [ForKind.SERIAL, ForKind.PARALLEL])
def test_outlined_loops_are_functions_of_their_own(outer: ForKind) -> None:
    x, out, tmp = Buffer("x", (9, 8), f32), Buffer("out", (9, 8), f32), Buffer("tmp", (8,), f32, "local")
    i, j = Var("i", 0, 8), Var("j", 0, 7)
    fill = For(j, 8, ForKind.SERIAL, Store(tmp, (as_index(j),), Load(x, (as_index(i), as_index(j)))))
    use = Store(out, (as_index(i), as_index(j)), Load(tmp, (7 - as_index(j),)) * 3)
    turn = For(j, 8, ForKind.SERIAL, seq([Evaluate("pragma.outline", (True,)), use]))
    fn = Function("kernel", (x, out), 1, For(i, 9, outer, Allocate(tmp, seq([fill, turn]))))
    kernel = Kernel(fn)
    (own,) = [d for d in kernel.text.split("define ") if " noinline " in d.partition("\n")[0]]
    assert own.count("fmul") == 1
    assert kernel.text.count("fmul") == 1
    data, got = np.arange(72, dtype=np.float32).reshape(9, 8), np.zeros((9, 8), np.float32)
    kernel.run([data, got], threads=2)
    np.testing.assert_array_equal(got, data[:, ::-1] * 3)


@pytest.mark.parametrize("marked", [False, True])
def test_what_is_to_be_reloaded_is_loaded_anew_in_every_iteration(marked: bool) -> None:
    x, out = Buffer("x", (4,), f32), Buffer("out", (3,), f32)
    mark = [Evaluate("pragma.reload", (True,))] if marked else []
    sums = [Store(out, (as_index(k),), Load(x, (as_index(k),)) * Load(x, (as_index(1),))) for k in (0, 2, 2)]
    kernel = Kernel(Function("kernel", (x, out), 1, seq([s for one in sums for s in (*mark, one)])))
    assert kernel.text.count("= load float") == (6 if marked else 3)
    own = assembly_of(kernel.text, machine()).partition(".Lfunc_end0")[0]
    assert own.count("(%rdi)") == (6 if marked else 3)
    data, got = np.arange(4, dtype=np.float32), np.zeros(3, np.float32)
    kernel.run([data, got])
    np.testing.assert_array_equal(got, [0, 0, 2])


@pytest.mark.parametrize("threads", [1, 2])
def test_register_buffer_around_a_parallel_loop_is_memory(threads: int) -> None:
    """Each thread would start with undefined values otherwise."""
    x, out, held = Buffer("x", (8,), f32), Buffer("out", (3, 8), f32), Buffer("held", (1,), f32, "register")
    i, j = Var("i", 0, 2), Var("j", 0, 7)
    put = Store(held, (as_index(0),), Load(x, (as_index(i),)) * 10)
    use = Store(out, (as_index(i), as_index(j)), Load(held, (as_index(0),)) + Load(x, (as_index(j),)))
    body = Allocate(held, seq([put, For(j, 8, ForKind.PARALLEL, use)]))
    fn = Function("kernel", (x, out), 1, For(i, 3, ForKind.SERIAL, body))
    data, got = np.arange(8, dtype=np.float32), np.zeros((3, 8), np.float32)
    Kernel(fn).run([data, got], threads=threads)
    np.testing.assert_array_equal(got, data[:3, None] * 10 + data)


def test_loops_of_no_iterations_do_nothing() -> None:
    out = Buffer("out", (2,), f32)
    k, zero = Var("k", 0, 1), const(0, i64)
    body = Store(out, (as_index(k),), const(1.0, f32))
    loops = [For(Var("z", 0, -1), 0, kind, body) for kind in (ForKind.SERIAL, ForKind.PARALLEL)]
    loops[0].body = Store(out, (as_index(0),), const(1.0, f32))
    loops[1].body = loops[0].body
    fn = Function("kernel", (out,), 1, seq([*loops, ForRange(k, zero, zero, body)]))
    got = np.full(2, 77, np.float32)
    Kernel(fn, 0).run([got])
    np.testing.assert_array_equal(got, [77, 77])


def test_loops_with_bounds_from_memory() -> None:
    x, out, k = Buffer("x", (2,), i64), Buffer("out", (6,), f32), Var("k", 0, 5)
    loop = ForRange(k, Load(x, (as_index(0),)), Load(x, (as_index(1),)), Store(out, (as_index(k),), const(1.0, f32)))
    kernel = Kernel(Function("kernel", (x, out), 1, loop))
    for begin, end in ((0, 6), (2, 3), (4, 4), (5, 1)):
        got = np.zeros(6, np.float32)
        kernel.run([np.array([begin, end]), got])
        np.testing.assert_array_equal(got, [float(begin <= k < end) for k in range(6)])


def test_parallel_loops_know_the_loops_around_them() -> None:
    out = Buffer("out", (3, 5, 4), i64)
    i, j, k = Var("i", 0, 2), Var("j", 0, 4), Var("k", 0, 3)
    value = as_expr(as_index(i) * 100 + as_index(j) * 10 + k)
    inner = For(k, 4, ForKind.PARALLEL, Store(out, (as_index(i), as_index(j), as_index(k)), value))
    fn = Function("kernel", (out,), 1, For(i, 3, ForKind.SERIAL, For(j, 5, ForKind.PARALLEL, inner)))
    kernel = Kernel(fn)
    assert kernel.text.count("call void @mlc_parallel") == 1  # the inner one is an ordinary loop of a thread
    got = np.zeros((3, 5, 4), np.int64)
    kernel.run([got], threads=2)
    np.testing.assert_array_equal(got, np.fromfunction(lambda a, b, c: a * 100 + b * 10 + c, (3, 5, 4)))


@pytest.mark.parametrize("threads", [1, 2])
def test_result_does_not_depend_on_threads(threads: int) -> None:
    """More rows than threads, fewer rows than threads, and one."""
    for rows in (1, 2, 37):
        x = te.placeholder((rows, 3), f32, "x")
        y = te.compute((rows, 3), lambda i, j, x=x: x[i, j] * 2.0, "y")  # type: ignore[misc]
        schedule = Schedule([y])
        schedule[y].parallel(schedule[y].axes[0])
        data, got = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3), np.zeros((rows, 3), np.float32)
        Kernel(lower(schedule, [x, y], "kernel")).run([data, got], threads=threads)
        np.testing.assert_array_equal(got, data * 2)


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0), (1, 1, 1)], ids=str)
def test_extents_of_zero_and_one(shape: tuple[int, int, int]) -> None:
    rows, columns, terms = shape
    a, b = te.placeholder((rows, terms), f32, "a"), te.placeholder((terms, columns), f32, "b")
    k = te.reduce_axis(terms, "k")
    c = te.compute((rows, columns), lambda i, j: te.sum_of(a[i, k] * b[k, j], k), "c")
    schedule = Schedule([c])
    schedule[c].parallel(schedule[c].fuse(*schedule[c].axes))
    data = [np.ones(t.shape, np.float32) for t in (a, b)]
    got = np.full((rows, columns), 77, np.float32)
    Kernel(lower(schedule, [a, b, c], "kernel")).run([*data, got], threads=2)
    np.testing.assert_array_equal(got, data[0] @ data[1])


# -- what LLVM targets cannot express ---------------------------------------------------------------------------------
class Odd(Expr):
    """What no code generator knows."""

    dtype = f32


OUT = Buffer("out", (4,), f32)
K = Var("k", 0, 3)
STORE = Store(OUT, (as_index(K),), const(1.0, f32))
HELD = Buffer("held", (1,), f32, "register")
BIG = Buffer("big", (1 << 20,), f32, "local")


@pytest.mark.parametrize(
    "body, message",
    [
        (Store(OUT, (as_index(0),), Odd()), "no code for Odd"),
        (For(K, 4, ForKind.THREAD, STORE, "x"), "kernel: the LLVM targets have no thread loops"),
        (For(K, 4, ForKind.VECTORIZED, STORE), "kernel: the LLVM targets have no vectorized loops"),
        (Barrier("block"), "kernel: the LLVM targets have no Barrier"),
        (Evaluate("dma", ()), "kernel: the LLVM targets have no intrinsic dma"),
        (
            Allocate(HELD, ForRange(K, const(0, i64), const(4, i64), Store(HELD, (as_index(0),), const(1.0, f32)))),
            "kernel: a register buffer is assigned in a loop of unknown length",
        ),
        (
            Allocate(BIG, Store(BIG, (as_index(0),), const(1.0, f32))),
            r"kernel: big: f32\[1048576\] and others take 4194304 bytes of stack",
        ),
    ],
)
def test_what_cannot_be_expressed_is_refused(body: Stmt, message: str) -> None:
    with pytest.raises(CodegenError, match=message):
        emit_function(Function("kernel", (OUT,), 1, body), ModuleText())

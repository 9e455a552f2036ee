"""Products by Tensor Cores: right in the interpreter, proved, and right as printed, by the host's compiler."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from mlc.errors import CodegenError, ScheduleError, VerifyError
from mlc.ir.expr import const, within
from mlc.ir.graph import Builder, Value
from mlc.ir.index import Var, as_index, substitute
from mlc.ir.interp import run_function
from mlc.ir.loop import Access, Barrier, Commit, Evaluate, For, Function, If, Seq, Stmt, Store, Wait, rebuild, walk
from mlc.ir.types import DType, bf16, f16, f32, i8, u8
from mlc.lower.prove import prove
from mlc.lower.rewrite import map_accesses
from mlc.rewrite.group import configured
from mlc.targets.base import get_target
from mlc.targets.cuda.compiler import compile_sources
from mlc.targets.cuda.dialect import CUDA_C
from mlc.targets.cuda.target import CudaTarget
from mlc.targets.gpu.emit import emit, source_of
from mlc.targets.gpu.kernel import kernel
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.scalars import Scalars
from mlc.targets.gpu.tensor_cores import MMAS, TF32, Fragments, best_fragments
from mlc.targets.opencl.dialect import OPENCL_C
from tests.cuda import built
from tests.unit.targets.gpu.groups import Case, assert_close, conv, put, x

AMPERE, TURING = (get_target(f"cuda -arch={archs}").record for archs in ("sm_80,sm_90", "sm_75"))  # type: ignore[attr-defined]
QUICK = ("half", "bytes", "conv_bytes")
LARGE = {"tiles_high": 2, "tiles_wide": 2, "warps_high": 2, "warps_wide": 2}


def product(
    m: int, n: int, k: int, a: DType, w: DType | None = None, batch: tuple[int, ...] = (), *, turned: bool = False
) -> Callable[[Builder], Sequence[Value]]:
    """A product with a bias and a ReLU; of bf16, the sums stay in f32."""

    def make(b: Builder) -> Sequence[Value]:
        right = x(b, *batch, *((n, k) if turned else (k, n)), name="w", dtype=w or a)
        op = "matmul_wide" if a is bf16 else "matmul"
        y = put(b, op, [x(b, *batch, m, k, dtype=a), right], transpose_b=turned)
        return [put(b, "relu", [put(b, "add", [y, x(b, n, name="bias", dtype=y.type.dtype)])])]

    return make


MADE: dict[str, Callable[[Builder], Sequence[Value]]] = {
    "half": product(32, 24, 32, f16),
    "half_ahead": product(32, 32, 80, f16, turned=True),
    "half_ragged": product(17, 19, 23, f16),
    "half_turned": product(33, 24, 50, f16, turned=True),
    "half_batch": product(16, 8, 16, f16, batch=(2, 3)),
    "bf16": product(18, 9, 20, bf16),
    "bytes": product(20, 24, 40, i8),
    "unsigned_bytes": product(32, 40, 32, u8, i8, turned=True),
    "bytes_by_unsigned": product(17, 24, 36, i8, u8),
    "all_unsigned": product(20, 9, 40, u8, u8),
    "conv": lambda b: [conv(b, (1, 4, 6, 5), (20, 4, 3, 3), dtype=f16)],
    "conv_groups": lambda b: [conv(b, (2, 4, 4, 4), (32, 2, 3, 3), groups=2, dtype=f16)],
    "conv_bytes": lambda b: [conv(b, (1, 32, 4, 5), (16, 32, 1, 1), dtype=i8, pad=0)],
}


def uses(fn: Function) -> list[Evaluate]:
    return [s for s in walk(fn.body) if isinstance(s, Evaluate) and s.intrinsic is not None]


def case(name: str, config: dict[str, object] | None = None, target: Gpu = AMPERE) -> tuple[Case, Function]:
    found = Case.made(name, MADE[name])
    return found, kernel(configured(found.node, config) if config else found.node, name, target)


def on_host(fn: Function, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What the printed kernel makes of some arrays."""
    scalars = Scalars(CUDA_C)
    emitted = emit(fn, scalars)
    library = built(source_of(scalars, [emitted.text]))
    results = [np.full(b.shape, 77).astype(b.dtype.numpy) for b in fn.params[len(arrays) :]]
    kept = [np.full(n, 77, np.uint8) for n in emitted.buffers]
    places = [*map(np.ascontiguousarray, arrays), *results, *kept]
    for launch in emitted.launches:
        operands = (ctypes.c_void_p * len(launch.operands))(*(places[k].ctypes.data for k in launch.operands))
        sizes = (ctypes.c_uint * 6)(*launch.grid, *launch.block)
        assert getattr(library, f"launch_{launch.name}")(operands, sizes)
    return results


def feeds_of(found: Case, fn: Function) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What a kernel is given, and what it is to make of that."""
    feeds = found.feeds()
    return [a.reshape(b.shape) for a, b in zip(found.arrays(feeds), fn.params, strict=False)], found.expected(feeds)


@pytest.mark.parametrize(
    "name, config",
    [
        pytest.param(name, config, marks=[pytest.mark.slow] * (name not in QUICK))
        for name in MADE
        for config in (None, LARGE)
    ],
)
def test_printed_kernels_compute_what_groups_say(name: str, config: dict[str, object] | None) -> None:
    found, fn = case(name, config)
    assert uses(fn)
    arrays, want = feeds_of(found, fn)
    assert_close(on_host(fn, arrays), want)


def test_all_threads_of_a_warp_come_where_its_block_is_wider_than_the_product() -> None:
    config = {"tiles_high": 4, "tiles_wide": 1, "warps_high": 1, "warps_wide": 4, "terms": 128, "versions": 4}
    found, fn = case("conv_bytes", {**config, "asynchronous": False, "parts": 1})  # 20 columns; three warps make 24
    assert uses(fn)
    arrays, want = feeds_of(found, fn)
    assert_close(on_host(fn, arrays), want)


def test_no_instruction_is_missing() -> None:
    """That of single precision has a test of its own."""
    assert {s.name for name in MADE for s in uses(case(name)[1])} | {TF32} == {m.name for m in MMAS.values()}


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in MADE])
def test_the_interpreter_finds_no_race_and_the_same(name: str) -> None:
    found, fn = case(name, LARGE)
    arrays, want = feeds_of(found, fn)
    results = [np.full(b.shape, 77).astype(b.dtype.numpy) for b in fn.params[len(arrays) :]]
    run_function(fn, arrays + results)
    assert_close(results, want)


def test_single_precision_takes_ten_bits_where_it_is_asked_for() -> None:
    target = get_target("cuda -arch=sm_80,sm_90 -tf32=on")
    assert isinstance(target, CudaTarget)
    found = Case.made("single", product(33, 20, 30, f32))
    assert not uses(kernel(found.node, "k", AMPERE))
    fn = kernel(found.node, "k", target.record)
    assert {s.name for s in uses(fn)} == {TF32}
    arrays, (want,) = feeds_of(found, fn)
    (got,) = on_host(fn, arrays)
    error = np.abs(got - want).max() / np.abs(want).max()
    assert 1e-5 < error < 1e-3
    assert target.accelerator is not None
    assert target.accelerator.processor == "cuda-h200-tf32"  # type: ignore[attr-defined]
    scalars = Scalars(CUDA_C)
    text = source_of(scalars, [emit(fn, scalars).text])
    pytest.importorskip("cuda.bindings.nvrtc")
    for image in compile_sources({"sm_80": text, "sm_90": text}).values():
        assert b"m16n8k8.row.col.f32.tf32.tf32.f32" in image.assembly
        assert not [k for k, r in image.resources.items() if r.spill_stores or r.spill_loads]


@pytest.mark.parametrize("arch, target", [("sm_80", AMPERE), pytest.param("sm_75", TURING, marks=pytest.mark.slow)])
def test_instructions_of_every_type_compile_without_spilling(arch: str, target: Gpu) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    scalars = Scalars(CUDA_C)
    names = [name for name in MADE if target is AMPERE or name != "bf16"]  # before 8.0 there is nothing for it
    kernels = [case(name, config, target)[1] for name in names for config in (None, LARGE)]
    assert all(map(uses, kernels))
    texts = [emit(replace_name(fn, k), scalars).text for k, fn in enumerate(kernels)]
    image = compile_sources({arch: source_of(scalars, texts)})[arch]
    assert b"mma.sync.aligned" in image.assembly
    assert not [k for k, r in image.resources.items() if r.spill_stores or r.spill_loads]


def replace_name(fn: Function, k: int) -> Function:
    return Function(f"k{k}", fn.params, fn.outputs, fn.body, fn.attrs)


def test_text_of_a_kernel(golden: Callable[[str], None]) -> None:
    scalars = Scalars(CUDA_C)
    golden(source_of(scalars, [emit(case("half", LARGE)[1], scalars).text]))


@pytest.mark.parametrize("shape", [(1, 4096, 4096, 4096), (1, 1024, 1024, 1024), (8, 128, 64, 64), (1, 17, 9, 16)])
@pytest.mark.parametrize("mma", MMAS.values(), ids=lambda m: m.name)
def test_defaults_fit_the_device(shape: tuple[int, int, int, int], mma: object) -> None:
    tile = best_fragments(shape, AMPERE, mma)  # type: ignore[arg-type]
    assert tile == tile.fitted(shape, mma.terms)  # type: ignore[attr-defined]
    assert tile.shared_bytes(mma) <= AMPERE.shared_bytes  # type: ignore[arg-type]


def test_plain_threads_where_a_product_is_small() -> None:
    found = Case.made("few", product(8, 24, 32, f16))
    assert not uses(kernel(found.node, "k", AMPERE))


# -- refusals ---------------------------------------------------------------------------------------------------------
def test_blocks_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ScheduleError, match="128 threads of a block, 64 are the most"):
        case("half", LARGE | {"tiles_high": 1, "tiles_wide": 1}, replace(AMPERE, max_threads=64))
    with pytest.raises(ScheduleError, match="bytes of shared memory, there are 1024"):
        case("half", LARGE, replace(AMPERE, shared_bytes=1024))
    with pytest.raises(ScheduleError, match="registers of a thread, there are 40"):
        case("half", LARGE, replace(AMPERE, registers=40))


def change(s: Stmt, fn: Callable[[Evaluate], Stmt]) -> Stmt:
    """Every update by an intrinsic replaced."""
    if isinstance(s, Evaluate) and s.intrinsic is not None and len(s.args) > 2:
        return fn(s)
    return rebuild(s, lambda c: change(c, fn))


def lane_of(fn: Function) -> Var:
    return next(s.var for s in walk(fn.body) if isinstance(s, For) and s.thread == "threadIdx.x")


def test_a_missing_barrier_is_found() -> None:
    _, fn = case("half_turned")

    with pytest.raises(VerifyError, match="since the last barrier"):
        prove(without(fn, Barrier))


AHEAD = LARGE | {"terms": 16, "versions": 3}


def without(fn: Function, kind: type[Stmt]) -> Function:
    """A kernel without statements of a kind."""

    def inner(s: Stmt) -> Stmt:
        return Seq(()) if isinstance(s, kind) else rebuild(s, inner)

    return Function(fn.name, fn.params, fn.outputs, inner(fn.body), fn.attrs)


def test_operands_are_copied_ahead() -> None:
    found, fn = case("half_ahead", AHEAD)
    assert any(isinstance(s, Store) and s.asynchronous for s in walk(fn.body))
    arrays, want = feeds_of(found, fn)
    assert_close(on_host(fn, arrays), want)
    results = [np.full(b.shape, 77).astype(b.dtype.numpy) for b in fn.params[len(arrays) :]]
    run_function(fn, arrays + results)
    assert_close(results, want)


def test_a_missing_wait_is_found() -> None:
    found, fn = case("half_ahead", AHEAD)
    arrays, (want,) = feeds_of(found, fn)
    hasty = without(fn, Wait)
    with pytest.raises(VerifyError, match="a copy that nobody has waited for may be under way"):
        prove(hasty)
    results = [np.full(b.shape, 77).astype(b.dtype.numpy) for b in fn.params[len(arrays) :]]
    with pytest.raises(VerifyError, match="copies to it without having waited"):
        run_function(hasty, arrays + results)
    assert not np.allclose(on_host(hasty, arrays)[0], want)  # nothing has arrived


def test_sources_of_copies_stay() -> None:
    _, fn = case("half_ahead", AHEAD)
    source = fn.params[0]
    spoil = Store(source, (as_index(0), as_index(0)), const(0, f16))

    def after(s: Stmt) -> Stmt:
        return Seq((s, spoil)) if isinstance(s, Commit) else rebuild(s, after)

    with pytest.raises(VerifyError, match="what is copied may change before it is"):
        prove(Function(fn.name, fn.params, fn.outputs, after(fn.body)))


def test_operands_at_the_place_of_another_thread_are_found() -> None:
    _, fn = case("half")
    lane = lane_of(fn)

    def all_alike(s: Evaluate) -> Stmt:
        return map_accesses(
            s, lambda a: Access(a.buffer, tuple(substitute(ix, {lane: 0}) for ix in a.indices), a.strides)
        )

    with pytest.raises(VerifyError, match="does not lie where the threads of a warp have theirs"):
        prove(Function(fn.name, fn.params, fn.outputs, change(fn.body, all_alike)))


def test_operands_that_begin_anywhere_are_found() -> None:
    _, fn = case("half")

    def one_on(a: Access) -> Access:
        return Access(a.buffer, (*a.indices[:-1], a.indices[-1] + 1), a.strides) if a.buffer.scope == "shared" else a

    with pytest.raises(VerifyError, match="does not begin at multiples of 8"):
        prove(Function(fn.name, fn.params, fn.outputs, change(fn.body, lambda s: map_accesses(s, one_on))))


def test_rows_or_columns_may_be_neighbours() -> None:
    """Threads copy 16 bytes at a time, whichever way operands lie, and turn what they load for a product."""
    for made, turned in ((product(32, 24, 64, f16), (False, True)), (of_transposed, (True, True))):
        found = Case.made("turned", made)
        fn = kernel(configured(found.node, AHEAD), "k", AMPERE)
        (use, *_) = (s for s in uses(fn) if len(s.args) > 3)
        assert tuple(a.strides[-1] != 1 for a in use.args[2:4]) == turned
        assert len({s.buffer for s in walk(fn.body) if isinstance(s, Store) and s.asynchronous}) == 2
        arrays, want = feeds_of(found, fn)
        assert_close(on_host(fn, arrays), want)


def of_transposed(b: Builder) -> Sequence[Value]:
    """The product of a transposed matrix by another one."""
    return [put(b, "matmul", [x(b, 64, 48, dtype=f16), x(b, 64, 24, name="w", dtype=f16)], transpose_a=True)]


def test_threads_that_stay_away_are_found() -> None:
    _, fn = case("half")
    lane = lane_of(fn)
    body = change(fn.body, lambda s: If(within(lane, 0, 31), s))
    with pytest.raises(VerifyError, match="a warp does together, and not all threads reach"):
        prove(Function(fn.name, fn.params, fn.outputs, body))


def test_languages_without_them_say_so() -> None:
    with pytest.raises(CodegenError, match="this language has nothing for mma_f16_f16"):
        emit(case("half")[1], Scalars(OPENCL_C))


def test_fragments_of_a_small_product_are_small() -> None:
    assert Fragments(4, 8, 4, 4, 64).fitted((1, 17, 9, 16), 16) == Fragments(2, 2, 1, 1, 16)


def test_large_blocks_are_told_apart_by_their_indices() -> None:
    """The first convolution of ResNet-18: counting all elements of its buffers in turns would take too long."""
    found = Case.made("first", lambda b: [conv(b, (1, 3, 224, 224), (64, 3, 7, 7), stride=2, pad=3, dtype=f16)])
    config = {"tiles_high": 2, "tiles_wide": 8, "warps_high": 2, "warps_wide": 4, "terms": 32, "versions": 3}
    assert uses(kernel(configured(found.node, config), "k", AMPERE))


def test_threads_that_share_rows_are_told_apart() -> None:
    """A strided convolution of ResNet-50: a thread fetches a half of a row, and three steps are under way."""
    found = Case.made("strided", lambda b: [conv(b, (1, 256, 56, 56), (512, 256, 1, 1), stride=2, dtype=f16)])
    config = {"tiles_high": 2, "tiles_wide": 4, "warps_high": 2, "warps_wide": 4, "terms": 64, "versions": 3}
    assert uses(kernel(configured(found.node, config), "k", AMPERE))

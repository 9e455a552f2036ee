"""The thread pool: every index exactly once, whatever the number of threads, and no lost wake-ups."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from mlc.errors import UnsupportedError
from mlc.targets.llvm.runtime import pool_ir

# @mark: out[i] += 1 and from[i] = begin, so that both the cover and the partition can be seen.
# @turn: to[i] = from[n - 1 - i] + 1, reading what *other* threads wrote in the region before; a region that returns too
# early makes a wrong count.
# @hammer: `times` regions of @turn, swapping the two buffers each time.
KERNELS = """
define void @mark(ptr %ctx, i64 %begin, i64 %end) {
entry:
  %out = load ptr, ptr %ctx
  %from.p = getelementptr ptr, ptr %ctx, i64 1
  %from = load ptr, ptr %from.p
  %some = icmp slt i64 %begin, %end
  br i1 %some, label %loop, label %leave
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %o = getelementptr i64, ptr %out, i64 %i
  %x = load i64, ptr %o
  %y = add i64 %x, 1
  store i64 %y, ptr %o
  %f = getelementptr i64, ptr %from, i64 %i
  store i64 %begin, ptr %f
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %leave
leave:
  ret void
}

define void @turn(ptr %ctx, i64 %begin, i64 %end) {
entry:
  %from = load ptr, ptr %ctx
  %to.p = getelementptr ptr, ptr %ctx, i64 1
  %to = load ptr, ptr %to.p
  %n.p = getelementptr i64, ptr %ctx, i64 2
  %n = load i64, ptr %n.p
  %last = sub i64 %n, 1
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %j = sub i64 %last, %i
  %f = getelementptr i64, ptr %from, i64 %j
  %x = load i64, ptr %f
  %y = add i64 %x, 1
  %t = getelementptr i64, ptr %to, i64 %i
  store i64 %y, ptr %t
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %leave
leave:
  ret void
}

define void @hammer(ptr %pool, ptr %ctx, i64 %n, i64 %times) {
entry:
  %to.p = getelementptr ptr, ptr %ctx, i64 1
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %next, %loop ]
  call void @mlc_parallel(ptr %pool, ptr @turn, ptr %ctx, i64 %n)
  %from = load ptr, ptr %ctx
  %to = load ptr, ptr %to.p
  store ptr %to, ptr %ctx
  store ptr %from, ptr %to.p
  %next = add i64 %k, 1
  %more = icmp slt i64 %next, %times
  br i1 %more, label %loop, label %leave
leave:
  ret void
}
"""


class Pools:
    """The pool's calls and the test kernels, as Python functions."""

    def __init__(self, native: object) -> None:
        p, i = ctypes.c_void_p, ctypes.c_int64
        self._native = native  # the code lives as long as this object
        self.create = native.function("mlc_pool_create", p, ctypes.c_int32)
        self.destroy = native.function("mlc_pool_destroy", None, p)
        self.parallel = native.function("mlc_parallel", None, p, p, p, i)
        self.hammer = native.function("hammer", None, p, p, i, i)
        self.mark = native.address("mark")

    @contextmanager
    def pool(self, threads: int) -> Iterator[int]:
        pool = self.create(threads)
        assert pool
        try:
            yield pool
        finally:
            self.destroy(pool)

    def shares(self, pool: int | None, n: int) -> list[int]:
        """Runs one region over 0..n, checks that it met each index once, and returns where each share begins."""
        out, begins = np.zeros(n + 1, np.int64), np.full(n + 1, -1, np.int64)
        context = (ctypes.c_void_p * 2)(out.ctypes.data, begins.ctypes.data)
        self.parallel(pool, self.mark, ctypes.addressof(context), n)
        assert out[:n].tolist() == [1] * n
        assert out[n] == 0
        return sorted(set(begins[:n].tolist()))

    def count(self, pool: int | None, n: int, times: int) -> None:
        """Runs `times` regions that depend on one another, and checks the sum."""
        a, b = np.zeros(n, np.int64), np.zeros(n, np.int64)
        context = (ctypes.c_void_p * 3)(a.ctypes.data, b.ctypes.data, n)
        self.hammer(pool, ctypes.addressof(context), n, times)
        assert (a if times % 2 == 0 else b).tolist() == [times] * n


@pytest.fixture(scope="module")
def pools(compile_ir: Callable, load_native: Callable) -> Pools:
    from llvmlite import binding

    code = compile_ir(pool_ir(binding.get_default_triple()) + KERNELS)
    names = ["mlc_pool_create", "mlc_pool_destroy", "mlc_parallel", "mark", "hammer"]
    return Pools(load_native(code, names))


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 1000])
@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_region_meets_every_index_once_in_balanced_shares(pools: Pools, threads: int, n: int) -> None:
    with pools.pool(threads) as pool:
        shares = pools.shares(pool, n)
    if n <= 1:
        assert shares == [0] * n
    else:
        assert shares == sorted({n * t // threads for t in range(threads) if n * t // threads < n * (t + 1) // threads})


def test_no_pool_runs_serially(pools: Pools) -> None:
    assert pools.shares(None, 7) == [0]


@pytest.mark.parametrize("threads", [1, 2])
def test_many_regions_each_wait_for_the_one_before(pools: Pools, threads: int) -> None:
    with pools.pool(threads) as pool:
        pools.count(pool, 16, 100_000)


@pytest.mark.parametrize("threads", [3, 4])
def test_more_threads_than_cores_still_agree(pools: Pools, threads: int) -> None:
    with pools.pool(threads) as pool:
        pools.count(pool, 16, 300)


def test_sleeping_workers_wake_up(pools: Pools) -> None:
    with pools.pool(3) as pool:
        for _ in range(5):
            time.sleep(0.02)
            pools.count(pool, 12, 3)
        time.sleep(0.02)


def test_pools_can_be_made_and_destroyed_at_any_moment(pools: Pools) -> None:
    for i in range(200):
        with pools.pool(1 + i % 4) as pool:
            if i % 3 == 0:
                pools.shares(pool, 5)


def test_two_callers_on_one_pool_both_get_their_work_done(pools: Pools) -> None:
    failures: list[BaseException] = []

    def caller(pool: int) -> None:
        try:
            for _ in range(50):
                pools.count(pool, 10, 20)
        except BaseException as failure:
            failures.append(failure)

    with pools.pool(2) as pool:
        callers = [threading.Thread(target=caller, args=(pool,)) for _ in range(2)]
        for each in callers:
            each.start()
        for each in callers:
            each.join()
    assert not failures


@pytest.mark.parametrize("threads", [0, -1, 1025])
def test_create_refuses_a_senseless_number_of_threads(pools: Pools, threads: int) -> None:
    assert pools.create(threads) is None


def test_destroying_no_pool_is_nothing(pools: Pools) -> None:
    pools.destroy(None)


@pytest.mark.parametrize("triple", ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"])
def test_the_text_is_valid_for_each_cpu_and_exports_only_the_three_calls(triple: str) -> None:
    from llvmlite import binding

    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    module = binding.parse_assembly(pool_ir(triple))
    module.verify()
    assert binding.Target.from_triple(triple).create_target_machine(reloc="pic").emit_object(module)
    defined = {f.name: f.linkage.name for f in module.functions if not f.is_declaration}
    public = {name for name, linkage in defined.items() if linkage == "external"}
    assert public == {"mlc_pool_create", "mlc_pool_destroy", "mlc_parallel"}
    assert all(name.startswith("mlc.pool.") for name in set(defined) - public)


def test_another_cpu_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="riscv64-linux"):
        pool_ir("riscv64-linux")

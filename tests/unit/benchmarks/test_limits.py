"""The machine's limits: what is measured, and where it is applied."""

from __future__ import annotations

import pytest

from benchmarks.limits import Limit, home, ir_text, level_sizes, measure, roof, roof_of

CACHES = {"L1": 32 << 10, "L2": 1 << 20, "L3": 32 << 20}


def test_data_of_a_level_does_not_fit_the_one_before() -> None:
    for threads in (1, 2, 8):
        sizes = level_sizes(CACHES, threads)
        assert CACHES["L1"] < sizes["L2"] <= CACHES["L2"]
        assert CACHES["L2"] < sizes["L3"] <= CACHES["L3"] // threads
        assert threads * sizes["memory"] > CACHES["L3"]


def test_home_is_the_smallest_cache_that_holds_the_data() -> None:
    assert [home(CACHES, size) for size in (1 << 10, 1 << 18, 1 << 24, 1 << 30)] == ["L1", "L2", "L3", "memory"]


def test_roof_is_bandwidth_or_arithmetic() -> None:
    limit = Limit(1, 100.0, {"L2": 50.0}, {"L2": 25.0})
    assert [roof(limit, "L2", intensity) for intensity in (1.0, 2.0, 8.0)] == [50.0, 100.0, 100.0]


def test_what_is_written_moves_as_in_a_copy() -> None:
    limit = Limit(1, 100.0, {"L2": 50.0}, {"L2": 25.0})
    assert roof_of(limit, "L2", 1e6, read=1e6, written=0) == pytest.approx(50.0)
    assert roof_of(limit, "L2", 1e6, read=0.5e6, written=0.5e6) == pytest.approx(25.0)
    assert roof_of(limit, "L2", 3e6, read=1.5e6, written=0.5e6) == pytest.approx(3 / (1 / 25 + 1 / 50))
    assert roof_of(limit, "L2", 1e9, read=1e6, written=1e6) == 100.0


@pytest.mark.parametrize("lanes, fused", [(4, False), (8, True), (16, True)])
def test_kernels_are_valid_for_every_vector_width(lanes: int, fused: bool) -> None:
    import llvmlite.binding as llvm

    module = llvm.parse_assembly(ir_text(lanes, fused))
    module.verify()
    assert {"arithmetic", "reading", "copying"} <= {function.name for function in module.functions}


@pytest.mark.slow
def test_limits_are_measured() -> None:
    import os

    (limit,) = measure(sorted(os.sched_getaffinity(0)), [1])
    assert limit.gflops > 0.5
    assert "memory" in limit.gbytes
    assert min(*limit.gbytes.values(), *limit.copied.values()) > 0.5

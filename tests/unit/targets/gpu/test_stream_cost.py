"""The choice of threads for what reads, folds and writes: from a device's record, and no worse than any other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import pytest

from mlc.ir.loop import For
from mlc.lower.knobs import Knobs
from mlc.lower.schedule import Schedule
from mlc.lower.threads import grid_of, launches
from mlc.targets.cuda.arch import DEVICES as GPUS
from mlc.targets.gpu.kernel import kernel
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.schedules import schedule_group
from mlc.targets.gpu.schedules.fold_cost import Fold
from mlc.targets.gpu.schedules.folding import Crew
from mlc.targets.gpu.schedules.rows import rows_of
from mlc.targets.gpu.schedules.spread import work_of
from mlc.targets.gpu.stream_cost import ALIKE, Launch, fastest, seconds
from mlc.targets.groups.group import Group, group_of
from mlc.targets.opencl.devices import DEVICES
from tests.unit.targets.gpu.groups import Case, Make, put, x

H200, T4 = GPUS["h200"], GPUS["t4"]
EVERY = [*DEVICES.values(), H200, T4]
STREAM = Launch(1056, 256, 1e8, 1, 30)


def taken(make: Make, target: Gpu) -> dict[str, Any]:
    """What a template takes untuned."""
    knobs = Knobs()
    schedule_group(Case.made("k", make).node, target, knobs)
    return dict(knobs.space().default)


def summed(*shape: int) -> Make:
    return lambda b: [put(b, "add", [x(b, *shape), x(b, *shape, name="w")])]


def softmax(rows: int, columns: int) -> Make:
    return lambda b: [put(b, "softmax", [x(b, rows, columns)], axis=-1)]


def folded(*shape: int, axis: int, op: str = "reduce_sum") -> Make:
    return lambda b: [put(b, op, [x(b, *shape)], axes=(axis,), keepdims=False)]


def positions(rows: int, columns: int) -> Make:
    return lambda b: [put(b, "argmax", [x(b, rows, columns)], axis=1)]


def shape_of(make: Make, target: Gpu) -> list[tuple[int, int]]:
    """Blocks of every launch of an untuned kernel, and threads of these."""
    fn = kernel(Case.made("k", make).node, "k", target)
    grids = [grid_of(s)[0] for s in launches(fn.body)]

    def along(axes: Mapping[str, For], of: str) -> int:
        return prod(lp.extent for name, lp in axes.items() if name.startswith(of))

    return [(along(axes, "block"), along(axes, "thread")) for axes in grids]


@pytest.mark.parametrize(
    "slower",
    [
        replace(STREAM, nbytes=2e8),
        replace(STREAM, blocks=20, nbytes=1e8),
        replace(STREAM, waits=400),
        replace(STREAM, instructions=30_000),
        replace(STREAM, shared=200 << 10, waits=400),
    ],
)
def test_more_to_do_takes_longer(slower: Launch) -> None:
    assert seconds(slower, H200) > seconds(STREAM, H200)


def test_few_resident_threads_do_not_hide_latency() -> None:
    many, few = (replace(STREAM, waits=8, registers=n) for n in (0, 200))
    assert seconds(few, H200) > seconds(many, H200)


def test_nothing_takes_no_time() -> None:
    assert seconds(replace(STREAM, blocks=0), H200) == 0


def test_of_what_is_alike_the_one_is_taken_that_waits_least() -> None:
    some = [(k, replace(STREAM, waits=n)) for k, n in enumerate((3, 1, 2))]
    assert fastest(some, H200) == 1


def test_large_tensors_are_made_by_vectors_and_small_ones_by_single_elements() -> None:
    for target in EVERY:
        large, small = taken(summed(1 << 22), target), taken(summed(16), target)
        assert large["out0.vector"] == target.vector_bytes // 4
        assert small["out0.vector"] == 1


def test_vectors_begin_where_the_device_is_full() -> None:
    """A T4 has a third of an H200's multiprocessors, of half as many threads each."""
    vectors = [taken(summed(98_304), t)["out0.vector"] for t in (H200, replace(T4, units=4))]
    assert taken(summed(24_576), T4)["out0.vector"] > taken(summed(24_576), H200)["out0.vector"]
    assert vectors[1] == 4


def test_short_rows_have_a_part_of_a_warp_and_long_ones_a_block() -> None:
    short, middle, long = (taken(softmax(m, n), H200) for m, n in ((100_000, 16), (6144, 128), (32, 100_000)))
    assert (short["wide"], middle["wide"], long["wide"]) == (8, 32, H200.max_threads)
    assert short["tall"] == 16
    assert long["tall"] == 1


def test_sums_across_rows_read_neighbours_side_by_side() -> None:
    for target in (H200, T4, DEVICES["generic"]):
        assert taken(folded(4096, 1024, axis=0), target)["stage0.by"] == "columns"


@pytest.mark.parametrize("target", EVERY, ids=lambda t: t.name)
def test_no_thread_has_a_long_row_to_itself(target: Gpu) -> None:
    """A position among 50,000 numbers was once one thread's, since positions were folded by single threads only."""
    first, *rest = shape_of(positions(1, 50_000), target)
    assert prod(first) >= 8 * target.warp
    assert not rest or not target.shared_bytes or prod(first) > target.max_threads
    assert prod(shape_of(folded(1 << 20, axis=0), target)[0]) >= 512


def test_a_fold_by_launches_costs_their_beginning() -> None:
    """Where launches are dear, one thread folds what a few could."""
    dear, cheap = (taken(positions(3, 512), replace(DEVICES["mali"], launch_us=us)) for us in (5000.0, 1.0))
    assert (dear["stage0.by"], cheap["stage0.by"]) == ("thread", "shares")


def group(make: Make) -> Group:
    return group_of(Case.made("k", make).node, Knobs())


@pytest.mark.parametrize("target", EVERY, ids=lambda t: t.name)
@pytest.mark.parametrize("count", [10, 1000, 30_000, 802_816])
def test_no_other_vector_is_faster_by_the_model(count: int, target: Gpu) -> None:
    make = summed(count)
    s = Schedule(group(make).outputs)
    (stage,) = s.stages
    work, found = work_of(stage), taken(make, target)
    mine = seconds(work.launch(int(found["out0.vector"]), int(found["out0.block"]), target), target)
    for vector in (1, 2, 4):
        for block in (32, 128, 256):
            if count % vector == 0 and vector * 4 <= target.vector_bytes:
                assert mine <= ALIKE * seconds(work.launch(vector, block, target), target)


@pytest.mark.parametrize("target", [t for t in EVERY if t.shared_bytes], ids=lambda t: t.name)
@pytest.mark.parametrize("rows, columns", [(1, 10), (8, 1000), (384, 384), (6144, 512), (100_000, 49)])
def test_no_other_crew_is_faster_by_the_model(rows: int, columns: int, target: Gpu) -> None:
    found = taken(softmax(rows, columns), target)
    made = rows_of(group(softmax(rows, columns)))
    assert made is not None

    def time(wide: int, tall: int, few: int, kept: bool) -> float:
        return seconds(made.launch(Crew.of(wide, tall, few, target, made.group.reductions), target, kept=kept), target)

    mine = time(*(found[k] for k in ("wide", "tall", "few", "kept")))
    for wide in (8, 32, 128, 256):
        for tall in (1, 4, 16):
            crew = Crew.of(wide, tall, 4, target, made.group.reductions)
            if wide * tall <= target.max_threads and made.shared(crew, kept=False) <= target.shared_bytes:
                assert mine <= ALIKE * time(wide, tall, 4, False)


def test_what_a_warp_reads_apart_takes_turns() -> None:
    s = Schedule(group(folded(512, 512, axis=0)).outputs)
    (stage,) = s.stages
    across = Fold.of(stage, stage.op.reduce_axes[0])
    assert (across.apart, across.between) == (1, 512)
    crew = across.by_crew(Crew.of(64, 4, 1, H200, [stage.op]), H200)
    columns = across.by_columns(512, 32, 8, H200)
    assert crew.nbytes > columns.nbytes

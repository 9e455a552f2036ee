"""Schedules for grids of threads: right in the interpreter, for every device and any configuration, and proved."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from mlc.errors import ScheduleError
from mlc.ir.graph import Node
from mlc.ir.index import evaluate, weighted
from mlc.ir.loop import Barrier, Function, If, Shuffle, Store, walk
from mlc.lower.knobs import Knobs
from mlc.lower.threads import grid_of, launches
from mlc.rewrite.group import configured
from mlc.targets.base import get_target
from mlc.targets.cuda.arch import DEVICES as GPUS
from mlc.targets.gpu.kernel import kernel
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.schedules import schedule_group
from mlc.targets.opencl.devices import DEVICES
from tests.unit.targets.gpu.configurations import interpret, is_scheduled, random_configuration
from tests.unit.targets.gpu.groups import CASES, Case, Make, conv, conv_transpose, put, x

GENERIC = replace(DEVICES["generic"], ahead=True)
H200 = GPUS["h200"]
HOPPER = get_target("cuda -arch=sm_90").record  # type: ignore[attr-defined]
"""The same with Tensor Cores and asynchronous copies."""
FOLDING = ("softmax", "softmax_many", "softmax_half", "layer_norm", "mean_of_rows", "sums_of_rows", "argmax")
CHOOSING = (
    "matmul",
    "batch_matmul",
    "conv",
    "conv_groups",
    "softmax",
    "layer_norm",
    "mean_of_rows",
    "sum_of_all",
    "max_pool",
    "add",
    "depthwise",
    "transpose_tiles",
)


def check(case: Case, node: Node, target: Gpu) -> Function:
    """A kernel, proved by the compiler, computes what its group says."""
    fn = kernel(node, "k", target)
    interpret(case, fn)
    return fn


@pytest.mark.sweep(30)  # each runs on PoCL as well
@pytest.mark.parametrize("device", ["generic", "mali"])
@pytest.mark.parametrize("name", CASES)
def test_kernels_compute_what_groups_say(name: str, device: str) -> None:
    case = Case.of(name)
    fn = check(case, case.node, DEVICES[device])
    if not DEVICES[device].shared_bytes:
        assert not any(isinstance(s, Barrier) for s in walk(fn.body))


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", FOLDING)
def test_warps_fold_what_groups_say(name: str) -> None:
    """Where threads exchange what they have: untuned, and under any configuration."""
    case, rng = Case.of(name), np.random.default_rng(len(name))
    check(case, case.node, H200)
    few = replace(H200, max_threads=128)
    for _ in range(2):
        check(case, random_configuration(case.node, few, rng), few)


def test_a_row_of_a_warp_takes_no_barrier() -> None:
    fn = kernel(Case.of("layer_norm").node, "k", H200)
    found = [type(s) for s in walk(fn.body)]
    assert Shuffle in found
    assert Barrier not in found


@pytest.mark.parametrize(
    "name, threads", [("cumsum", [3]), ("top_k", [4]), ("scatter", [24, 4]), ("scatter_rows", [18, 3])]
)
def test_routines_are_made_by_as_many_threads_as_have_nothing_to_do_with_each_other(
    name: str, threads: list[int]
) -> None:
    fn = kernel(Case.of(name).node, "k", GENERIC)
    found = [prod(lp.extent for lp in grid_of(s)[0].values()) for s in launches(fn.body)]
    assert found == threads


def test_sums_at_places_that_data_say_are_one_threads() -> None:
    _, sums = launches(kernel(Case.of("scatter_sums").node, "k", GENERIC).body)
    assert not grid_of(sums)[0]


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", CHOOSING)
def test_any_configuration(name: str) -> None:
    case = Case.of(name)
    rng = np.random.default_rng(len(name))
    for _ in range(3):
        check(case, random_configuration(case.node, GENERIC, rng), GENERIC)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("device", [*DEVICES.values(), H200, HOPPER], ids=lambda d: d.name)
def test_all_that_is_drawn_from_a_space_is_asked_for(device: Gpu) -> None:
    """Else candidates of the tuner would be refused for a knob that another one's value has made go away."""
    rng = np.random.default_rng(0)
    for name in CASES:
        node, knobs = Case.of(name).node, Knobs()
        if not is_scheduled(node):
            continue
        schedule_group(node, device, knobs)
        space = knobs.space()
        for row in space.sample(rng, 8):
            asked = Knobs(space.config(row))
            try:
                schedule_group(node, device, asked)
            except ScheduleError:
                continue  # there is no room for it
            asked.require_all_asked()


@pytest.mark.parametrize("name", ["matmul", "conv_bias_relu", "batch_matmul"])
def test_threads_make_strips(name: str) -> None:
    """Ragged ones, which lie between those of other threads; all fetch for all of them."""
    case = Case.of(name)
    config = {"rows": 2, "columns": 4, "ty": 2, "tx": 2, "depth": 4, "vy": 2, "vx": 2, "versions": 2}
    check(case, configured(case.node, config), GENERIC)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("device", ["generic", "mali"])
@pytest.mark.parametrize(
    "make",
    [
        CASES["matmul_long"],
        lambda b: [conv(b, (1, 32, 3, 2), (6, 16, 3, 3), groups=2)],
        lambda b: [conv_transpose(b, (1, 16, 2, 3), (16, 3, 4, 3), 2)],
    ],
    ids=["product", "groups", "phases"],
)
def test_terms_are_added_up_in_parts(make: Make, device: str) -> None:
    case = Case.made("k", make)
    fn = check(case, configured(case.node, {"parts": 4}), DEVICES[device])
    assert len(launches(fn.body)) == 2


@pytest.mark.parametrize("device", ["generic", "mali"])
@pytest.mark.parametrize("shape", [(512, 512, 3, 3), (16, 512, 33, 33), (4, 64, 161, 97), (3, 5, 7, 11, 13, 17, 19)])
def test_millions_of_elements_of_odd_shapes_are_told_apart(shape: tuple[int, ...], device: str) -> None:
    """By their places in memory: there are too many to count them."""
    case = Case.made("relu", lambda b: [put(b, "relu", [x(b, *shape)])])
    kernel(case.node, "k", DEVICES[device])


@pytest.mark.parametrize(
    "config, message",
    [
        ({"ty": 32, "tx": 32, "rows": 1, "columns": 1}, "323 threads of a block, 256 are the most"),
        ({"rows": 8, "columns": 8, "depth": 32}, "about 96 registers of a thread, there are 64"),
        ({"tiles": 3}, "there is no knob tiles"),
        ({"rows": 1, "columns": 1, "ty": 1, "tx": 1, "depth": 5}, "knob depth has no value 5"),
    ],
)
def test_what_the_device_cannot_run_is_refused(config: dict[str, int], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        kernel(configured(Case.of("matmul").node, config), "k", GENERIC)


@pytest.mark.parametrize("depth", [4, 8, 16, 32])
def test_terms_that_lie_side_by_side_are_stored_in_different_banks(depth: int) -> None:
    """A warp's stores of an operand whose rows are terms, turned: each goes to a bank of its own, and rows begin where
    threads can read four words at a time."""
    case = Case.made("turned", lambda b: [put(b, "matmul", [x(b, 64, 64), x(b, 64, 64, name="w")])])
    config = {"rows": 4, "columns": 4, "ty": 8, "tx": 8, "depth": depth, "versions": 1, "shared": True, "parts": 1}
    fn = kernel(configured(case.node, config), "k", H200)
    ((loops, shared, _),) = [grid_of(s) for s in launches(fn.body)]
    (left,) = [b for b in shared if b.name == "p0_left"]
    (store,) = [s for s in walk(fn.body) if isinstance(s, Store) and s.buffer is left]
    at = weighted(store.indices, left.strides())
    thread = [loops[axis].var for axis in ("threadIdx.y", "threadIdx.x")]
    rest = {v: 0 for v in at.vars() - set(thread)}
    places = [evaluate(at, {**rest, thread[0]: n // 8, thread[1]: n % 8}) for n in range(H200.warp)]
    assert len({int(place) % 32 for place in places}) == H200.warp
    assert left.strides()[-2] % 4 == 0


def test_threads_do_not_ask_for_the_columns_of_an_only_block() -> None:
    """49 pixels of a block of 52: sums of three that there are not are computed, and not stored."""
    case = Case.made("pixels", lambda b: [conv(b, (1, 16, 7, 7), (32, 16, 3, 3))])
    config = {"rows": 4, "columns": 4, "ty": 8, "tx": 16, "depth": 8, "versions": 1, "shared": True, "parts": 1}
    fn = check(case, configured(case.node, config), H200)
    asked = [t for s in walk(fn.body) if isinstance(s, If) for t in walk(s.then) if isinstance(t, Store)]
    assert {t.buffer.name for t in asked} == {"pad_right", "p1_left", "conv"}

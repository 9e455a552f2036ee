"""Kernels on PoCL: with shared memory and barriers, they compute what the interpreter says."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.rewrite.group import configured
from mlc.targets.gpu.kernel import kernel
from mlc.targets.opencl.devices import DEVICES
from mlc.targets.opencl.driver import IN_A_ROW, OpenClDevice
from tests.opencl import program, run
from tests.unit.targets.gpu.groups import CASES, Case, assert_close, put, x
from tests.unit.targets.gpu.test_templates import CHOOSING, check, random_configuration

QUICK = ("matmul", "conv_bias_relu", "conv_groups", "depthwise", "softmax", "sum_of_all", "argmax", "add", "join")

REPEATED = 100  # configurations in a row that make kernels seen before


def check_untuned(pocl: OpenClDevice, name: str) -> None:
    case = Case.of(name)
    feeds = case.feeds()
    fn = kernel(case.node, "k", DEVICES["pocl"])
    assert_close(run(pocl, fn, case.arrays(feeds)), case.expected(feeds))


@pytest.mark.parametrize("name", CASES)
def test_device_computes_what_groups_say(quick_pocl: OpenClDevice, name: str) -> None:
    check_untuned(quick_pocl, name)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_device_computes_it_with_kernels_optimised(pocl: OpenClDevice, name: str) -> None:
    check_untuned(pocl, name)


def check_configurations(pocl: OpenClDevice, name: str, count: int) -> None:
    """Random configurations: each passes the checker, the interpreter finds no race, and the device is right.

    Those that make the same kernel, since a tile is no larger than what it is of, count once; where there are no more
    kernels to be found, fewer do.
    """
    case, target = Case.of(name), DEVICES["pocl"]
    rng = np.random.default_rng(7)
    seen: set[str] = set()
    repeated = 0
    while len(seen) < count and repeated < REPEATED:
        node = random_configuration(case.node, target, rng)
        text = program(kernel(node, "k", target)).source
        repeated = repeated + 1 if text in seen else 0
        if text in seen:
            continue
        seen.add(text)
        fn = check(case, node, target)
        feeds = case.feeds()
        assert_close(run(pocl, fn, case.arrays(feeds)), case.expected(feeds))


@pytest.mark.parametrize("name", ["matmul", "mean_of_rows", "add"])
def test_device_computes_the_same_under_any_configuration(pocl: OpenClDevice, name: str) -> None:
    check_configurations(pocl, name, 2)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", CHOOSING)
def test_device_computes_the_same_under_two_hundred_configurations(pocl: OpenClDevice, name: str) -> None:
    check_configurations(pocl, name, 200)


def test_runs_in_a_row_are_waited_for_once(pocl: OpenClDevice) -> None:
    """A wait for each would cost more than a small kernel, and on a busy machine a thousand times as much."""
    case = Case.of("add")
    loaded = pocl.load(program(kernel(case.node, "k", DEVICES["pocl"])).to_bytes())
    addresses = [pocl.allocate(v.type.nbytes) for v in (*case.node.inputs, *case.node.outputs)]
    once = pocl.run(loaded, addresses)["seconds"]
    assert once > 0
    assert pocl.repeat(loaded, addresses, IN_A_ROW + 3) > 0
    assert pocl.repeat(loaded, addresses, 0) == 0


def test_many_conditions_at_an_edge_are_compiled_in_time(pocl: OpenClDevice) -> None:
    """Written out, the stores of this tile took PoCL minutes."""
    case = Case.of("matmul")
    config = {"shared": True, "rows": 8, "columns": 2, "ty": 1, "tx": 8, "depth": 4}
    feeds = case.feeds()
    fn = kernel(configured(case.node, config), "k", DEVICES["pocl"])
    assert "pragma unroll" not in program(fn).source
    assert_close(run(pocl, fn, case.arrays(feeds)), case.expected(feeds))


def test_sums_of_a_short_product(pocl: OpenClDevice) -> None:
    """Two steps of terms, of which the second one is ragged: with buffers in turns they came out wrong."""
    case = Case.made("k", lambda b: [put(b, "matmul", [x(b, 7, 5), x(b, 5, 512, name="w")])])
    feeds = case.feeds()
    assert_close(run(pocl, kernel(case.node, "k", DEVICES["pocl"]), case.arrays(feeds)), case.expected(feeds))

"""Kernels on PoCL: with shared memory and barriers, they compute what the interpreter says."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from mlc.lower.knobs import Knobs
from mlc.rewrite.group import configured
from mlc.targets.gpu.kernel import kernel
from mlc.targets.gpu.program import pack
from mlc.targets.gpu.schedules import schedule_group
from mlc.targets.opencl.devices import DEVICES
from mlc.targets.opencl.driver import IN_A_ROW, OpenClDevice
from tests.opencl import program, run, run_all
from tests.unit.targets.gpu.groups import CASES, Case, assert_close, put, x

QUICK = ("matmul", "conv_bias_relu", "depthwise", "softmax", "argmax")


def check_untuned(pocl: OpenClDevice, names: Iterable[str]) -> None:
    """Kernels of some groups, in one program: PoCL takes most of a second for each, however small."""
    cases = {name: Case.of(name) for name in names}
    feeds = {name: case.feeds() for name, case in cases.items()}
    kernels = {name: kernel(case.node, f"k_{name}", DEVICES["pocl"]) for name, case in cases.items()}
    got = run_all(pocl, [(fn, cases[name].arrays(feeds[name])) for name, fn in kernels.items()])
    for (name, case), arrays in zip(cases.items(), got, strict=True):
        assert_close(arrays, case.expected(feeds[name]), name)


def test_device_computes_what_groups_say(quick_pocl: OpenClDevice) -> None:
    check_untuned(quick_pocl, CASES)


def test_device_computes_it_with_kernels_optimised(pocl: OpenClDevice) -> None:
    check_untuned(pocl, QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name not in QUICK])
def test_device_computes_all_of_it_with_kernels_optimised(pocl: OpenClDevice, name: str) -> None:
    check_untuned(pocl, [name])


def test_runs_in_a_row_are_waited_for_once(pocl: OpenClDevice) -> None:
    """A wait for each would cost more than a small kernel, and on a busy machine a thousand times as much."""
    case = Case.of("add")
    loaded = pocl.load(pack([program([kernel(case.node, "k", DEVICES["pocl"])])]))
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
    assert "pragma unroll" not in program([fn]).source
    assert_close(run(pocl, fn, case.arrays(feeds)), case.expected(feeds))


@pytest.mark.parametrize("device", ["pocl", "generic"])
def test_sums_of_a_short_product(pocl: OpenClDevice, device: str) -> None:
    """Two steps of terms, of which the second one is ragged: with buffers in turns PoCL has them wrong."""
    case = Case.made("k", lambda b: [put(b, "matmul", [x(b, 7, 5), x(b, 5, 512, name="w")])])
    feeds = case.feeds()
    knobs = Knobs()
    schedule_group(case.node, DEVICES[device], knobs)
    assert "versions" not in knobs.asked
    assert_close(run(pocl, kernel(case.node, "k", DEVICES[device]), case.arrays(feeds)), case.expected(feeds))

"""Random configurations of every template: the checker, the interpreter and PoCL agree on each.

Two hundred of each template at least, over all of its groups. Of a kernel's barriers, none can be left out.
"""

from __future__ import annotations

from functools import cache

import pytest

from mlc.targets.gpu.schedules import TEMPLATES
from mlc.targets.gpu.schedules.blocks import BLOCKED
from mlc.targets.opencl.devices import DEVICES
from mlc.targets.opencl.driver import OpenClDevice
from tests.opencl import run_all
from tests.unit.targets.gpu import blocks
from tests.unit.targets.gpu.configurations import AT_ONCE, EACH, named, proved_kernels, scheduled, share, sizes
from tests.unit.targets.gpu.groups import assert_close
from tests.unit.targets.gpu.many import GROUPS

CASES = scheduled(GROUPS)
NETWORKS = (*blocks.NETWORKS, *blocks.SCALED)


def check(pocl: OpenClDevice, name: str, device: str, count: int) -> int:
    """Kernels of a group under so many configurations; how many there are."""
    case = CASES[name]
    feeds = case.feeds()
    want = case.expected(feeds)
    arrays = case.arrays(feeds)
    found = 0
    for kernels in proved_kernels(case, DEVICES[device], count):
        for got in run_all(pocl, [(fn, arrays) for fn in kernels]):
            assert_close(got, want)
        found += len(kernels)
    return found


@pytest.mark.parametrize("name", ["matmul", "mean_of_rows", "add"])
def test_device_computes_the_same_under_any_configuration(pocl: OpenClDevice, name: str) -> None:
    assert check(pocl, name, "pocl", 2) == 2


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CASES)
def test_device_computes_the_same_under_many_configurations(quick_pocl: OpenClDevice, name: str) -> None:
    assert check(quick_pocl, name, "pocl", share(CASES, DEVICES["pocl"], name))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CASES)
def test_a_device_without_shared_memory_does_too(quick_pocl: OpenClDevice, name: str) -> None:
    assert check(quick_pocl, name, "mali", share(CASES, DEVICES["mali"], name))


@cache
def spaces() -> dict[str, dict[str, int]]:
    """How many configurations there are for each network, by its templates."""
    return {name: blocks.sizes(name) for name in NETWORKS}


def times(name: str) -> int:
    """How many configurations of a network are tried for each of its templates to have enough of them."""
    return max(-(-EACH * 2 // sum(t in of for of in spaces().values())) for t in spaces()[name])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", NETWORKS)
def test_channels_in_blocks_do_too(quick_pocl: OpenClDevice, name: str) -> None:
    found = blocks.random_kernels(name, times(name))
    for k in range(0, len(found), AT_ONCE):
        some = found[k : k + AT_ONCE]
        kernels = [(named(fn, f"k{n}"), inputs) for n, (fn, inputs, _) in enumerate(some)]
        for got, (_, _, want) in zip(run_all(quick_pocl, kernels), some, strict=True):
            assert_close(got, want)


def test_every_template_has_so_many_configurations() -> None:
    here = sizes(CASES, DEVICES["pocl"])
    counts = {template: sum(min(EACH, n) for n in of.values()) for template, of in here.items()}
    for name, of in spaces().items():
        for template, size in of.items():
            counts[template] = counts.get(template, 0) + min(times(name), size)
    assert set(counts) == {t.name for t in (*TEMPLATES, *BLOCKED)}
    assert min(counts.values()) >= EACH, counts

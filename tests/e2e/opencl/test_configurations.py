"""Random configurations of every template: the checker, the interpreter and PoCL agree on each.

Two hundred of each template at least, over all of its groups. Of a kernel's barriers, none can be left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import pytest

from mlc.ir.graph import Builder, Value
from mlc.targets.gpu.schedules import TEMPLATES
from mlc.targets.gpu.schedules.blocks import BLOCKED
from mlc.targets.opencl.devices import DEVICES
from mlc.targets.opencl.driver import OpenClDevice
from tests.opencl import run_all
from tests.unit.targets.gpu import blocks
from tests.unit.targets.gpu.configurations import AT_ONCE, EACH, named, proved_kernels, scheduled, share, sizes
from tests.unit.targets.gpu.groups import CASES, assert_close, lstm, put, x


def turned(rows: int, columns: int) -> Callable[[Builder], Sequence[Value]]:
    """A transposition in which tiles have room."""
    return lambda b: [put(b, "transpose", [x(b, 2, rows, columns)], perm=(0, 2, 1))]


def spread(*shape: int) -> Callable[[Builder], Sequence[Value]]:
    """A sum with a row."""
    return lambda b: [put(b, "add", [x(b, *shape), x(b, shape[-1], name="w")])]


def step(rows: int, terms: int) -> Callable[[Builder], Sequence[Value]]:
    """A step of an LSTM whose terms many numbers of threads share alike."""
    return lambda b: lstm(b, rows, terms, 33)


MORE = {f"transpose_{m}_{n}": turned(m, n) for m in (9, 33) for n in (16, 40, 41, 67, 72, 96)}
MORE |= {f"add_{m}_{n}": spread(m, n) for m in (1, 3, 50) for n in (8, 24, 40, 72)}
MORE |= {f"gates_{m}_{k}": step(m, k) for m in (1, 2, 3) for k in (60, 72)}
GROUPS = scheduled(CASES | MORE)
NETWORKS = (*blocks.NETWORKS, *blocks.SCALED)


def check(pocl: OpenClDevice, name: str, device: str, count: int) -> int:
    """Kernels of a group under so many configurations; how many there are."""
    case = GROUPS[name]
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
@pytest.mark.parametrize("name", GROUPS)
def test_device_computes_the_same_under_many_configurations(quick_pocl: OpenClDevice, name: str) -> None:
    assert check(quick_pocl, name, "pocl", share(GROUPS, DEVICES["pocl"], name))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", GROUPS)
def test_a_device_without_shared_memory_does_too(quick_pocl: OpenClDevice, name: str) -> None:
    assert check(quick_pocl, name, "mali", share(GROUPS, DEVICES["mali"], name))


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
    here = sizes(GROUPS, DEVICES["pocl"])
    counts = {template: sum(min(EACH, n) for n in of.values()) for template, of in here.items()}
    for name, of in spaces().items():
        for template, size in of.items():
            counts[template] = counts.get(template, 0) + min(times(name), size)
    assert set(counts) == {t.name for t in (*TEMPLATES, *BLOCKED)}
    assert min(counts.values()) >= EACH, counts

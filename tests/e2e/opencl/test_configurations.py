"""Random configurations of every template: the checker, the interpreter and PoCL agree on each.

Two hundred of each template at least, over all of its groups. Of a kernel's barriers, none can be left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from mlc.ir.graph import Builder, Value
from mlc.targets.gpu.schedules import TEMPLATES
from mlc.targets.opencl.devices import DEVICES
from mlc.targets.opencl.driver import OpenClDevice
from tests.opencl import run
from tests.unit.targets.gpu.configurations import (
    EACH,
    interpret,
    needs_all_barriers,
    random_kernels,
    scheduled,
    share,
    sizes,
)
from tests.unit.targets.gpu.groups import CASES, assert_close, put, x


def turned(rows: int, columns: int) -> Callable[[Builder], Sequence[Value]]:
    """A transposition in which tiles have room."""
    return lambda b: [put(b, "transpose", [x(b, 2, rows, columns)], perm=(0, 2, 1))]


def spread(*shape: int) -> Callable[[Builder], Sequence[Value]]:
    """A sum with a row."""
    return lambda b: [put(b, "add", [x(b, *shape), x(b, shape[-1], name="w")])]


MORE = {f"transpose_{m}_{n}": turned(m, n) for m in (9, 33) for n in (16, 40, 41, 67, 72, 96)}
MORE |= {f"add_{m}_{n}": spread(m, n) for m in (1, 3, 50) for n in (8, 24, 40, 72)}
GROUPS = scheduled(CASES | MORE)


def check(pocl: OpenClDevice, name: str, device: str, count: int) -> int:
    """Kernels of a group under so many configurations; how many there are."""
    case = GROUPS[name]
    feeds = case.feeds()
    want = case.expected(feeds)
    found = 0
    for fn in random_kernels(case.node, DEVICES[device], count, len(name)):
        needs_all_barriers(fn)
        interpret(case, fn)
        assert_close(run(pocl, fn, case.arrays(feeds)), want)
        found += 1
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


def test_every_template_has_so_many_configurations() -> None:
    counts: dict[str, int] = {}
    for device in ("pocl", "mali"):
        for template, of in sizes(GROUPS, DEVICES[device]).items():
            counts[template] = max(counts.get(template, 0), sum(min(EACH, n) for n in of.values()))
    assert set(counts) == {t.name for t in TEMPLATES}
    assert min(counts.values()) >= EACH, counts

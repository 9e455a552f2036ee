"""Random configurations of every template: the checker, the interpreter and the printed CUDA agree on each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlc.targets.base import get_target
from tests.cuda import CXX
from tests.unit.targets.cuda.test_kernels import check
from tests.unit.targets.gpu.configurations import EACH, proved_kernels, random_kernels, scheduled, share, sizes
from tests.unit.targets.gpu.many import GROUPS
from tests.unit.targets.gpu.test_tensor import MADE

pytestmark = pytest.mark.skipif(CXX is None, reason="there is no C++ compiler")
HOPPER = replace(get_target("cuda -arch=sm_90").record, max_threads=256)  # type: ignore[attr-defined]
KINDS = {"threads": scheduled(GROUPS), "tensor": scheduled(MADE)}


def sweep(kind: str, name: str, count: int) -> int:
    """Kernels of a group under so many configurations; how many there are."""
    case = KINDS[kind][name]
    found = 0
    for kernels in proved_kernels(case, HOPPER, count):
        check([(case, fn) for fn in kernels])
        found += len(kernels)
    return found


@pytest.mark.parametrize("kind, name", [("threads", "conv"), ("tensor", "half")])
def test_any_configuration(kind: str, name: str) -> None:
    assert sweep(kind, name, 2) == 2


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind, name", [(kind, name) for kind, cases in KINDS.items() for name in cases])
def test_many_configurations(kind: str, name: str) -> None:
    assert sweep(kind, name, share(KINDS[kind], HOPPER, name))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_every_template_makes_hundreds_of_kernels(kind: str) -> None:
    """Of which no two are alike."""
    cases = KINDS[kind]
    for template, names in sizes(cases, HOPPER).items():
        count = share(cases, HOPPER, next(iter(names)))
        found = [fn for n in names for fn in random_kernels(cases[n].node, HOPPER, count, len(cases[n].graph.name))]
        assert len(found) >= EACH, template

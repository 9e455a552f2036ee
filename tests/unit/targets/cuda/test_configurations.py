"""Random configurations of every template: the checker, the interpreter and the printed CUDA agree on each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlc.targets.base import get_target
from tests.cuda import CXX
from tests.unit.targets.cuda.test_kernels import check
from tests.unit.targets.gpu.configurations import proved_kernels, scheduled, share
from tests.unit.targets.gpu.groups import CASES
from tests.unit.targets.gpu.test_tensor import MADE

pytestmark = pytest.mark.skipif(CXX is None, reason="there is no C++ compiler")
HOPPER = replace(get_target("cuda -arch=sm_90").record, max_threads=256)  # type: ignore[attr-defined]
KINDS = {"threads": scheduled(CASES), "tensor": scheduled(MADE)}


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

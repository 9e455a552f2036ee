"""Kernels on PoCL: with shared memory and barriers, they compute what the interpreter says."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.targets.gpu.kernel import kernel
from mlc.targets.opencl.driver import OpenClDevice
from mlc.targets.opencl.target import DEVICES
from tests.opencl import run
from tests.unit.targets.gpu.groups import CASES, Case, assert_close
from tests.unit.targets.gpu.test_templates import CHOOSING, random_configuration

QUICK = ("matmul", "conv_bias_relu", "conv_groups", "depthwise", "softmax", "sum_of_all", "argmax", "add", "join")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_device_computes_what_groups_say(pocl: OpenClDevice, name: str) -> None:
    case = Case.of(name)
    feeds = case.feeds()
    fn = kernel(case.node, "k", DEVICES["pocl"])
    assert_close(run(pocl, fn, case.arrays(feeds)), case.expected(feeds))


@pytest.mark.slow
@pytest.mark.parametrize("name", CHOOSING)
def test_device_computes_the_same_under_any_configuration(pocl: OpenClDevice, name: str) -> None:
    case = Case.of(name)
    rng = np.random.default_rng(7)
    for _ in range(8):
        feeds = case.feeds()
        fn = kernel(random_configuration(case.node, DEVICES["pocl"], rng), "k", DEVICES["pocl"])
        assert_close(run(pocl, fn, case.arrays(feeds)), case.expected(feeds))

"""Random models of odd shapes on devices that run grids of threads, in single and half precision, against onnxruntime.

``make test`` takes some of each kind; the slow tests take hundreds, and show a failing one cut down to what fails.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cuda import CXX, FakeCuda, Install, install
from tests.e2e.random_models.builder import RandomModel
from tests.e2e.random_models.devices import PRECISIONS, TARGETS, fault_on_device, has_halves
from tests.e2e.random_models.heavy import HEAVY, heavy_model
from tests.e2e.random_models.reduce import reduced
from tests.e2e.random_models.strategy import seeded_model
from tests.opencl import pocl, quick_pocl

__all__ = ["install", "pocl", "quick_pocl"]

QUICK = (("mali", "f32"), ("mali", "fp16"), ("pocl", "halved"), ("sm_90", "fp16"))
SEEDS = {"mali": 100, "generic": 25, "pocl": 25, "sm_75": 25, "sm_80": 25, "sm_90": 25}
BATCH = 25


@pytest.fixture
def device(request: pytest.FixtureRequest) -> str:
    """A driver for the device: PoCL's, or a simulated one."""
    name: str = request.param
    if TARGETS[name].startswith("opencl"):
        request.getfixturevalue("quick_pocl")
    elif CXX is None:
        pytest.skip("there is no C++ compiler")
    else:
        put: Install = request.getfixturevalue("install")
        put(FakeCuda(int(name.removeprefix("sm_"))))
    return name


def check(device: str, precision: str, seed: int, draw: Callable[..., RandomModel]) -> None:
    model = draw(seed, halves=precision != "f32")
    if precision == "halved" and not has_halves(model):
        return
    if fault := fault_on_device(model, device, precision):
        small = reduced(model, lambda m: fault_on_device(m, device, precision) is not None)
        pytest.fail(f"seed {seed}, {device}, {precision}: {fault}\n{small}")


@pytest.mark.parametrize("seed, device, precision", [(k, *q) for k, q in enumerate(QUICK)], indirect=["device"])
def test_a_random_model_on_a_device(device: str, precision: str, seed: int) -> None:
    check(device, precision, seed, heavy_model if seed % 2 else seeded_model)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("draw", [seeded_model, heavy_model], ids=["anything", "heavy"])
@pytest.mark.parametrize(
    "first, device, precision",
    [(k, name, p) for name, count in SEEDS.items() for p in PRECISIONS for k in range(0, count, BATCH)],
    indirect=["device"],
)
def test_random_models_on_devices(device: str, precision: str, first: int, draw: Callable[..., RandomModel]) -> None:
    for seed in range(first, first + BATCH):
        check(device, precision, seed, draw)


def test_models_hold_every_kind() -> None:
    """Whatever is drawn is of some use: no kind gives up for good, in halves neither."""
    for halves in (False, True):
        found = {n.op_type for seed in range(40) for n in heavy_model(seed, halves=halves).nodes}
        assert found >= {"GRU", "LSTM", "RNN", "Conv", "MatMul", "Transpose", "ArgMax", "LayerNormalization", "Cast"}
    assert len(HEAVY) == 9

"""Two versions of a model: whether their results agree, and which kernels lose."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mlc.tuning import whole
from mlc.tuning.whole import Comparison, _difference, _loses, losers


class Model:
    """A module of which only the profile counts: nanoseconds by source, in order."""

    inputs = ()

    def __init__(self, *steps: tuple[str, float]) -> None:
        self.steps = steps
        self.clock, self.asked = 0.0, list[int]()

    def profile(self, feeds: Any, repeats: int) -> list[Any]:
        self.clock += 2.0 * (1 + repeats)  # seconds
        self.asked.append(repeats)
        return [SimpleNamespace(step=SimpleNamespace(sources=(s,) if s else ()), median_ns=ns) for s, ns in self.steps]


def test_what_is_told_of_two_models_agrees() -> None:
    """Medians of each and of their ratios need not: here they would be 0.051, 0.054, and 1.05 times as fast."""
    pairs = [(0.0510, 0.0486), (0.0568, 0.0540), (0.0500, 0.0545), (0.0590, 0.0562), (0.0505, 0.0550)]
    found = Comparison.of(pairs, 0.0)
    calm = sorted(pairs, key=sum)[:3]
    assert found.speedup == found.untuned / found.tuned
    assert found.speedup == pytest.approx(np.prod([a / b for a, b in calm]) ** (1 / 3))
    assert min(a for a, _ in calm) < found.untuned < max(a for a, _ in calm)


def test_disturbed_pairs_do_not_count() -> None:
    calm = [(2.0, 1.0)] * 8
    assert Comparison.of([*calm, *[(2.0, 40.0)] * 3, *[(90.0, 1.0)] * 4], 0.0).speedup == pytest.approx(2.0)


def test_kernels_that_lose() -> None:
    untuned: Any = Model(("a", 10.0), ("b", 10.0), ("a2", 10.0), ("", 5.0), ("c", 10.0), ("c", 1.0))
    tuned: Any = Model(("a", 9.0), ("b", 10.1), ("a2", 10.5), ("", 50.0), ("c", 9.0), ("c", 9.0))
    workloads = {"A": ("a", "a2"), "B": ("b",), "C": ("c",), "D": ("c",), "E": ()}
    assert losers(untuned, tuned, workloads) == {"C", "D"}


def test_long_models_are_profiled_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = Model(("a", 10.0))
    monkeypatch.setattr(whole, "time", SimpleNamespace(perf_counter=lambda: model.clock))
    assert losers(model, model, {"A": ("a",)}) == set()
    assert model.asked == [3] + [1] * 9


@pytest.mark.parametrize(
    ("a", "b", "difference"),
    [
        ([1.0, 2.0], [1.0, 2.002], 1e-3),
        ([np.inf, 1.0], [np.inf, 1.0], 0.0),
        ([np.nan, 1.0], [np.nan, 1.0], 0.0),
        ([np.inf, 1.0], [-np.inf, 1.0], np.inf),
        ([np.inf, 1.0], [np.nan, 1.0], np.inf),
        ([1.0], [np.nan], np.inf),
        ([], [], 0.0),
        ([0.0], [0.0], 0.0),
    ],
)
def test_differences(a: list[float], b: list[float], difference: float) -> None:
    assert _difference(np.array(a, np.float32), np.array(b, np.float32)) == pytest.approx(difference, rel=1e-3)


def test_a_disturbed_kernel_does_not_lose() -> None:
    assert _loses([10.0, 10.0, 10.0], [11.0, 11.0, 11.0])
    assert not _loses([10.0, 10.0, 10.0], [10.1, 10.1, 10.1])
    assert not _loses([10.0, 12.0, 13.0], [10.5, 11.0, 12.0])  # its best is worse, most rounds are better
    assert not _loses([10.0, 10.0, 10.0], [9.0, 15.0, 15.0])

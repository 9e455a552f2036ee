"""ALT's figure 9: what its cases are, and what its page says."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.papers.alt_fig9 import OPERATORS, cases, page
from benchmarks.papers.alt_peers import NAMES
from mlc.targets.base import get_target
from mlc.tuning.joint import layout_space

TARGET = get_target("x86 -mcpu=haswell")


@pytest.mark.parametrize("name", OPERATORS)
def test_cases_have_layouts_to_choose_and_are_always_the_same(name: str) -> None:
    ((case, task),) = cases(1, [name], TARGET)
    ((again, _),) = cases(1, [name], TARGET)
    assert case.name == f"{name}-0"
    assert case.shapes == again.shapes
    assert not task.row_major
    space = layout_space(task, TARGET)
    assert space is not None
    assert space.size > 8


def test_the_page_has_the_geometric_mean() -> None:
    def row(k: int, loops: float, joint: float) -> dict[str, object]:
        seconds = {"untuned": 2e-3, "ALT-OL": loops, "ALT": joint}
        return {
            "case": f"C2D-{k}", "shapes": "", "trials": 8, "seconds": seconds, "layouts": {"result": "split(1, 8)"},
            "search_seconds": {"ALT-OL": 3.0, "ALT": 2.0}, "least_seconds": 5e-4,
            "padded": {"untuned": 1.0, "ALT": 1.2}, "peers": {NAMES[0]: 3e-3},
        }  # fmt: skip

    text = page([row(0, 2e-3, 1e-3), row(1, 1e-3, 2e-3), row(2, float(np.sqrt(8)) * 1e-3, 1e-3)])
    assert "| C2D-0 |  | 8 | 2.0000 | 2.0000 | 1.0000 | 2.00 | 50% | 1.00 1.20 | 3.0000 |  | split(1, 8) |" in text
    assert "Trials a second of the joint search, times those of loops only: 1.50." in text
    assert "Geometric mean of 3: 1.414; least 0.50, most 2.83." in text

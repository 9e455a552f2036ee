"""Figures of the NeoFlow paper: spellings agree, and results become pages and pictures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.papers import neoflow_fig9

pytest.importorskip("torch", reason="torch comes with the extra bench")
pytest.importorskip("matplotlib", reason="matplotlib comes with the extra dev")

from benchmarks.papers import neoflow, neoflow_fig2, neoflow_fig12, neoflow_fig13  # they import torch

ABOUT = {"cpu": "some"}


def test_figures_9_to_11_are_drawn_from_what_was_measured(tmp_path: Path) -> None:
    times = {"mlc": 1.0, "eager": 4.0, "torch.compile": 2.0}
    keys = ("step mi_lstm 1 1", "step mi_lstm 16 1", "inference mi_lstm 1 1")
    case = {"times": times, "agrees": True, "failures": {}, "losses": {}}
    file = tmp_path / "bench.json"
    file.write_text(json.dumps({"machine": ABOUT, "cases": dict.fromkeys(keys, case)}))
    neoflow_fig9.main([str(file), "--out", str(tmp_path)])
    assert "| mi_lstm | 1 | 4.00 | 4.00 |" in (tmp_path / "neoflow_fig9.md").read_text()
    assert "- step, novel networks, batch 1 to 16: 2.00 over 2 cases" in (tmp_path / "neoflow_fig10.md").read_text()
    assert "| mi_lstm | 1 | 2.00 | - |" in (tmp_path / "neoflow_fig11.md").read_text()
    assert (tmp_path / "neoflow_fig9.png").stat().st_size > 1000


def test_a_slower_beginning_is_made_up_for(tmp_path: Path) -> None:
    ours = neoflow_fig12._run("mlc, dynamic", 1, list(np.arange(2.0, 10.0, 0.01)), [(5.0, 12.0, 10.0)])
    theirs = neoflow_fig12._run("PyTorch, eager", 2, list(np.arange(0.0, 3.0, 0.02)), ())
    assert (ours.begins, ours.median) == (2.0, pytest.approx(10.0))
    assert theirs.done(10.0) == pytest.approx(500, abs=2)
    assert neoflow_fig12.overtakes([ours, theirs], theirs, 10.0) == pytest.approx(4.0, abs=0.1)
    assert neoflow_fig12.overtakes([theirs, ours], ours, 10.0) is None
    text = neoflow_fig12.markdown([ours, theirs], 10.0, ABOUT, "picture.png")
    assert "- 5 s: 12.00 to 10.00 ms" in text
    neoflow_fig12.draw([ours, theirs], 10.0, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000


def test_pages_of_single_operators(tmp_path: Path) -> None:
    rows = [{"side": "mlc", "latency": 2.0, "kernels": 1.5, "calls": 1}]
    assert "| mlc | 2.000 | 1.500 | 0.500 | 75.0 % | 1 |" in neoflow_fig2.markdown(rows, ABOUT, "")
    row = neoflow_fig13.Row("tensor swapping", "1×2×3", {"without": 3.0, "with": 2.0, "PyTorch": 4.0})
    text = neoflow_fig13.markdown([row], ABOUT, "")
    assert "| tensor swapping | 1×2×3 | 3.000 | 2.000 | 4.000 | 1.50 | 2.00 |" in text
    neoflow_fig2.draw(rows, tmp_path / "two.png")
    neoflow_fig13.draw([row], tmp_path / "thirteen.png")


def test_sides_that_differ_are_refused() -> None:
    one, other = (neoflow.Side(np.full(3, v, np.float32), lambda seconds: [1.0]) for v in (1, 2))
    assert neoflow.timed({"a": one, "b": one}) == {"a": 1.0, "b": 1.0}
    with pytest.raises(ValueError, match=r"^b is 1.0e\+00 away$"):
        neoflow.timed({"a": one, "b": other})

"""The benchmark of the accelerator's simulators runs, and prints a line a layer."""

from __future__ import annotations

import pytest

from benchmarks import vdla_sim
from tests.unit.vdla.convolutions import POINTWISE, TINY


def test_every_layer_gets_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(vdla_sim, "LAYERS", (TINY, POINTWISE))
    monkeypatch.setattr(vdla_sim, "SECONDS", 0.0)
    vdla_sim.main()
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split() == ["layer", "GMAC/s", "1000", "instructions/s"]
    assert [line.split()[0] for line in lines] == ["tiny", "pointwise"]
    assert all(float(cell) > 0 for line in lines for cell in line.split()[1:])

"""Figure 21: what is counted where, what follows from it, and the files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.papers import tvm_fig21 as figure
from benchmarks.papers.tvm_fig21 import DEVICE, FIRST, OFFLOADED, POOLS, Split
from mlc.ir.graph import Node
from mlc.rewrite.group import make_group
from mlc.vdla.driver import open_device
from tests.unit.rewrite.helpers import Net

POINT = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}


def splits() -> list[Split]:
    alone = Split("CPU", {FIRST: 100.0, OFFLOADED: 1400.0, POOLS: 10.0, figure.DENSE: 1.0})
    published = Split("CPU + osdi18", {FIRST: 100.0, POOLS: 10.0, figure.DENSE: 1.0, figure.COPIES: 40.0, DEVICE: 35.0})
    full = Split(
        "CPU + full", {FIRST: 100.0, POOLS: 10.0, figure.DENSE: 1.0, DEVICE: 35.0}, 7_000_000, 1, 19, True, 0.96
    )
    ends = Split(figure.ENDS, {POOLS: 10.0, DEVICE: 50.0}, 10_000_000, 3, 21)
    return [alone, published, full, ends]


def group(n: Net, dtype: str) -> Node:
    w = n.w(4, 4, 1, 1) if dtype == "f32" else n.c([[[[1]]] * 4] * 4, "int8")
    graph = n(n.relu(n.conv(n.x(1, 4, 2, 2, dtype=dtype), w, **POINT)))
    return make_group(graph.nodes, graph.constants, 0)


def test_groups_are_told_apart() -> None:
    assert figure.part_of(group(Net(), "f32")) == FIRST
    assert figure.part_of(group(Net(), "i8")) == OFFLOADED
    n = Net()
    (node,) = n(n.cast(n.x(3), to="i8")).nodes
    assert figure.part_of(node) == figure.BORDER
    n = Net()
    (node,) = n(n.add(n.x(3), n.c([1.0]))).nodes
    assert figure.part_of(node) == figure.POINTWISE


def test_amdahl() -> None:
    alone, published, full, ends = splits()
    f = figure.facts(alone, published)
    assert f["offloaded_speedup"] == 40
    assert f["speedup"] == pytest.approx(1511 / 186)
    assert f["limit"] == pytest.approx(1511 / 151)
    assert (f["host_ms"], f["host_share"]) == (151, pytest.approx(151 / 186))
    assert figure.facts(alone, full)["host_ms"] == 111
    assert figure.facts(alone, ends)["offloaded_speedup"] == pytest.approx(1501 / 50)


def test_the_table_says_what_it_rests_on() -> None:
    text = figure.markdown(splits(), ["host: assumed"], "tvm_fig21.png")
    assert "- host: assumed" in text
    assert "| **one inference** | **1511.00** | **186.00** | **146.00** | **60.00** |" in text
    assert "Profile `full` takes 40.0 of those 151.0 ms away" in text
    assert "the host is left with 10.0 ms" in text


def test_picture_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib comes with the extra dev")
    figure.draw(splits(), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000


@pytest.mark.slow
def test_command_line_runs_a_small_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name, value = "vdla", "mlc.vdla.driver:open_device"

        def load(self) -> object:
            return open_device

    monkeypatch.setattr("mlc.runtime.device.entry_points", lambda group: [Point()])
    figure.main(["--small", "--profiles", "full", "--no-ends", "--out", str(tmp_path)])
    alone, full = json.loads((tmp_path / "tvm_fig21.json").read_text())["results"]
    assert full["equal"]
    assert full["cycles"] > 0
    assert alone["cycles"] == 0

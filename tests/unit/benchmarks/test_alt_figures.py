"""Scripts of ALT's figures: what they tune, how they count, and that a case that is kept is not run again."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.papers import alt_fig1, alt_fig9, alt_fig10, alt_fig11, alt_fig12, alt_peers, alt_table3
from benchmarks.papers.alt import convolution, go_on, in_network, rows_and_columns, under, write
from benchmarks.papers.alt_table2 import PREDICTED, WIDTHS, block, misses
from benchmarks.papers.cachegrind import by_function
from mlc.errors import ScheduleError
from mlc.ir.interp.graph import run_graph
from mlc.targets.base import LEVELS, get_target
from mlc.tuning.joint import layout_space, primitives_of
from mlc.tuning.task import Task, candidate
from tests import ort

TARGET = get_target("x86 -mcpu=haswell")


def task() -> Task:
    found = in_network(convolution(16, 32, 14, 3, pad=1), TARGET)
    assert found is not None
    return found


def test_layouts_of_libraries_are_points_of_the_layout_space() -> None:
    one = task()
    shapes = {}
    for name, layouts in rows_and_columns(one, TARGET, 16).items():
        config = dict(under(one, TARGET, layouts).space.default)
        assert primitives_of(one, TARGET, config)
        node = candidate(one, TARGET, config)
        shapes[name] = [n for n in node.outputs[0].type.physical_shape if n > 1]
        assert node.inputs[1].type.size == 32 * 16 * 9
    assert shapes == {"NOHW": [32, 14, 14], "NHWO": [14, 14, 32], "N O/16 H W 16": [2, 14, 14, 16]}


def test_loops_under_a_layout_that_is_not_there_are_refused() -> None:
    one = task()
    with pytest.raises(ScheduleError, match="no loops for"):
        under(one, TARGET, {LEVELS: 1, "layout.h": (3, 5)})


@pytest.mark.parametrize("shape", alt_fig1.CASES)
def test_cases_of_figure_1_have_layouts(shape: tuple[int, int, int, int, int]) -> None:
    channels, filters, size, taps, stride = shape
    assert in_network(convolution(channels, filters, size, taps, stride=stride, pad=taps // 2), TARGET) is not None


def test_layouts_of_table_3_are_points_of_the_layout_space() -> None:
    one = in_network(alt_table3.GRAPH(), TARGET)
    assert one is not None
    named = alt_table3.layouts_named(one, TARGET)
    assert (*named, "searched") == alt_table3.NAMES
    node = candidate(one, TARGET, dict(under(one, TARGET, named[alt_table3.NAMES[3]]).space.default))
    assert [n for n in node.outputs[0].type.physical_shape if n > 1] == [28, 7, 4, 4, 16, 16]


def test_a_layout_that_is_forced_forwards_is_read_as_it_lies() -> None:
    """Figure 11: what the first convolution gives is what the second has, and no copy of it."""
    a = alt_fig11.task_of(alt_fig11.first(7), TARGET)
    space = layout_space(a, TARGET)
    assert space is not None
    layouts = {**space.default, "layout.h": (7, 1)}
    made = alt_fig11.result_of(a, TARGET, dict(under(a, TARGET, layouts).space.default))
    b = alt_fig11.task_of(alt_fig11.second(7, 512), TARGET, made)
    assert b.site.inputs[0].layout == made.layout
    assert made.layout is not None


def test_a_layout_that_is_forced_backwards_needs_no_copy() -> None:
    b = alt_fig11.task_of(alt_fig11.second(7, 512), TARGET)
    space = layout_space(b, TARGET)
    assert space is not None
    found = dict(under(b, TARGET, {**space.default, "layout.h": (7, 1)}).space.default)
    assert "copy" in found
    a = alt_fig11.task_of(alt_fig11.first(7), TARGET)
    forced = layout_space(a, TARGET)
    assert forced is not None
    layouts = {**forced.default, "layout.h": (7, 1), "layout.o": found["layout.i"]}
    made = alt_fig11.result_of(a, TARGET, dict(under(a, TARGET, layouts).space.default))
    config = alt_fig11.as_it_lies(alt_fig11.task_of(alt_fig11.second(7, 512), TARGET, made), TARGET, found)
    assert set(found) - set(config) == {"copy"}


def test_the_cache_model_gives_the_paper_s_predictions() -> None:
    assert tuple(misses(block(width, width), 4) for width in WIDTHS) == PREDICTED
    assert misses(block(4, 1024), 1) == 512
    assert misses([0, 1, 0, 1], 1) == 2


def test_cachegrind_files_are_read_by_kernel() -> None:
    text = "desc: x\nevents: Ir Dr D1mr Dw D1mw\nfl=a\nfn=main\n0 9 9 9 9 9\nfn=k1_conv_relu\n0 10 4 2 1 0\n"
    assert by_function(text) == {
        "k1_conv_relu": {"instructions": 10, "reads": 4, "read misses": 2, "writes": 1, "write misses": 0}
    }


def test_cases_that_are_kept_are_not_run_again(tmp_path: Path) -> None:
    ran: list[str] = []

    def case(name: str) -> Any:
        return lambda folder: ran.append(name) or {"seconds": {"a": 1.0}}

    given = argparse.Namespace(out=tmp_path, trials=8, seconds=float("inf"))
    cases = {"one": case("one"), "two": case("two")}
    rows = go_on("figure", given, cases)
    assert [r["case"] for r in rows] == ran == ["one", "two"]
    go_on("figure", given, cases)
    assert ran == ["one", "two"]
    go_on("figure", argparse.Namespace(out=tmp_path, trials=9, seconds=-1.0), cases)
    assert ran == ["one", "two"]
    go_on("figure", argparse.Namespace(out=tmp_path, trials=9, seconds=float("inf")), cases)
    assert ran == ["one", "two"] * 2


def test_a_figure_is_kept_as_numbers_and_a_page(tmp_path: Path) -> None:
    rows = [{"case": "one", "seconds": np.float64(1.5)}]
    write(
        "f", tmp_path, "Title", "\nRemarks.\n", ("case", "s"), [("one", "1.5")], rows, {"one": {"a": 1.5}}, "s", "End."
    )
    text = (tmp_path / "f.md").read_text()
    assert "# Title" in text
    assert "| one | 1.5 |" in text
    assert "End." in text
    assert (tmp_path / "f.json").exists()


@pytest.mark.parametrize("name", alt_fig9.OPERATORS)
def test_other_engines_compute_the_operators_of_figure_9(name: str) -> None:
    rng = np.random.default_rng(3)
    _, graph, flops = alt_fig9.OPERATORS[name](rng)
    while not flops < 2e7:
        _, graph, flops = alt_fig9.OPERATORS[name](rng)
    (x,), (y,) = graph.inputs, graph.outputs
    feeds = {x.name: rng.standard_normal(x.type.shape).astype(np.float32)}
    (found,) = ort.session(alt_peers.model_of(graph)).run(None, feeds)
    expected = run_graph(graph, feeds)[y.name]
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("script", "option", "known"),
    [
        (alt_fig9, "--operators", alt_fig9.OPERATORS),
        (alt_fig10, "--variants", alt_fig10.VARIANTS),
        (alt_fig11, "--variants", alt_fig11.VARIANTS),
        (alt_fig12, "--variants", alt_fig12.VARIANTS),
    ],
)
def test_names_that_a_figure_has_not_are_refused_with_those_that_it_has(
    script: Any, option: str, known: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr("sys.argv", ["figure", option, f"{next(iter(known))},NOPE", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        script.main()
    assert ended.value.code == 2
    assert f"{option}: no 'NOPE'; there are {', '.join(known)}" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]

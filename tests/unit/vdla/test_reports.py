"""Tables of layers and the roofline picture."""

from __future__ import annotations

import builtins
from typing import Any

import pytest

from mlc.errors import MissingDependencyError, UsageError
from mlc.vdla.reports import Point, bound_by, byte_table, layer_table, points, roofline, stall_table
from mlc.vdla.sim import Device, Report
from tests.unit.vdla.convolutions import FULL, POINTWISE, TINY, case


@pytest.fixture(scope="module")
def report() -> Report:
    return Device(FULL).run(case(TINY).program, exec=False)


def test_tables_have_a_line_a_layer_and_one_for_the_whole(report: Report) -> None:
    layers = layer_table(report)
    assert [row[0] for row in layers.rows] == ["tiny", "total"]
    assert layers.rows[1][1] == f"{report.total.cycles:.0f}" if report.total else False
    assert [row[:2] for row in stall_table(report).rows[:3]] == [("tiny", "LD"), ("tiny", "CMP"), ("tiny", "ST")]
    moved = byte_table(report)
    assert moved.columns == ("layer", "UOP", "WGT", "INP", "OUT", "all", "compulsory", "port %")
    assert all(len(row) == len(moved.columns) for row in moved.rows)
    assert layer_table(Report(FULL, [])).rows == []


def test_what_bounds_a_layer_follows_from_its_intensity() -> None:
    wide = Device(FULL).run(case(POINTWISE).program, exec=False).total
    assert wide is not None
    assert bound_by(wide, FULL) == "memory"


def test_points_are_layers_whose_task_is_known(report: Report) -> None:
    assert [p.name for p in points(report)] == ["tiny"]
    program = case(TINY).program
    program.meta.clear()
    unknown = Device(FULL).run(program, exec=False)
    assert points(unknown) == []
    assert layer_table(unknown).rows[0][4:] == ("-", layer_table(unknown).rows[0][5], "-", "-", "-", "-")


@pytest.mark.parametrize("suffix, magic", [(".svg", b"<?xml"), (".png", b"\x89PNG"), (".pdf", b"%PDF")])
def test_a_roofline_is_drawn_in_every_format(suffix: str, magic: bytes) -> None:
    pytest.importorskip("matplotlib")
    series = {"one": [Point("a", 20.0, 20.0)], "two": [Point("b", 200.0, 90.0)]}
    picture = roofline(series, FULL, suffix, "title")
    assert picture.startswith(magic)
    if suffix == ".png":
        assert picture == roofline(series, FULL, suffix, "title")


def test_long_names_get_numbers_and_points_in_one_place_one_label() -> None:
    pytest.importorskip("matplotlib")
    given = [Point("layer1.conv1", 20.0, 20.0), Point("layer1.conv2", 20.01, 20.01), Point("last", 90.0, 90.0)]
    text = roofline({"": given}, FULL).decode()
    assert "<!-- 1, 2 -->" in text
    assert "<!-- 3 -->" in text
    assert "layer1.conv2" in text
    assert "<!-- last -->" in roofline({"": given[2:]}, FULL).decode()


def test_other_formats_and_a_missing_library_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"cannot be drawn as '\.gif'"):
        roofline({}, FULL, ".gif")
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match="drawing needs matplotlib"):
        roofline({}, FULL)

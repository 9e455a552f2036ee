"""What is kept of ALT's figures: what ``--again`` and ``--variants`` leave of a row, and that pages stay the same."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.papers import alt_fig9, alt_fig10, alt_fig11, alt_table2, alt_table3
from benchmarks.papers.alt import go_on, write
from benchmarks.papers.keep import RESULTS, keep_machine, machine_of
from mlc.targets.base import get_target

TARGET = get_target("x86 -mcpu=haswell")
ROOT = Path(__file__).parents[3]


def kept(file: Path, **row: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"case": file.stem, **row}))
    return file


class Figure9:
    """Its command line, of one case of which nothing is measured."""

    def __init__(self, patch: pytest.MonkeyPatch, out: Path) -> None:
        self.folder, self.trials, self._patch, self._out = out / "alt_fig9", list[int](), patch, out
        case = SimpleNamespace(name="GMM-0")
        patch.setattr(alt_fig9, "cases", lambda *_: [(case, None)])
        patch.setattr(alt_fig9, "row_of", self._row)
        patch.setattr(alt_fig9, "draw", lambda rows, path: None)

    def run(self, *arguments: str) -> None:
        self._patch.setattr("sys.argv", ["alt_fig9", "--out", str(self._out), *arguments])
        alt_fig9.main()

    def records(self) -> None:
        for variant in alt_fig9.VARIANTS:
            (self.folder / f"GMM-0-{variant}.jsonl").write_text("{}\n")

    def _row(
        self, case: Any, task: Any, target: Any, trials: int, folder: Path, before: Any, alone: bool
    ) -> dict[str, Any]:
        self.trials.append(trials)
        return {"case": case.name, "shapes": "s", "trials": trials, "seconds": {}, "alone": alone}


@pytest.fixture
def figure_9(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Figure9:
    return Figure9(monkeypatch, tmp_path)


def test_a_row_of_figure_9_keeps_its_trials_when_it_is_decided_once_more(figure_9: Figure9) -> None:
    row = kept(figure_9.folder / "GMM-0.json", shapes="s", trials=24, seconds={})
    figure_9.records()
    figure_9.run("--again")
    assert figure_9.trials == [24]
    assert json.loads(row.read_text())["trials"] == 24
    figure_9.run("--again")
    assert figure_9.trials == [24]


def test_a_row_of_figure_9_whose_records_are_gone_is_not_searched_anew(figure_9: Figure9) -> None:
    row = kept(figure_9.folder / "GMM-0.json", shapes="s", trials=24, seconds={})
    before = row.read_bytes()
    with pytest.raises(SystemExit, match=r"GMM-0-ALT-OL\.jsonl, GMM-0-ALT\.jsonl; the row has to be searched again"):
        figure_9.run("--again")
    assert figure_9.trials == []
    assert row.read_bytes() == before


def test_the_page_of_figure_9_says_where_its_rows_were_measured(figure_9: Figure9) -> None:
    figure_9.run("--trials", "8")
    page = figure_9.folder.parent / "alt_fig9.md"
    assert page.read_text().splitlines()[2] == machine_of(figure_9.folder)
    keep_machine(figure_9.folder, {"date": "once", "cpu": "another"})
    figure_9.run("--seconds", "0")
    assert page.read_text().splitlines()[2] == "once, another"
    assert figure_9.trials == [8]


def given(out: Path, trials: int = 1000, seconds: float = float("inf")) -> argparse.Namespace:
    return argparse.Namespace(out=out, trials=trials, seconds=seconds)


def test_kept_rows_of_fewer_trials_are_run_again(tmp_path: Path) -> None:
    folder = tmp_path / "figure"
    kept(folder / "few.json", trials=24, seconds={"a": 2.0})
    kept(folder / "alone.json", trials=24, alone=True)
    ran: list[str] = []

    def case(name: str) -> Any:
        return lambda folder: ran.append(name) or {}

    cases = {name: case(name) for name in ("few", "alone", "none")}
    few = go_on("figure", given(tmp_path), cases, again=True)[1]
    assert ran == ["few"]
    assert few == {"case": "few", "trials": 24, "seconds": {"a": 2.0}, "alone": True}


def test_pages_say_where_rows_were_measured(tmp_path: Path) -> None:
    cases: dict[str, Any] = {"one": lambda folder: {}}

    def line() -> str:
        write("figure", tmp_path, "Title", "Remarks.", ("case",), [("one",)], [], {"one": {"a": 1.0}}, "s")
        return (tmp_path / "figure.md").read_text().splitlines()[2]

    go_on("figure", given(tmp_path), cases)
    assert line() == machine_of(tmp_path / "figure")
    keep_machine(tmp_path / "figure", {"date": "once", "cpu": "another"})
    go_on("figure", given(tmp_path, trials=2000, seconds=0), cases)
    assert line() == "once, another"


@pytest.mark.parametrize("file", sorted((ROOT / RESULTS).glob("**/alt_*/machine.txt")), ids=lambda f: f.parent.name)
def test_pages_that_are_kept_say_where_their_rows_were_measured(file: Path) -> None:
    page = file.parents[1] / f"{file.parent.name}.md"
    assert page.read_text().splitlines()[2] == machine_of(file.parent)


def test_table_2_says_where_its_numbers_were_counted_first(tmp_path: Path) -> None:
    rows = [{"case": "one", "misses": {"a": 1}}]
    numbers = tmp_path / "f.json"
    write("f", tmp_path, "Title", "", ("case",), [], rows, {"one": {"a": 1.0}}, "misses", here="another")
    assert alt_table2.counted_on(numbers, rows) == "another"
    assert alt_table2.counted_on(numbers, []) != "another"


def test_networks_whose_records_are_gone_keep_their_times(tmp_path: Path) -> None:
    kept(tmp_path / "resnet18-1.json", trials=8, seconds={"untuned": 1.0, "ALT-OL": 1.0, "ALT": 1.0})
    (tmp_path / "resnet18-1-ALT.jsonl").write_text("{}\n")
    with pytest.raises(SystemExit, match=r"not in [^:]*: resnet18-1-ALT-OL\.jsonl; the row"):
        alt_fig10.measured("resnet18", 1, alt_fig10.VARIANTS, ["ALT"], "x86", 8, True, True, False, tmp_path)
    assert [f.name for f in tmp_path.glob("*.onnx")] == []


def test_variants_of_a_network_that_are_not_searched_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those whose records are here are compared with the others; the budget of each is known."""
    searched: list[str] = []
    outcome = SimpleNamespace(seconds=7.0)

    def tune(model: object, target: str, *, records: Path, **_: object) -> object:
        searched.append(records.stem)
        records.touch()
        return SimpleNamespace(outcome=outcome)

    monkeypatch.setattr(alt_fig10, "build", lambda *_, **__: SimpleNamespace(SerializeToString=lambda: b""))
    monkeypatch.setattr(alt_fig10.mlc, "load", lambda path: None)
    monkeypatch.setattr(alt_fig10.mlc, "tune", tune)
    monkeypatch.setattr(alt_fig10.mlc, "compile", lambda *_, **__: None)
    monkeypatch.setattr(alt_fig10, "in_turns", lambda packages: dict.fromkeys(packages, 0.5))
    had = {"ALT-OL": 3.0, "ALT-WP": 4.0, "ALT": 5.0}
    kept(tmp_path / "resnet18-1.json", trials=8, seconds={"untuned": 1.0, **had}, search_seconds=had)
    (tmp_path / "resnet18-1-ALT-OL.jsonl").write_text("{}\n")
    row = alt_fig10.measured("resnet18", 1, alt_fig10.VARIANTS, ["ALT"], "x86", 9, True, False, False, tmp_path)
    assert searched == ["resnet18-1-ALT"]
    assert row["seconds"] == {"untuned": 0.5, "ALT-OL": 0.5, "ALT": 0.5}
    assert row["search_seconds"] == {**had, "ALT": 7.0}
    assert row["trials_of"] == {"ALT-OL": 8, "ALT-WP": 8}


def test_subgraphs_of_figure_11_are_not_searched_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seconds = {"ALT-OL": [1.0, 2.0], "ALT": [3.0, 4.0], "ALT-FP": None}
    kept(tmp_path / "subgraph 2.json", trials=8, seconds=seconds)
    with pytest.raises(SystemExit, match=r": subgraph-2-OL-1\.jsonl, subgraph-2-OL-2\.jsonl; the row"):
        alt_fig11.measured("subgraph 2", ["ALT-OL", "ALT-FP"], TARGET, 1000, True, tmp_path)
    for what in alt_fig11.SEARCHES["ALT-OL"]:
        (tmp_path / f"subgraph-2-{what}.jsonl").write_text("{}\n")
    monkeypatch.setitem(alt_fig11.VARIANTS, "ALT-OL", lambda *_: [("first", {}), ("second", {})])
    monkeypatch.setattr(alt_fig11.Runs, "seconds", lambda runs, task, configs: [float(runs._trials)])
    row = alt_fig11.measured("subgraph 2", ["ALT-OL", "ALT-FP"], TARGET, 1000, True, tmp_path)
    assert row["seconds"] == {**seconds, "ALT-OL": [8.0, 8.0]}


def test_pages_say_which_rows_were_timed_beside_other_work() -> None:
    alone, beside = {"case": "subgraph 1", "alone": True}, {"case": "subgraph 2"}
    assert alt_fig10.quiet([alone], "alone") == "with nothing else running"
    assert alt_fig10.quiet([beside], "alone") == "beside other work"
    assert alt_fig10.quiet([alone, beside], "alone") == "with nothing else running, subgraph 2 beside other work"
    assert alt_fig11.timed([alone]) == "Subgraph 1 was timed with nothing else running."
    assert alt_fig11.timed([beside, alone]) == (
        "Subgraph 2 was timed at the end of its searches, beside other work, subgraph 1 with nothing else running."
    )


def test_valgrind_is_looked_for_before_anything_is_searched(
    monkeypatch: pytest.MonkeyPatch, figure_9: Figure9, tmp_path: Path
) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "valgrind" else tool)
    monkeypatch.setattr(alt_table3, "searched", lambda *_, **__: pytest.fail("searched"))
    with pytest.raises(SystemExit, match="counting takes valgrind, which is not installed"):
        alt_table3.measured("NOHW", TARGET, 8, tmp_path)
    with pytest.raises(SystemExit, match="counting takes valgrind, which is not installed"):
        figure_9.run("--count")


@pytest.mark.parametrize("folder", ["", "zen4-avx512/"])
def test_records_of_searches_stay_out_of_the_repository(folder: str) -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("no checkout")
    names = [f"{RESULTS}/{folder}alt_fig9/GMM-0-ALT.jsonl", f"{RESULTS}/{folder}alt_fig10/resnet18-1.onnx"]
    found = subprocess.run(["git", "check-ignore", *names], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.stdout.split() == names

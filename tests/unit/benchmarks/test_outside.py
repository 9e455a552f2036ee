"""Operators outside the zoo: enough of them, and their report is that of what is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import outside
from benchmarks.outside.__main__ import RESULTS, load, main, markdown
from benchmarks.outside.workloads import WORKLOADS
from benchmarks.papers.unseen import DESIGN, HELD_OUT
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import get_target
from mlc.tuning.task import tasks_of


def test_there_are_enough_of_them_and_none_is_one_of_those_for_explorers() -> None:
    assert outside.__doc__
    assert len(WORKLOADS) >= 40
    assert not set(WORKLOADS) & (set(DESIGN) | set(HELD_OUT))
    assert len({w.text for w in WORKLOADS.values()}) == len(WORKLOADS)


@pytest.mark.parametrize("name", ["lenet-first", "regnet-groups", "attention-37"])
def test_the_last_task_is_the_operator(name: str) -> None:
    target = get_target("x86 -mcpu=znver4")
    *_, task = tasks_of(WORKLOADS[name].graph(), target, CompileOptions(name, "onnx", ""), Observer())
    made = {"lenet-first": (1, 6, 28, 28), "regnet-groups": (1, 104, 28, 28), "attention-37": (12, 37, 37)}
    assert task.node.outputs[0].type.shape == made[name]


def test_the_report_is_written_again_from_what_is_kept(tmp_path: Path) -> None:
    kept = load(RESULTS)
    assert (RESULTS / "outside.md").read_text() == markdown(kept)
    assert load(tmp_path) == {}


def test_what_is_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (["--operators", "C1"], "not among the operators: C1; --list prints what is"),
        (["--out", str(tmp_path)], "nothing is kept in"),
    ):
        with pytest.raises(SystemExit):
            main(words)
        assert message in capsys.readouterr().err
    assert main(["--list"]) == 0
    assert "vit-tiny: product 197x192x768" in capsys.readouterr().out

"""Searches on measured tables: subspaces, stored tables, replays and the figures made of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.papers import (
    autotvm_fig4,
    autotvm_fig5,
    autotvm_fig6,
    autotvm_fig7,
    autotvm_fig8,
    autotvm_fig9,
    curves,
    explorers,
    models,
    opevo_fig3,
    replay,
)
from benchmarks.papers.curves import Curve, Figure, everywhere
from benchmarks.papers.keep import RESULTS
from benchmarks.papers.replay import Job, Looked, Method, Replay, run, run_all, trials_until
from benchmarks.papers.spaces import WORKLOADS, Setting, Subspace
from benchmarks.papers.tables import FINALISTS, Table, knob_list, table_for
from mlc.errors import UsageError
from mlc.lower.knobs import Categorical, Discrete, Factors, Space
from mlc.records.measurement import Failure, Measurement
from mlc.targets.base import get_target
from mlc.tuning.models.gbt import GradientBoosting

FIGURES = [
    module.FIGURE
    for module in (
        autotvm_fig4, autotvm_fig5, autotvm_fig6, autotvm_fig7, autotvm_fig8, autotvm_fig9, opevo_fig3,
    )
]  # fmt: skip
WHOLE = Space(
    (Factors("m", 16, 2), Discrete("rows", (1, 2, 4, 8)), Categorical("order", ("a", "b")), Discrete("one", (3,))),
    {"m": (16, 1), "rows": 4, "order": "a", "one": 3},
)


# -- subspaces --------------------------------------------------------------------------------------------------------
def test_a_subspace_keeps_what_it_is_told() -> None:
    part = Subspace(WHOLE, {"rows": (1, 2, 8), "order": ("b",)})
    assert [k.name for k in part.space.knobs] == ["m", "rows"]
    assert part.space.size == 15
    lifted = part.lift(part.all())
    assert len(np.unique(lifted, axis=0)) == 15
    for row, whole in zip(part.all(), lifted, strict=True):
        config = part.space.config(row) | {"order": "b", "one": 3}
        assert WHOLE.config(whole) == config
    assert part.space.default == {"m": (16, 1), "rows": 2}


def test_subspaces_refuse_what_would_not_be_one() -> None:
    with pytest.raises(UsageError, match="no knob depth"):
        Subspace(WHOLE, {"depth": (1,)})
    with pytest.raises(ValueError, match="would not be neighbours"):
        Subspace(WHOLE, {"m": ((16, 1), (1, 16))})


@pytest.mark.parametrize("name", ["C8", "MM1"])
def test_workloads_have_configurations_that_the_template_accepts(name: str) -> None:
    setting = Setting(WORKLOADS[name], get_target(WORKLOADS[name].processor))
    rows = setting.accepted()
    assert 500 < len(rows) < 4000
    assert setting.features.valid(setting.part.lift(rows)).all()


# -- tables -----------------------------------------------------------------------------------------------------------
def table_of(setting: Setting, rows: np.ndarray, speeds: np.ndarray) -> Table:
    table = Table(setting.workload.name, "made up", 10**9, knob_list(setting.part.space.knobs), 0.1)
    results = [Measurement(1 / s) if s else Measurement(None, failure=Failure.RUN_CRASH) for s in speeds]
    table.add([setting.part.space.index(row) for row in rows], results)
    table.about = {"cpu": "some", "date": "today", "load": "0"}
    return table


@pytest.fixture(scope="module")
def setting() -> Setting:
    return Setting(WORKLOADS["C8"], get_target(WORKLOADS["C8"].processor))


@pytest.fixture
def made_up(setting: Setting, tmp_path: Path) -> Replay:
    """A table of 300 configurations, the untuned one the last; a tenth fail, others are the faster the more rows."""
    rows, untuned = setting.accepted(), setting.part.space.row({})
    rows = np.random.default_rng(0).permutation(rows[(rows != untuned).any(1)])[:299]
    rows = np.concatenate([rows, untuned[None]])
    speeds = 1 + rows[:, 1] + rows[:, 0] / 8
    speeds[::10] = 0
    table = table_of(setting, rows, speeds)
    table.save(tmp_path)
    return Replay(setting, Table.load("C8", tmp_path))


def test_tables_survive_storage(made_up: Replay, tmp_path: Path, setting: Setting) -> None:
    table = table_for(setting, tmp_path)
    assert len(table.number) == 300
    assert (table.failure >= 0).sum() == 30
    assert np.array_equal(table.speeds == 0, table.failure >= 0)
    table.knobs[0][1] = [1]
    table.save(tmp_path)
    with pytest.raises(UsageError, match="measured for other knobs"):
        table_for(setting, tmp_path)
    with pytest.raises(UsageError, match="no such table"):
        Table.load("C9", tmp_path)


def test_careful_times_replace_quick_ones(made_up: Replay) -> None:
    table = made_up.table
    at = table.finalists()
    assert len(at) == FINALISTS
    assert not table.settled()
    table.again[at] = 2 * table.seconds[at]
    assert table.speeds[at[0]] == pytest.approx(0.5 / table.seconds[at[0]], rel=1e-5)
    others = table.middling()
    assert len(others)
    assert not set(others.tolist()) & set(table.finalists().tolist())


# -- replays ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("explorer", ["random", "genetic", "opevo", "gbfs", "na2c", "annealing", "guided"])
def test_replays_measure_the_table_and_nothing_else(made_up: Replay, explorer: str) -> None:
    curve = run(made_up, Method(explorer), 1, 60, 16)
    assert np.array_equal(curve, run(made_up, Method(explorer), 1, 60, 16))
    assert len(curve) == 60
    assert set(curve) <= set(made_up.speeds)
    assert trials_until(curve, curve[-1]) <= 60


def test_whole_tables_are_exhausted(made_up: Replay) -> None:
    curve = run(made_up, Method("random"), 0, 1000, 64)
    assert len(curve) == 300
    assert curve[-1] == made_up.best
    assert len(run(made_up, Method("random"), 0, 1000, 64, until=1.0)) == 64


def test_all_methods_begin_alike(made_up: Replay) -> None:
    first = {run(made_up, Method(e), 3, 1, 1)[0] for e in ("random", "opevo", "guided", "genetic")}
    assert len(first) == 1


def test_a_search_can_begin_untuned(made_up: Replay) -> None:
    (place,) = made_up.places(made_up.setting.part.space.row({})[None])
    made_up.speeds[place] = 12.5
    assert made_up.untuned == 12.5
    for explorer in ("random", "descent"):
        assert run(made_up, Method(explorer, untuned=True), 0, 1, 16)[0] == 12.5


def test_double_evaluations_count_half(made_up: Replay) -> None:
    once, twice = (
        np.array([run(made_up, Method("random", evaluations=k), seed, 64, 16) for seed in range(8)]) for k in (1, 2)
    )
    assert once.shape == twice.shape == (8, 64)
    assert (twice.mean(0) >= once.mean(0)).mean() > 0.9


def test_looking_up_changes_no_answer(made_up: Replay) -> None:
    features = made_up.described()
    plain, looked = GradientBoosting(rounds=5), Looked(GradientBoosting(rounds=5), features)
    at = np.arange(0, 300, 3)
    plain.fit(features[at], made_up.speeds[at])
    looked.fit(at[:, None].astype(np.float32), made_up.speeds[at])
    asked = np.array([[7.0], [250.0]], np.float32)
    assert np.array_equal(looked.predict(asked), plain.predict(features[[7, 250]]))


def test_tables_of_other_knobs_are_refused(made_up: Replay, setting: Setting) -> None:
    made_up.table.knobs[0][1] = [1]
    with pytest.raises(UsageError, match="measured for other knobs"):
        Replay(setting, made_up.table)


# -- figures ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("figure", FIGURES, ids=lambda f: f.name)
def test_figures_are_of_known_tables(figure: Figure) -> None:
    assert {w for w, _ in figure.panels.values()} <= set(WORKLOADS)
    assert figure.remarks.strip()
    assert len(figure.labels) >= 3


@pytest.mark.parametrize("figure", FIGURES, ids=lambda f: f.name)
def test_kept_results_are_of_the_kept_tables(figure: Figure) -> None:
    kept = json.loads((RESULTS / f"{figure.name}.json").read_text())["results"]
    assert kept.keys() == figure.panels.keys()
    for panel, (workload, methods) in figure.panels.items():
        result, table = kept[panel], replay.replay_of(workload)
        assert (result["table"], result["configurations"]) == (workload, len(table.rows))
        assert result["best"] == table.best
        assert result["searches"].keys() == methods.keys()


@pytest.mark.parametrize("figure", [autotvm_fig4.FIGURE, opevo_fig3.FIGURE], ids=lambda f: f.name)
def test_kept_searches_run_again_as_they_were(figure: Figure) -> None:
    """Those without a cost model, whose decimals depend on no processor."""
    kept = json.loads((RESULTS / f"{figure.name}.json").read_text())["results"]
    panel, (workload, methods) = next(iter(figure.panels.items()))
    for label in methods:
        if not methods[label].learns:
            curve = run(replay.replay_of(workload), methods[label], 0, figure.trials, figure.batch)
            reached = trials_until(curve, figure.good * replay.replay_of(workload).best)
            assert reached == float(kept[panel]["searches"][label]["reached"][0]), label


def test_curves_are_means_over_seeds() -> None:
    curve = Curve.of([np.array([1.0, 3.0, 4.0]), np.array([2.0, 4.0])], 3, 4.0)
    assert curve.mean.tolist() == [1.5, 3.5, 4.0]
    assert curve.reached == (3.0, 2.0)
    assert curve.median == 2.5


def test_a_figure_is_written(made_up: Replay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "replay_of", lambda name, folder=None: made_up)
    monkeypatch.setattr(replay, "replay_of", lambda name, folder=None: made_up)
    methods = {"Random": Method("random"), "OpEvo": Method("opevo")}
    figure = Figure("figure", "A figure", everywhere(("C8",), methods), "Nothing differs.", trials=40, seeds=2)
    names = curves.write(figure, curves.measure(figure, 1), tmp_path)
    text = (tmp_path / "figure.md").read_text()
    assert "| C8 | OpEvo |" in text
    assert "Nothing differs." in text
    stored = json.loads((tmp_path / "figure.json").read_text())
    assert len(stored["results"]["C8"]["searches"]["Random"]["mean"]) == 10
    assert all((tmp_path / name).stat().st_size > 100 for name in names)


def test_jobs_stop_at_what_is_good_enough(made_up: Replay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "replay_of", lambda name, folder=None: made_up)
    (curve,) = run_all([Job("C8", Method("random"), 0, 300, 4, until=0.95)], 1)
    assert curve[-1] >= 0.95 * made_up.best
    assert trials_until(curve, 0.95 * made_up.best) > len(curve) - 4


# -- models -----------------------------------------------------------------------------------------------------------
def test_models_see_what_their_names_say(setting: Setting) -> None:
    rows = setting.part.lift(setting.accepted()[:20])
    whole = replay.loop_features(setting, rows)
    loops, relation = models.loops_alone(setting, rows), models.relation_alone(setting, rows)
    assert whole.shape[1] < loops.shape[1] + relation.shape[1]
    assert models.loop_tree(setting, rows).ndim == 3
    other = Setting(WORKLOADS["Matmul-1024"], setting.target)
    narrow = models.configuration(other, other.part.lift(other.accepted()[:3]))
    assert narrow.shape[1] == models.configuration(setting, rows).shape[1]


def test_transfer_knows_before_anything_is_measured(made_up: Replay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "replay_of", lambda name: made_up)
    model = models.transfer(models.boosting, models.relation_alone, ("C1",), 200)(0)
    assert model.least == 0
    scores = model.predict(made_up.described(models.relation_alone))
    assert np.corrcoef(scores, made_up.speeds)[0, 1] > 0.5


# -- the default ------------------------------------------------------------------------------------------------------
def test_the_report_tells_whether_the_default_is_the_best(
    made_up: Replay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (curves, replay, explorers):
        monkeypatch.setattr(module, "replay_of", lambda name, folder=None: made_up)
    monkeypatch.setattr(explorers, "SEEDS", 2)
    medians = explorers.measure(("C8",), ("random", "descent", "guided"), 1)
    assert set(medians) == {"random", "descent", "guided"}
    medians = {"random": {"C8": 40.0}, "descent": {"C8": 16.0}, "guided": {"C8": 12.0}}
    untuned = {"random": {"C8": 50.0}, "descent": {"C8": 10.0}, "guided": {"C8": 5.0}}
    explorers.write(medians, untuned, tmp_path)
    text = (tmp_path / "explorers.md").read_text()
    assert "needs 0.10 times the trials of random draws and\n0.50 times those of the best other" in text
    assert "needs 0.30 times the trials of random draws and\n0.75 times those of the best other" in text
    assert "| space | guided | descent | random |" in text  # fewest trials first
    assert "| C8 | 12 | 16 | 40 |" in text

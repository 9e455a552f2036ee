"""Figures of papers: their workloads are right, and results become tables and pictures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from benchmarks.papers import autotvm_fig4, curves, explorers, held_out, tables, tvm_fig4, tvm_fig10, unseen
from benchmarks.papers.keep import RESULTS
from benchmarks.stats import Spread
from benchmarks.zoo import sample_inputs
from mlc.records.record import Fingerprint
from mlc.targets.base import get_target


@pytest.mark.parametrize("name", tvm_fig4.WORKLOADS)
def test_workloads_are_valid(name: str) -> None:
    onnx.checker.check_model(tvm_fig4.WORKLOADS[name](), full_check=True)


def test_lstm_cell_is_that_of_the_operator() -> None:
    model = tvm_fig4.lstm_cell(hidden=8)
    inputs = sample_inputs(model)
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    gates = inputs["x"] @ weights["x.weight"] + inputs["h"] @ weights["h.weight"] + weights["bias"]
    i, f, o, c = np.split(gates, 4, axis=1)
    sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    state = sigmoid(f) * inputs["c"] + sigmoid(i) * np.tanh(c)
    result, found = ReferenceEvaluator(model).run(None, inputs)
    assert np.allclose(found, state, atol=1e-5)
    assert np.allclose(result, sigmoid(o) * np.tanh(state), atol=1e-5)


def results() -> list[tvm_fig4.Comparison]:
    labels = (tvm_fig4.FUSED, *tvm_fig4.UNFUSED.values())
    times = dict(zip(labels, (Spread(1.0, 0.1, 3), Spread(2.0, 0.1, 3), Spread(1.5, 0.15, 3)), strict=True))
    speedup = dict(zip(tvm_fig4.UNFUSED, (Spread(2.0, 0, 3), Spread(1.5, 0, 3)), strict=True))
    return [tvm_fig4.Comparison("rnn cell", 1, times, speedup, dict(zip(labels, (2, 5, 4), strict=True)), 1e-7)]


def test_table_has_a_row_for_each_pair() -> None:
    text = tvm_fig4.markdown(results(), {"cpu": "some", "target": "x86"}, "tvm_fig4.png")
    assert "| rnn cell | operators as they stand | 1 | 5 → 2 | 2.000 ±5.0% | 1.000 ±10.0% | 2.00 |" in text
    assert "| rnn cell | only fuse differs | 1 | 4 → 2 | 1.500 ±10.0% | 1.000 ±10.0% | 1.50 |" in text
    assert "1.0e-07" in text


def test_picture_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib comes with the extra dev")
    tvm_fig4.draw(results(), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000


def test_fig10_layers_are_those_of_the_table() -> None:
    (row,) = [row for row in tvm_fig10.CONVOLUTIONS if row[0] == "C10"]
    layer = tvm_fig10.layer_of(*row, narrow=False)
    assert (layer.out_shape, layer.macs) == ((1, 512, 7, 7), 57802752)


def test_fig10_refuses_wrong_results(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = tvm_fig10.layer_of("C2", 4, 16, 16, 1, 1, narrow=True)
    monkeypatch.setattr(tvm_fig10, "expected", lambda layer, x: np.ones(layer.out_shape))
    with pytest.raises(AssertionError, match="are not numpy's"):
        tvm_fig10.best_of("C2", layer, "full", 1)


@pytest.mark.parametrize("cpu", ["x86-64", "haswell", "skylake-avx512", "znver4"])
def test_tables_are_listed_for_every_processor(capsys: pytest.CaptureFixture[str], cpu: str) -> None:
    tables.main(["--list", "C2", "Matmul-1024", "--target", f"x86 -mcpu={cpu}"])
    text = " ".join(capsys.readouterr().out.split())
    assert "convolution 56x56, 64 -> 64, 3x3, stride 1" in text
    assert "einsum ij,jk->ik of 1024x1024 and 1024x1024" in text


def test_a_space_of_another_processor_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tables.WORKLOADS, "C2", replace(tables.WORKLOADS["C2"], kept={"rows": (1, 1000)}))
    with pytest.raises(SystemExit, match=r"^python -m benchmarks.papers.tables: .*: the subspace is of another .*$"):
        tables.main(["C2", "--target", "x86 -mcpu=znver5"])


def test_what_a_script_lacks_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.papers.needs.find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"^python -m benchmarks.papers.tvm_fig4 needs matplotlib: pip install .*$"):
        tvm_fig4.main([])
    with pytest.raises(SystemExit, match="needs matplotlib and xgboost and torch: pip install"):
        curves.main(autotvm_fig4.FIGURE, None, [])


def test_held_out_workloads_are_not_those_of_the_design() -> None:
    assert not set(unseen.DESIGN) & set(unseen.HELD_OUT)
    assert len(unseen.HELD_OUT) >= 8


@pytest.mark.parametrize("processor", held_out.PROCESSORS)
def test_kept_searches_give_the_kept_results(processor: str, tmp_path: Path) -> None:
    """The comparison of explorers is written again from its tables, without measuring, on whatever processor."""
    pytest.importorskip("matplotlib", reason="matplotlib comes with the extra dev")
    explorers.main(["--held-out", processor, "--out", str(tmp_path)])
    for suffix in (".json", ".md"):
        name = f"{held_out.NAME}_{processor}{suffix}"
        assert (tmp_path / name).read_text() == (RESULTS / name).read_text()


def test_times_of_two_processors_are_not_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_out, "PROCESSORS", ("skylake-avx512", "haswell"))
    other = "haswell" if Fingerprint.of(get_target("x86")).cpu != "haswell" else "skylake-avx512"
    with pytest.raises(SystemExit, match=f"the tables are of a {other}, and this is a "):
        explorers.main(["--held-out", other, "--measure", "--workloads", "product-50"])


def test_a_mean_counts_limits_where_searches_were_not_there() -> None:
    middle = {"a": {"random": 256.0, "guided": float("inf")}, "b": {"random": float("inf"), "guided": 6.0}}
    assert held_out.means(middle) == pytest.approx({"guided": (6 * held_out.TRIALS) ** 0.5, "random": 256.0})


def test_only_held_out_workloads_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (["--held-out", "znver5", "--workloads", "design-1x1"], "no workload design-1x1; there are odd-3x3"),
        (["--measure"], "are for --held-out"),
    ):
        with pytest.raises(SystemExit):
            explorers.main(words)
        assert message in capsys.readouterr().err

"""Other kernels between two steps: compared, timed in turns, taken or left; workers that end with the run."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mlc.training import dynamic
from mlc.training.dynamic import TURNS, Execution, Generated, Search, Workers
from mlc.training.report import report_html
from mlc.training.watch import Exchange, Watcher


class Version:
    """A module that gives a number after some time, by a clock that does not run by itself."""

    now = 0.0

    manifest = SimpleNamespace(updates={})

    def __init__(self, seconds: float, value: float = 1.0) -> None:
        self.seconds, self.value, self.closed, self.runs = seconds, value, False, 0

    def run(self, feeds: Mapping[str, np.ndarray], outputs: object = None) -> dict[str, np.ndarray]:
        assert not self.closed
        Version.now += self.seconds
        self.runs += 1
        return {"y": feeds["x"] * np.float32(self.value)}

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamic.time, "perf_counter", lambda: Version.now)


class Told(Watcher):
    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []

    def exchanged(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)


def tried(first: Version, other: Version, tmp_path: Path) -> tuple[Execution, Told]:
    """An execution that has met another version and decided."""
    package = tmp_path / "1.tar"
    package.touch()
    queue, told = [Generated(package, 3, 40)], Told()
    execution = Execution(first, lambda path: other, told)  # type: ignore[arg-type, return-value]
    execution.take = lambda: queue.pop() if queue else None
    for _ in range(2 * TURNS + 1):
        execution({"x": np.ones(3, np.float32)})
    assert not package.exists()
    assert told.exchanges == execution.exchanges
    return execution, told


@pytest.mark.parametrize(("seconds", "taken"), [(0.5, True), (0.999, False), (2.0, False)])
def test_the_faster_version_stays(seconds: float, taken: bool, tmp_path: Path) -> None:
    first, other = Version(1.0), Version(seconds)
    execution, told = tried(first, other, tmp_path)
    before, after = pytest.approx(1.0), pytest.approx(seconds)
    assert told.exchanges == [Exchange(2 * TURNS + 1, before, after, None, taken, 3, 40)]
    assert (first.closed, other.closed) == (taken, not taken)
    assert first.runs == other.runs == TURNS + 1  # the first step by both, all others by one of them
    execution({"x": np.ones(3, np.float32)})
    assert (other if taken else first).runs == TURNS + 2
    execution.close()
    assert first.closed
    assert other.closed


@pytest.mark.parametrize("period", [2, 4])
def test_what_comes_at_regular_times_slows_both_versions_alike(period: int, tmp_path: Path) -> None:
    begun = iter(range(10**6))

    class Disturbed(Version):
        def run(self, feeds: Mapping[str, np.ndarray], outputs: object = None) -> dict[str, np.ndarray]:
            if next(begun) % period == 0:
                Version.now += 10.0
            return super().run(feeds, outputs)

    _, told = tried(Disturbed(1.0), Disturbed(1.0), tmp_path)
    (exchange,) = told.exchanges
    assert exchange.before == pytest.approx(exchange.after)
    assert not exchange.taken


@pytest.mark.parametrize("value", [1.01, float("nan")])
def test_a_version_with_other_results_is_not_taken(value: float, tmp_path: Path) -> None:
    first, other = Version(1.0), Version(0.5, value)
    _, told = tried(first, other, tmp_path)
    (exchange,) = told.exchanges
    assert exchange.difference is not None
    assert exchange.difference > dynamic.TOLERANCE
    assert other.closed
    assert other.runs == 1


def workers(folder: Path, exploring: str, generating: str = "") -> Workers:
    class Scripted(Search):
        def exploring(self) -> Sequence[str]:  # type: ignore[override]
            return [sys.executable, "-c", exploring, str(self.records)]

        def generating(self, package: Path) -> Sequence[str]:  # type: ignore[override]
            return [sys.executable, "-c", generating, str(package)]

    return Workers(Scripted(folder / "m", folder, folder / "r", [], "x86", 1, 1, 0, interval=0.0))


def test_what_was_found_is_compiled(tmp_path: Path) -> None:
    write = "import sys; open(sys.argv[1], 'w').write('found')"
    said = '{"functions": {"made": 2, "found": 29}}'
    told = f"{write}; open(sys.argv[1].replace('.tar', '.json'), 'w').write('{said}')"
    with workers(tmp_path, write, told) as both:
        until = time.monotonic() + 30
        while (found := both.take()) is None and time.monotonic() < until:
            time.sleep(0.01)
        assert found is not None
        assert found.package.read_text() == "found"
        assert (found.made, found.found) == (2, 29)
        assert both.take() is None
    assert not both.complaint


def test_a_worker_that_fails_is_told_and_one_that_goes_on_ends(tmp_path: Path) -> None:
    with workers(
        tmp_path, "import sys; print('error: no such thing\\nhint: none', file=sys.stderr); sys.exit(2)"
    ) as both:
        until = time.monotonic() + 30
        while not both.complaint and time.monotonic() < until:
            time.sleep(0.01)
    assert both.complaint == "error: no such thing"
    begin = time.monotonic()
    with workers(tmp_path, "import time; time.sleep(100)"):
        pass
    assert time.monotonic() < begin + 50


def test_the_report_shows_curves_and_exchanges() -> None:
    history = [
        {"epoch": k, "loss": 2.0 / k, "losses": [2.0, 1.0], "seconds": 1.0, "examples_per_second": 10.0, **more}
        for k, more in ((1, {}), (2, {"validation_loss": 0.5, "validation_accuracy": 0.75}))
    ]
    text = report_html(
        history, [Exchange(9, 2e-3, 1e-3, None, True, 2, 29), Exchange(12, None, None, 0.5, False)], "<m>"
    )
    assert "Training of &lt;m&gt;" in text
    assert text.count("<polyline") == 4
    assert "<td>9</td><td>2</td><td>1</td><td>taken</td><td>2</td><td>29</td>" in text
    assert "from the function cache" in text
    assert "other results" in text
    assert "<polyline" not in report_html([], [], "m")

"""The whole model, or an accelerator's part of it, before and after; what loses in it goes back to untuned."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mlc.errors import CheckFailedError
from mlc.ir.graph import Graph
from mlc.lower.knobs import Config
from mlc.pipeline.configurations import Configurations
from mlc.records.best import best_of
from mlc.records.files import Log
from mlc.records.lookup import Tuned
from mlc.records.measurement import Measurement
from mlc.records.record import DECIDED, Fingerprint, Record
from mlc.settings import CompileOptions
from mlc.targets.base import Target, Tunable
from mlc.tuning.algorithms import Chosen
from mlc.tuning.joint import Neighbours
from mlc.tuning.regions import FASTEST, LIKELY, best_together
from mlc.tuning.session import Session
from mlc.tuning.watcher import Watcher
from mlc.tuning.whole import Comparison, Turns, build_file

TOLERANCE = 1e-3  # of the largest output, between the untuned and the tuned model
SLOWER = 0.98  # times as fast as untuned, below which noise is no excuse


@dataclass(frozen=True)
class Check:
    """Looks at the whole of what a session has tuned.

    Args:
        graph: the imported model.
        target: what it is compiled for.
        options: as for a compilation.
        threads: that run the model.
        session: has decided between configurations; what loses is settled anew in it.
        records: the session's file, for messages.
        watch: is told how it goes on.
        levels: of tiles of layouts, where these were searched; else 0.
    """

    graph: Graph
    target: Target
    options: CompileOptions
    threads: int
    session: Session
    records: Path
    watch: Watcher
    levels: int = 0

    def model(self, turns: Turns, algorithms: Sequence[Record]) -> tuple[Comparison, tuple[str, ...]]:
        """The whole model before and after; kernels that lose in it go back, and that is recorded.

        Args:
            turns: profile and time models in turns.
            algorithms: records of the algorithms that the tuned model is computed by.
        Returns:
            the comparison, and the names of the tasks that went back.
        Raises:
            CheckFailedError: results differ.
        """
        watch = self.watch
        with tempfile.TemporaryDirectory(prefix="mlc-") as folder:
            names = (Path(folder) / f"model{k}.tar" for k in itertools.count())

            def compiled(configurations: Configurations | None) -> Path:
                return build_file(self.graph, self.target, self.options, configurations, next(names))

            watch.checking("compiling the model untuned and tuned")
            untuned = same = compiled(None)
            if algorithms:  # steps can only be compared with those of the same algorithms
                same = compiled(Chosen(algorithms, self.target, self.threads))
            lookup = self._decided(algorithms)
            tuned = compiled(lookup)
            sources = {f.workload: f.sources for f in lookup.all_findings()}
            profiling = partial(watch.checking, "profiling both in turns")
            reverted = self._revert(turns.losers(same, tuned, sources, profiling))
            if reverted:
                watch.checking(f"compiling without {len(reverted)} of the tuned kernels")
                tuned = compiled(self._decided(algorithms))
            timing = partial(watch.checking, "timing both in turns")
            whole = turns.compare(untuned, tuned, timing)
            if whole.speedup < SLOWER and turns.compare(untuned, tuned, timing).speedup < SLOWER:  # no accident
                reverted += self._revert(set(sources))
                watch.checking("compiling untuned: the tuned model is slower")
                tuned = compiled(self._decided(algorithms))
                whole = turns.compare(untuned, tuned, timing)
        self._require_same(whole.error, "model's")
        return whole, tuple(reverted)

    def regions(self) -> tuple[Comparison, tuple[str, ...]]:
        """An accelerator's regions before and after; what is fastest in them is decided for, and that is recorded.

        Returns:
            the comparison, and the names of the tasks that went back to untuned.
        Raises:
            CheckFailedError: results differ.
        """
        session, accelerator = self.session, self.target.accelerator
        assert isinstance(accelerator, Tunable)
        states = [s for s in session.states if s.task.constants is not None]
        for s in states:
            if s.decided is None:  # no trial of its own, but what the region chooses for it is recorded with a time
                session.decide(s)
        trials: dict[str, list[Config]] = {}
        for s in states:
            likely = accelerator.likely(s.task.node, s.task.constants or {})
            wanted = [*s.fastest(FASTEST), *likely[:LIKELY], s.task.space.default]
            trials[s.task.key] = list({tuple(sorted(c.items())): c for c in wanted}.values())
        near = {s.task.key: Neighbours(s.task, self.target, self.levels) for s in states}
        goes_on = partial(self.watch.checking, "trying what was fastest in the accelerator's regions")
        stand = accelerator.bench().open(self.threads)
        found = best_together(self.graph, self.target, self.options, stand, near, trials, goes_on=goes_on)
        reverted = []
        for state in states:
            config = found.chosen.get(state.task.key, state.task.space.default)
            if state.decided is None or dict(config) != dict(state.decided):
                session.settle(state, config, Measurement(state.seconds_of(config)))
                if dict(config) == dict(state.task.space.default):
                    reverted.append(state.task.name)
        self._require_same(found.error, "regions'")
        return Comparison(found.untuned, found.tuned, found.error), tuple(reverted)

    def _require_same(self, error: float, whose: str) -> None:
        if not error <= TOLERANCE:
            raise CheckFailedError(
                f"{self.records}: the tuned {whose} results differ by {error:.2g} of the largest output",
                hint="please report this with the record file; compile without --records meanwhile",
            )

    def _revert(self, workloads: Collection[str]) -> list[str]:
        """Decides for what some tasks have untuned; the names of those that had something else."""
        reverted = []
        for state in self.session.states:
            default = state.task.untuned
            if state.task.key in workloads and state.decided is not None and dict(state.decided) != dict(default):
                known = state.untuned if state.untuned < float("inf") else state.best
                self.session.settle(state, default, Measurement(known))
                reverted.append(state.task.name)
        return reverted

    def _decided(self, algorithms: Sequence[Record]) -> Tuned:
        """What a compilation would look up now."""
        log = Log(list(algorithms))
        fingerprint = Fingerprint.of(self.target)
        for state in self.session.states:
            if state.decided is not None:
                result = Measurement(state.best)
                log.records.append(
                    Record.of(
                        state.task, state.decided, result, fingerprint=fingerprint, threads=self.threads,
                        explorer=DECIDED, seed=0, trial=0,
                    )
                )  # fmt: skip
        return Tuned(best_of(log.records, fingerprint, self.threads), self.target)

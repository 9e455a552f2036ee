"""Layouts and loops searched together: the two stages, networks in order, what records say and what compiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from mlc.ir.graph import Builder, Graph
from mlc.ir.interp.graph import run_graph
from mlc.ir.types import TensorType, f32
from mlc.lower.knobs import Config, Space
from mlc.ops import get
from mlc.records.best import best_of
from mlc.records.files import read_records
from mlc.records.measurement import Measurement
from mlc.records.record import DECIDED, Fingerprint, encode
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import LEVELS, get_target
from mlc.tuning.algorithms import Chosen
from mlc.tuning.in_order import LEAST, Joint, Network, is_network, search_in_order
from mlc.tuning.joint import FIRST_LAYOUTS, CrossExploration, layout_space, layouts_in
from mlc.tuning.journal import Journal
from mlc.tuning.options import TuneOptions
from mlc.tuning.session import Outcome, Session
from mlc.tuning.task import Task, tasks_of
from mlc.tuning.whole import build_module

TARGET = get_target("x86 -mcpu=haswell")
OPTIONS = CompileOptions("joint", "onnx", "0" * 64, disabled_passes=frozenset({"winograd"}))
SEARCH = TuneOptions(trials=40, batch=8, explorer="random", layouts=1, seed=2)
TRIALS_OF_JOINT = 12  # three tenths of 40


def network(layers: int) -> Graph:
    """Convolutions in a row, the last of them with a residual."""
    g, rng = Builder("net"), np.random.default_rng(0)
    v = g.input("x", TensorType((1, 8, 8, 8), f32))
    for k in range(layers):
        w = rng.integers(-2, 3, (8, 8, 3, 3)).astype(np.float32)
        attrs = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}
        (y,) = g.add(get("conv"), [v, g.constant(w, f"w{k}")], attrs, sources=[f"conv{k}"])
        if k == 2:
            (y,) = g.add(get("add"), [y, v])
        (v,) = g.add(get("relu"), [y], names=[f"r{k}"])
    return g.finish([v])


class Fake:
    """A measurer whose times are made up: small tiles of rows are fast, and what is as it was is slow."""

    def __init__(self) -> None:
        self.peak, self.threads, self.flushed = 1e12, 1, False
        self.configs: list[Config] = []

    @staticmethod
    def seconds(config: Config) -> float:
        if LEVELS not in config:
            return 1e-3
        rows = config["layout.h"]
        assert isinstance(rows, tuple)
        return 1e-4 * (1 + abs(int(rows[1]) - 4)) + 1e-6 * (crc32(str(sorted(config.items())).encode()) % 7)

    def measure(
        self, task: int, configs: Sequence[Config], done: Callable[[int, Measurement], None]
    ) -> list[Measurement]:
        found = [Measurement(self.seconds(c)) for c in configs]
        for k, m in enumerate(found):
            self.configs.append(configs[k])
            done(k, m)
        return found

    def compare(self, task: int, configs: Sequence[Config]) -> list[Measurement]:
        return [Measurement(self.seconds(c)) for c in configs]


def run(
    path: Path, tasks: Sequence[Task], options: TuneOptions, fake: Fake, numbers: Sequence[int] | None = None
) -> Outcome:
    with Journal(path) as journal:
        return Session(tasks, TARGET, fake, options, journal, numbers=numbers).run()  # type: ignore[arg-type]


def test_layouts_are_searched_first_and_the_fastest_gets_the_rest(tmp_path: Path) -> None:
    (task,) = tasks_of(network(1), TARGET, OPTIONS, Observer())
    fake, path = Fake(), tmp_path / "r.jsonl"
    outcome = run(path, [task], SEARCH, fake)
    assert outcome.trials == 40
    assert dict(fake.configs[0]) == dict(task.space.default)
    layouts = [tuple(sorted(layouts_in(c).items())) for c in fake.configs]
    begun = TRIALS_OF_JOINT
    assert len(set(layouts[:begun])) > 2
    assert len(set(layouts[begun:])) == 1
    decided = outcome.states[0].decided
    assert decided is not None
    assert tuple(sorted(layouts_in(decided).items())) == layouts[-1]
    assert fake.seconds(decided) == min(map(fake.seconds, fake.configs))
    for record in read_records([path]).records:
        assert bool(record.layouts) == (LEVELS in record.config)
        if record.explorer == DECIDED:
            assert record.layouts["result"].startswith("split(3, ")
            assert {"result", "operand 1 packed"} <= set(record.layouts) <= {"result", "operand 0", "operand 1 packed"}


class Close(Fake):
    """Searched layouts that single trials make 5 % faster than the target's own, and turns 5 % slower."""

    def __init__(self) -> None:
        super().__init__()
        self.finalists: list[Config] = []

    @staticmethod
    def seconds(config: Config) -> float:
        return (0.95e-3 if LEVELS in config else 1e-3) + 1e-6 * (crc32(str(sorted(config.items())).encode()) % 7)

    def compare(self, task: int, configs: Sequence[Config]) -> list[Measurement]:
        self.finalists = self.finalists or list(configs)  # the best few are compared once more
        return [
            Measurement(self.seconds(c) * (1.1 if LEVELS in c else 0.9 if k else 1.0)) for k, c in enumerate(configs)
        ]


def test_layouts_that_are_hardly_faster_leave_half_of_the_loops_and_finalists_to_the_own(tmp_path: Path) -> None:
    (task,) = tasks_of(network(1), TARGET, OPTIONS, Observer())
    fake = Close()
    outcome = run(tmp_path / "r.jsonl", [task], SEARCH, fake)
    begun = TRIALS_OF_JOINT
    own = [LEVELS not in c for c in fake.configs[begun:]]
    assert sum(own) == len(own) // 2
    kinds = [LEVELS not in c for c in fake.finalists]
    assert kinds == [True] * 5 + [False] * 3
    assert outcome.states[0].decided == fake.finalists[min(range(1, 5), key=lambda k: fake.seconds(fake.finalists[k]))]


class Slow(Fake):
    """Searched layouts that take twice as long as the target's own, which loops can make a little faster."""

    @staticmethod
    def seconds(config: Config) -> float:
        return (2e-3 if LEVELS in config else 1e-3) + 1e-6 * (crc32(str(sorted(config.items())).encode()) % 7)


@pytest.mark.parametrize(("explorer", "trials"), [("random", 40), ("guided", 14)])
def test_layouts_that_are_far_slower_than_expected_leave_all_other_trials_to_the_own(
    tmp_path: Path, explorer: str, trials: int
) -> None:
    (task,) = tasks_of(network(1), TARGET, OPTIONS, Observer())
    fake, alone, search = Slow(), Slow(), replace(SEARCH, explorer=explorer, trials=trials)
    run(tmp_path / "r.jsonl", [task], search, fake)
    own = [LEVELS not in c for c in fake.configs]
    looks = own.index(True, 1) - 1
    assert 1 <= looks <= FIRST_LAYOUTS
    assert own == [True, *[False] * looks, *[True] * (trials - 1 - looks)]
    run(tmp_path / "alone.jsonl", [task], replace(search, layouts=0), alone)
    first = [c for c in fake.configs if LEVELS not in c][: min(search.batch, trials // 2)]
    assert first == alone.configs[: len(first)]
    if explorer == "random":
        again = Slow()  # what was measured says so, too, where a search goes on
        run(tmp_path / "r.jsonl", [task], replace(search, trials=48), again)
        assert len(again.configs) == 8
        assert all(LEVELS not in c for c in again.configs)


def test_a_joint_search_goes_on_and_measures_nothing_twice(tmp_path: Path) -> None:
    (task,) = tasks_of(network(1), TARGET, OPTIONS, Observer())
    first, second, path = Fake(), Fake(), tmp_path / "r.jsonl"
    run(path, [task], replace(SEARCH, trials=16), first)
    assert run(path, [task], SEARCH, second).trials == len(second.configs) == 24
    every = [tuple(sorted(c.items())) for c in (*first.configs, *second.configs)]
    assert len(set(every)) == len(every)


@pytest.mark.parametrize("levels", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_explorer_of_the_paper_searches_both_and_repeats_itself(tmp_path: Path, levels: int) -> None:
    (task,) = tasks_of(network(1), TARGET, OPTIONS, Observer())
    few = {"sample": 16, "length": 8, "top": 2}
    options = replace(SEARCH, trials=24, joint=0.6, explorer="alt", layouts=levels, explorer_options=few)
    runs = [Fake(), Fake()]
    for k, fake in enumerate(runs):
        run(tmp_path / f"{k}.jsonl", [task], options, fake)
    assert runs[0].configs == runs[1].configs
    assert len(runs[0].configs) == 24
    layouts = [tuple(sorted(layouts_in(c).items())) for c in runs[0].configs]
    assert len(set(layouts[:16])) > 2
    assert len(set(layouts[16:])) == 1


def joint_of(path: Path, graph: Graph, options: TuneOptions, fake: Fake) -> tuple[Network, Joint]:
    chosen = Chosen([], TARGET, 1)
    tasks = tasks_of(graph, TARGET, OPTIONS, Observer())
    assert is_network(tasks, TARGET, options)
    net = Network(graph, TARGET, OPTIONS, chosen, 1, path, {s for t in tasks for s in t.sources})
    joint = search_in_order(
        net,
        lambda task, number, limited: run(path, [task], limited, fake, [number]),
        False,
        options,
        lambda name, done, total: None,
    )
    return net, joint


def searched(path: Path, graph: Graph, options: TuneOptions, fake: Fake) -> tuple[Network, int]:
    net, joint = joint_of(path, graph, options, fake)
    return net, sum(o.trials for o in joint.outcomes)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Graph, Path, int]:
    path = tmp_path_factory.mktemp("net") / "r.jsonl"
    graph = network(3)
    net, used = searched(path, graph, replace(SEARCH, trials=120), Fake())
    tasks, numbers = net.tasks()
    run(path, tasks, replace(SEARCH, trials=120, joint=0.0), Fake())
    assert numbers == list(range(len(tasks)))
    return graph, path, used


def test_operators_of_a_network_get_layouts_in_order(tuned: tuple[Graph, Path, int]) -> None:
    graph, path, used = tuned
    assert used == pytest.approx(0.4 * 120, abs=8)
    chosen = Chosen(read_records([path]).records, TARGET, 1)
    tasks = tasks_of(graph, TARGET, OPTIONS, Observer(), layouts=chosen)
    assert len(tasks) == 3
    first, second, third = tasks
    assert second.site.inputs[0].layout is not None
    assert len(second.site.inputs[0].layout.physical_shape) == 7  # the result of the first, N H/h W/w O/o h w o
    assert third.site.inputs[0].layout is not None
    assert first.key != second.key
    best = best_of(read_records([path]).records, Fingerprint.of(TARGET), 1)
    for t in tasks:
        assert best.hits[t.key].explorer == DECIDED
        assert LEVELS in best.hits[t.key].config
        assert set(t.space.default) & {LEVELS} == set()


def test_a_network_with_searched_layouts_means_the_same(tuned: tuple[Graph, Path, int]) -> None:
    graph, path, _ = tuned
    x = np.random.default_rng(1).integers(-3, 4, (1, 8, 8, 8)).astype(np.float32)
    (wanted,) = run_graph(graph, {"x": x}).values()
    with build_module(graph, TARGET, OPTIONS, 1, Chosen(read_records([path]).records, TARGET, 1)) as module:
        (got,) = module.run({"x": x}).values()
    np.testing.assert_array_equal(got, wanted)


def test_a_network_that_has_its_layouts_keeps_them(tuned: tuple[Graph, Path, int], tmp_path: Path) -> None:
    graph, path, _ = tuned
    again = tmp_path / "r.jsonl"
    again.write_bytes(path.read_bytes())
    _, used = searched(again, graph, replace(SEARCH, trials=120), Fake())
    assert used == 0
    best = [r for r in read_records([path]).records if r.explorer == DECIDED]  # all that some files hold
    again.write_bytes(b"".join(map(encode, best)))
    _, used = searched(again, graph, replace(SEARCH, trials=120), Fake())
    assert used == 0


class Rows:
    """Proposes given rows of a space, or all in order, but what it has seen; keeps what it is told."""

    def __init__(self, space: Space, rows: Sequence[np.ndarray] | None = None) -> None:
        self.rows = [space.at(k) for k in range(min(200, space.size))] if rows is None else list(rows)
        self.seen: dict[bytes, float] = {}

    def propose(self, n: int) -> np.ndarray:
        found = [row for row in self.rows if row.tobytes() not in self.seen][:n]
        self.seen.update((row.tobytes(), 0.0) for row in found)
        return np.array(found, np.int64).reshape(len(found), len(self.rows[0]))

    def observe(self, rows: np.ndarray, speeds: np.ndarray) -> None:
        self.seen.update((row.tobytes(), float(v)) for row, v in zip(rows, speeds, strict=True))


def cross(task: Task, space: Space) -> tuple[CrossExploration, Rows, list[Config]]:
    """A search whose first layouts are the default and one next to it; and the layouts that loops were searched for."""
    made: list[Config] = []

    def make(task: Task, seeds: np.ndarray) -> Rows:
        made.append(layouts_in(task.space.default))
        return Rows(task.space)

    default = space.row({})
    layouts = Rows(space, [default, next(space.neighbours(default))])
    return CrossExploration(task, TARGET, space, layouts, make, joint=100), layouts, made


def test_a_layout_is_rewarded_for_all_rounds_of_its_loops() -> None:
    (task,) = tasks_of(network(1), TARGET, OPTIONS, Observer())
    space = layout_space(task, TARGET)
    assert space is not None
    search, layouts, _ = cross(task, space)
    first, best = layouts.rows[0].tobytes(), 0.0
    for k in range(1, 20):
        configs = search.propose(8)
        speeds = np.array([float(k) if space.config(layouts.rows[0]) == layouts_in(c) else 1e-3 for c in configs])
        if best and not (speeds == k).any():  # judged
            break
        best = max(best, speeds.max())
        search.observe(configs, speeds)
    assert best > 2
    assert layouts.seen[first] == best


def test_what_was_measured_of_a_layout_in_an_earlier_run_is_kept_when_it_is_proposed() -> None:
    (task,) = tasks_of(network(1), TARGET, OPTIONS, Observer())
    space = layout_space(task, TARGET)
    assert space is not None
    before, layouts, _ = cross(task, space)
    configs = before.propose(4)
    mine = [c for c in configs if layouts_in(c) == space.config(layouts.rows[0])]
    assert mine
    again, _, made = cross(task, space)
    again.observe(mine, np.ones(len(mine)))  # so promising that it gets another round before it is judged
    found = again.propose(24)
    assert not [c for c in found if c in mine]
    assert len(made) == len({tuple(sorted(layouts.items())) for layouts in made})


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        ({"trials": None, "trials_per_task": 20}, [8, 8, 8]),  # two fifths of each
        ({"trials": None, "trials_per_task": 4}, [4, 4, 4]),
        ({"trials": 120, "trials_per_task": 10}, [8, 8, 8]),
        ({"trials": 5}, [5]),
        ({"trials": 30}, [8, 8]),
    ],
)
def test_layouts_of_a_network_have_no_more_trials_than_there_may_be(
    limits: dict[str, int | None], most: list[int], tmp_path: Path
) -> None:
    path = tmp_path / "r.jsonl"
    options = replace(SEARCH, **limits)  # type: ignore[arg-type]
    searched(path, network(3), options, Fake())
    of: dict[str, int] = {}
    for r in read_records([path]).records:
        if r.explorer != DECIDED:
            of[r.workload] = of.get(r.workload, 0) + 1
    assert list(of.values()) == most


def test_trials_of_earlier_runs_leave_fewer_to_the_layouts_of_a_network(tmp_path: Path) -> None:
    path, fake = tmp_path / "r.jsonl", Fake()
    options = replace(SEARCH, trials=8)
    _, first = searched(path, network(3), options, fake)
    _, second = searched(path, network(3), options, fake)
    assert (first, second) == (8, 0)


def laid_out(path: Path) -> list[str]:
    """Keys of the tasks whose layouts were searched, in order."""
    return list(dict.fromkeys(r.workload for r in read_records([path]).records if LEVELS in r.config))


def test_a_resumed_run_has_what_is_left_of_the_share_for_layouts(tmp_path: Path) -> None:
    path, graph = tmp_path / "r.jsonl", network(6)
    _, joint = joint_of(path, graph, replace(SEARCH, trials=40), Fake())
    assert (sum(o.trials for o in joint.outcomes), len(laid_out(path)), joint.left) == (16, 2, 3)  # two fifths
    _, joint = joint_of(path, graph, replace(SEARCH, trials=60), Fake())
    assert (sum(o.trials for o in joint.outcomes), len(laid_out(path)), joint.left) == (8, 3, 1)
    _, joint = joint_of(path, graph, replace(SEARCH, trials=60), Fake())
    assert (sum(o.trials for o in joint.outcomes), joint.left) == (0, 1)


def test_what_an_operator_had_in_the_loop_only_stage_is_no_part_of_its_turn_in_a_later_run(tmp_path: Path) -> None:
    path, graph, options = tmp_path / "r.jsonl", network(3), replace(SEARCH, trials=40)
    net, _ = joint_of(path, graph, options, Fake())
    run(path, net.tasks()[0], replace(options, joint=0.0), Fake())
    (late,) = [t for t in net.tasks()[0] if t.key not in laid_out(path)]
    assert net.measured([late], False) > LEAST
    _, joint = joint_of(path, graph, replace(options, trials=80), Fake())
    assert [s.task.key for o in joint.outcomes for s in o.states] == [late.key]
    assert joint.outcomes[0].trials == 16  # two fifths of 80, of which the others have had 16
    assert late.key in laid_out(path)


def test_gains_of_the_joint_stage_are_told_and_its_tasks_have_their_numbers(tmp_path: Path) -> None:
    path, graph, options = tmp_path / "r.jsonl", network(4), replace(SEARCH, trials=40)
    net, joint = joint_of(path, graph, options, Fake())
    first, second = (o.states[0] for o in joint.outcomes)
    assert (first.number, second.number) == (0, 1)
    tasks, numbers = net.tasks()
    last = run(path, tasks, replace(options, trials=16, joint=0.0), Fake(), numbers)  # no trials for any of them
    assert not any(s.gain for s in last.states)
    outcome = joint.before(last)
    assert [s.gain for s in outcome.states] == [first.gain, second.gain, None, None]
    assert first.gain is not None
    assert first.gain >= 2
    assert outcome.bound[0] == pytest.approx(2e-3)
    assert outcome.trials == 16
    assert outcome.unreached == 2

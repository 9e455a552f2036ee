"""Features of loops: right for single configurations, and the same alone as in a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlc.ir import te
from mlc.ir.graph import Builder, Node
from mlc.ir.types import TensorType, f32
from mlc.lower.bounds import infer
from mlc.lower.inline import inline
from mlc.lower.knobs import Knobs
from mlc.lower.schedule import Schedule
from mlc.lower.symbolic import Ways
from mlc.lower.terms import Terms
from mlc.ops import get
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import Target, get_target
from mlc.tuning.features import LoopFeatures
from mlc.tuning.features.context import (
    BUFFER,
    BUFFERS,
    KINDS,
    LOOPS,
    NUMBERS,
    OTHERS,
    PER_LOOP,
    SIZES,
    Chain,
    Chains,
    described,
    outline_of,
)
from mlc.tuning.features.identity import identity_of
from mlc.tuning.features.nest import Nests
from mlc.tuning.features.nodes import NODE, PRESENT
from mlc.tuning.features.program import Programs
from mlc.tuning.task import Task, candidate, tasks_of


@pytest.fixture(scope="module")
def target() -> Target:
    return get_target("x86 -mcpu=haswell")


@pytest.fixture(scope="module")
def task(target: Target) -> Task:
    g = Builder("product")
    a = g.input("a", TensorType((30, 64), f32))
    w = g.constant(np.ones((64, 48), np.float32), "w")
    (p,) = g.add(get("matmul"), [a, w], names=["p"])
    (r,) = g.add(get("relu"), [p], names=["r"])
    (found,) = tasks_of(g.finish([r]), target, CompileOptions("product", "onnx", ""), Observer())
    return found


def _valid(task: Task, features: LoopFeatures, n: int) -> np.ndarray:
    rows = task.space.sample(np.random.default_rng(1), 50 * n)
    return rows[features.valid(rows)][:n]


def in_order(task: Task, target: Target, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The loops around the heaviest stage, ``[n, LOOPS, PER_LOOP]``, and which of them exist."""
    found = LoopFeatures(task, target, tree=True)(rows)[:, :LOOPS]
    return found[..., NODE:], found[..., PRESENT] > 0


def test_a_batch_is_described_like_each_of_its_members(task: Task, target: Target) -> None:
    features = LoopFeatures(task, target)
    rows = _valid(task, features, 60)
    together = features(rows)
    assert together.shape == (60, features.width)
    assert np.isfinite(together).all()
    for row, found in zip(rows, together, strict=True):
        np.testing.assert_array_equal(LoopFeatures(task, target)(row[None])[0], found)


def test_extents_are_those_of_the_lowered_nest(task: Task, target: Target) -> None:
    features = LoopFeatures(task, target)
    rows = _valid(task, features, 40)
    sequence, mask = in_order(task, target, rows)
    assert sequence.shape == (40, LOOPS, PER_LOOP)
    node = candidate(task, target, task.space.default)
    for row, loops, there in zip(rows, sequence, mask, strict=True):
        schedule = target.schedule(node, Knobs(task.space.config(row)))
        assert schedule is not None
        inline(schedule)
        nests = infer(schedule)
        stage = next(s for s in schedule.stages if not s.inlined and s.op.combiner is not None)
        assert stage.attach is not None
        chain, at = [(stage, a) for a in stage.leaves], stage.attach
        while at is not None:
            host = at.stage
            chain = [(host, a) for a in host.leaves[: host.leaves.index(at.axis) + 1]] + chain
            at = host.attach
        found = 2.0 ** loops[there, 0]
        np.testing.assert_allclose(found, [nests[s].loops[a].hi + 1 for s, a in chain], rtol=1e-5)
        kinds = [s.kinds.get(a, KINDS[0]) for s, a in chain]
        assert [KINDS[k] for k in loops[there, 4 : 4 + len(KINDS)].argmax(axis=1)] == kinds


def test_touched_bytes_of_the_whole_nest_are_the_operands(task: Task, target: Target) -> None:
    features = LoopFeatures(task, target)
    rows = _valid(task, features, 60)
    rows = rows[task.space.column(rows, "depth", 0) == 1]  # no partial sums
    sequence, mask = in_order(task, target, rows)
    for loops, there in zip(sequence, mask, strict=True):
        outermost = loops[there][0]
        nbytes = sorted(2.0 ** outermost[4 + len(KINDS) :: 3][:2])
        assert nbytes == pytest.approx(sorted([30 * 64 * 4, 64 * 48 * 4]), rel=0.2)  # of whole tiles


def test_refused_configurations_are_told(task: Task, target: Target) -> None:
    features = LoopFeatures(task, target)
    space = task.space
    row = space.row({"vectors": 6, "rows": 8})
    assert not features.valid(row[None])[0]
    assert not features(row[None]).any()
    assert features.valid(space.row({})[None])[0]


class Faulty:
    """A target that fails on some schedules: on those of many rows, as a user's own template may."""

    def __init__(self, target: Target, error: BaseException) -> None:
        self._target, self._error = target, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def schedule(self, node: Node, knobs: Knobs) -> Schedule | None:
        found = self._target.schedule(node, knobs)
        asked = knobs.asked["rows"]
        if knobs.discrete("rows", asked.values, default=knobs.defaults["rows"]) > 4:
            raise self._error
        return found


def test_a_template_that_fails_costs_its_configurations_their_description_only(
    task: Task, target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    faulty: Any = Faulty(target, KeyError("no such\naxis"))
    features, whole = LoopFeatures(task, faulty), LoopFeatures(task, target)
    rows = task.space.sample(np.random.default_rng(1), 500)
    many = task.space.column(rows, "rows") > 4
    good = whole.valid(rows)
    assert (good & many).any()
    assert (good & ~many).any()
    np.testing.assert_array_equal(features.valid(rows), good)  # who builds them says what becomes of them
    found = features(rows)
    assert not found[many].any()
    np.testing.assert_array_equal(found[~many], whole(rows)[~many])
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"{task.name}: a configuration cannot be described and is tried without: KeyError" in record.message
    assert "rows=" in record.message


def test_an_expression_that_features_fail_on_is_not_described(
    task: Task, target: Target, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("float division by zero")

    rows = _valid(task, LoopFeatures(task, target), 60)
    monkeypatch.setattr(Nests, "of", fail)
    features = LoopFeatures(task, target)
    assert features.valid(rows).all()
    assert not features(rows).any()
    assert ["ZeroDivisionError" in r.message for r in caplog.records] == [True]


def test_an_interruption_of_a_template_passes(task: Task, target: Target) -> None:
    faulty: Any = Faulty(target, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        LoopFeatures(task, faulty).valid(task.space.sample(np.random.default_rng(1), 500))


def test_what_follows_from_extents_and_touched_memory(task: Task, target: Target) -> None:
    features = LoopFeatures(task, target)
    rows = _valid(task, features, 40)
    sequence, mask = in_order(task, target, rows)
    assert not sequence[~mask].any()
    for loops, there in zip(sequence, mask, strict=True):
        extent, outside, inside = loops[there, :3].T
        np.testing.assert_allclose(outside, np.cumsum(extent) - extent, atol=1e-5)
        np.testing.assert_allclose(inside, np.cumsum(extent[::-1])[::-1], atol=1e-5)
        for b in range(3):  # the product reads two buffers and writes one
            nbytes, reuse, _ = loops[there, BUFFER + 3 * b : BUFFER + 3 * b + 3].T
            np.testing.assert_allclose(reuse, np.maximum(inside - (nbytes - 2), 0), atol=1e-5)
        assert not loops[:, BUFFER + 9 :].any()


def test_the_relation_of_loops_is_that_of_each_configuration(task: Task, target: Target) -> None:
    features = LoopFeatures(task, target, loops=False)
    rows = _valid(task, features, 40)
    sequence, mask = in_order(task, target, rows)
    found = features(rows)[:, : 3 * BUFFERS * len(SIZES)].reshape(40, BUFFERS, len(SIZES), 3)
    for loops, there, figures in zip(sequence, mask, found, strict=True):
        loops = loops[there]
        for b in range(BUFFERS):
            nbytes, reuse = loops[:, BUFFER + 3 * b], loops[:, BUFFER + 3 * b + 1]
            for size, (most, starts, work) in zip(SIZES, figures[b], strict=True):
                small = np.flatnonzero(nbytes < size)
                if len(small):
                    k = small[0]
                    assert (most, starts, work) == (reuse[k:].max(), loops[k, 1], loops[k, 2])
                else:
                    assert (most, work) == (0, 0)
                    assert starts == pytest.approx(loops[:, 0].sum(), rel=1e-5)


def test_loops_beyond_those_described_count_as_outside() -> None:
    numbers = np.ones((NUMBERS, 2))
    numbers[-1 - 3 * OTHERS] = (1, 6)
    numbers[0] = 4  # the extent of the first loop
    chains = Chains.of([Chain((), LOOPS, np.zeros((LOOPS, 5), np.float32), (2.0,))] * 2)
    loops, _ = described(numbers, chains)
    np.testing.assert_allclose(loops[:, 1].T, np.log2([[1] + [4] * 11, [6] + [24] * 11]))


def test_formulas_that_differ_in_knobs_alone_share_a_program() -> None:
    terms, programs = Terms(), Programs()
    a, b, c = (terms.whole(None, (), f"k{k}") for k in (2, 3, 5))
    call = terms.call
    first, wholes = programs.of([call("least", a * b, 4.0), a / b, 1.0])
    second, others = programs.of([call("least", c * a, 4.0), c / a, 1.0])
    assert first is second
    assert [(t.knob, o.knob) for t, o in zip(wholes, others, strict=True)] == [("k3", "k2"), ("k2", "k5")]
    for different in ([call("least", a * b, 5.0), a / b, 1.0], [call("least", a * b, 4.0), b / a, 1.0], [a / b]):
        assert programs.of(different)[0] is not first
    values = np.array([[4.0, 1.0, 2.0], [1.0, 2.0, 3.0]])  # of b, then of a
    found = np.zeros((3, 3))
    first.run(values, found)
    np.testing.assert_array_equal(found, [[4, 2, 4], [0.25, 2, 1.5], [1, 1, 1]])


def test_schedules_of_one_identity_have_one_outline(task: Task, target: Target) -> None:
    node = candidate(task, target, task.space.default)

    def template(knobs: Knobs) -> Schedule | None:
        schedule = target.schedule(node, knobs)
        if schedule is not None:
            inline(schedule)
        return schedule

    ways = Ways(template, task.space)
    found = [way.result for way, _ in ways.split(task.space.sample(np.random.default_rng(1), 2000)) if way.result]
    outlines: dict[Any, Any] = {}
    for schedule in found:
        outline = outline_of(Nests(schedule, ways.terms))
        assert outlines.setdefault(identity_of(schedule), outline.key) == outline.key
    assert 1 < len(outlines) < len(found)


def _scheduled(size: int, factor: int, kind: str, swapped: bool = False, reads: int = 0) -> Schedule:
    a = te.placeholder((size, 8), f32, "a")
    b = te.compute((size, 4), lambda i, j: a[i, j + reads], "b")
    s = Schedule([b])
    outer, inner = s[b].split(s[b].op.axes[1], factor)
    if swapped:
        s[b].reorder(inner, outer)
    getattr(s[b], kind)(inner)
    return s


def test_what_an_identity_tells_apart() -> None:
    cases: list[tuple[Any, ...]] = [
        (6, 2, "unroll"), (7, 2, "unroll"), (6, 4, "unroll"), (6, 2, "vectorize"), (6, 2, "unroll", True),
        (6, 2, "unroll", False, 3),
    ]  # fmt: skip
    assert len({identity_of(_scheduled(*case)) for case in cases}) == len(cases)
    assert identity_of(_scheduled(*cases[0])) == identity_of(_scheduled(*cases[0]))

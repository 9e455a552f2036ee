"""What candidates may do, and what becomes of it (RELIABILITY): a classified result, and the next one is measured."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import numpy as np
import pytest

from mlc.records.measurement import Failure, Measurement
from mlc.tuning.measure import LocalMeasurer, MeasureOptions, roles
from mlc.tuning.measure.timing import Rule, Sample, Timing, take
from tests.e2e.measure.faulty import QUICK, FaultyTarget
from tests.unit.tuning.measure.tasks import OPTIONS, product, task_of


def measured(measurer: LocalMeasurer, fault: str) -> Measurement:
    """What becomes of a faulty candidate; a sound one after it is measured as ever."""
    bad, good = measurer.measure(0, [{"fault": fault}, {}])
    assert good.failure is None, good.message
    assert good.seconds is not None
    assert good.seconds > 0
    assert bad.seconds is None
    return bad


def gone(pid: int) -> bool:
    """Whether a process has ended, now or soon."""
    for _ in range(200):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0] == "Z":
                return True
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("fault", ["sleep", "stubborn", "grandchild"])
def test_a_compiler_that_hangs_is_killed_with_all_that_it_started(
    measurer: LocalMeasurer, target: FaultyTarget, fault: str
) -> None:
    bad = measured(measurer, fault)
    assert bad.failure is Failure.BUILD_TIMEOUT
    assert "2 s" in bad.message
    if fault == "grandchild":
        assert gone(int((target.folder / fault).read_text(encoding="ascii")))


def test_who_leaves_the_group_is_found_all_the_same(measurer: LocalMeasurer, target: FaultyTarget) -> None:
    bad = measured(measurer, "runaway")
    assert bad.failure is Failure.BUILD_TIMEOUT  # it holds the connection, so nothing tells that the compiler is gone
    assert gone(int((target.folder / "runaway").read_text(encoding="ascii")))


@pytest.mark.parametrize(
    "fault, failure, words",
    [
        ("talkative", Failure.BUILD_ERROR, "died of SIGABRT: xxx"),
        ("hungry", Failure.BUILD_MEMORY, ""),
        ("starved", Failure.BUILD_MEMORY, "out of memory"),
        ("wrong", Failure.BUILD_ERROR, "no such instruction"),
        ("bug", Failure.BUILD_ERROR, "KeyError: 'a bug'"),
    ],
)
def test_a_compiler_that_fails_is_a_result(measurer: LocalMeasurer, fault: str, failure: Failure, words: str) -> None:
    bad = measured(measurer, fault)
    assert bad.failure is failure
    assert words in bad.message
    assert len(bad.message) < 400


@pytest.mark.parametrize(
    "fault, failure, words",
    [
        ("null", Failure.RUN_CRASH, "SIGSEGV"),
        ("illegal", Failure.RUN_CRASH, "SIGILL"),
        ("divide", Failure.RUN_CRASH, "SIGFPE"),
        ("stack", Failure.RUN_CRASH, "SIGSEGV"),
        ("code", Failure.RUN_CRASH, "code 3"),
        ("memory", Failure.RUN_CRASH, "SIGSEGV"),  # all that it may have; then malloc gives nothing
        ("forever", Failure.RUN_TIMEOUT, "2 s"),
        ("beyond", Failure.WRONG_MEMORY, "past the end of buffer 2"),
        ("before", Failure.WRONG_MEMORY, "before buffer 2"),
        ("input", Failure.WRONG_MEMORY, "changed input 0"),
        ("nothing", Failure.WRONG_OUTPUT, "p: "),
        ("one", Failure.WRONG_OUTPUT, "at [19, 17]"),
        ("nan", Failure.WRONG_OUTPUT, "NaN only in the output, at [0, 5]"),
        ("later", Failure.WRONG_OUTPUT, "p: "),
        ("garbage", Failure.BAD_REPLY, "not a message"),
        ("huge", Failure.BAD_REPLY, "1073741824 bytes"),
        ("cut", Failure.BAD_REPLY, "broke off"),
    ],
)
def test_a_kernel_that_misbehaves_is_a_result(
    measurer: LocalMeasurer, fault: str, failure: Failure, words: str
) -> None:
    bad = measured(measurer, fault)
    assert bad.failure is failure, bad
    assert words in bad.message


def test_a_refused_configuration_is_a_result(measurer: LocalMeasurer) -> None:
    bad, good = measurer.measure(0, [{"rows": 4096}, {}])
    assert bad.failure is Failure.REFUSED
    assert "rows" in bad.message
    assert good.failure is None


def test_the_innocent_are_compared_without_the_guilty(measurer: LocalMeasurer) -> None:
    results = measurer.compare(0, [{}, {"fault": "null"}, {"fault": "wrong"}, {"fault": "one"}, {}])
    failures = [r.failure for r in results]
    assert failures == [None, Failure.RUN_CRASH, Failure.BUILD_ERROR, Failure.WRONG_OUTPUT, None]


def test_a_time_that_cannot_be_is_no_result(target: FaultyTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    def lie(sample: Sample, rule: Rule, *others: float) -> Timing:
        nonlocal asked
        asked += 1
        return take(sample, rule) if asked == 1 else Timing(1000, (1,) * 7)  # the first is the anchor

    monkeypatch.setattr(roles, "take", lie)
    with LocalMeasurer(
        [task_of(product(), target)], target, threads=1, compile_options=OPTIONS, rng=np.random.default_rng(0)
    ) as measurer:
        (bad,) = measurer.measure(0, [{}])
    assert bad.failure is Failure.IMPLAUSIBLE
    assert "1e-12 s" in bad.message


def test_a_disturbed_anchor_makes_nothing_faster_than_the_machine(measurer: LocalMeasurer) -> None:
    measurer.measure(0, [{}])
    least = measurer.least_seconds(0)
    timing = Timing(1, (round(1.2e9 * least * 1000),) * 7)
    timing = Timing(1000, timing.ns)
    believed, doubted = measurer.plausible(0, timing, 0.9, False), measurer.plausible(0, timing, 0.5, False)
    assert believed.seconds == pytest.approx(1.08 * least, rel=1e-3)
    assert not believed.noisy
    assert doubted.seconds == pytest.approx(1.2 * least, rel=1e-3)
    assert doubted.noisy
    assert measurer.plausible(0, timing, 1.0, False).seconds == doubted.seconds


def test_nothing_is_measured_without_a_sound_untuned_configuration(target: FaultyTarget) -> None:
    task = task_of(product(), target)
    task.space.default["fault"] = "one"  # type: ignore[index]
    options = MeasureOptions(run_timeout=2.0, rule=QUICK)
    with LocalMeasurer(
        [task], target, threads=1, compile_options=OPTIONS, options=options, rng=np.random.default_rng(0)
    ) as measurer:
        results = measurer.measure(0, [{"rows": 2}, {"rows": 1}])
    assert [r.failure for r in results] == [Failure.WRONG_OUTPUT] * 2
    assert all("untuned" in r.message for r in results)


def test_no_process_is_left(target: FaultyTarget) -> None:
    measurer = LocalMeasurer(
        [task_of(product(), target)], target, threads=1, compile_options=OPTIONS, rng=np.random.default_rng(0)
    )
    measurer.measure(0, [{}])
    zygote = measurer._zygote.pid
    workers = [int(p) for p in Path(f"/proc/{zygote}/task/{zygote}/children").read_text(encoding="ascii").split()]
    assert workers
    measurer.close()
    measurer.close()
    assert all(gone(pid) for pid in (zygote, *workers))


def test_all_processes_go_when_their_owner_is_killed(target: FaultyTarget, tmp_path: Path) -> None:
    owner = os.fork()
    if owner == 0:
        try:
            made = LocalMeasurer(
                [task_of(product(), target)], target, threads=1, compile_options=OPTIONS, rng=np.random.default_rng(0)
            )
            target.folder = tmp_path
            (tmp_path / "zygote").write_text(str(made._zygote.pid), encoding="ascii")
            made.measure(0, [{}])
            (tmp_path / "ready").touch()
            made.measure(0, [{"fault": "sleep"}, {"fault": "forever"}])
        finally:
            os._exit(1)
    while not (tmp_path / "ready").exists():
        time.sleep(0.02)
    zygote = int((tmp_path / "zygote").read_text(encoding="ascii"))
    workers = [int(p) for p in Path(f"/proc/{zygote}/task/{zygote}/children").read_text(encoding="ascii").split()]
    os.kill(owner, 9)
    os.waitpid(owner, 0)
    assert workers
    assert all(gone(pid) for pid in (zygote, *workers))

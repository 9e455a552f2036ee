"""A board by itself: what it refuses, what it gives up, and that nothing of it is left."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mlc.errors import DeviceError, UsageError
from mlc.pool.board import DRAIN, Board
from mlc.pool.jobs import MeasureJob, Results
from mlc.pool.offers import BoardInfo, Offer, resource_of
from mlc.pool.parcel import Parcel
from mlc.pool.remote import RunJob
from mlc.pool.trial import product_job
from mlc.targets.base import get_target

CORES = (max(os.sched_getaffinity(0)),)


@pytest.fixture(scope="module")
def board() -> Iterator[Board]:
    with Board("box", ["x86"], kinds=["measure"], cores=CORES, memory=2 << 30) as made:
        yield made


@pytest.fixture(scope="module")
def job() -> MeasureJob:
    return product_job(Offer(resource_of(get_target("x86")), "x86"), "ann")[0]


def answer(board: Board, data: object) -> Parcel:
    return Parcel.from_bytes(board.work(data))


def reason(board: Board, data: object) -> str:
    found = answer(board, data)
    assert found.kind == "refused"
    return str(found.header["reason"])


def test_what_makes_no_sense_is_refused(board: Board, job: MeasureJob) -> None:
    damaged = bytearray(job.parcel().to_bytes())
    damaged[-1] ^= 1
    assert reason(board, b"nonsense") == "box: no parcel"
    assert reason(board, {"no": "bytes"}) == "box: no parcel"
    assert "the checksum does not fit" in reason(board, bytes(damaged))
    assert "bench: is missing" in reason(board, Parcel("measure", {}).to_bytes())
    assert "was not started to run" in reason(board, RunJob("x86", b"", {}).parcel().to_bytes())


def test_times_are_taken_and_a_process_is_kept_for_a_while(board: Board, job: MeasureJob) -> None:
    for _ in range(2):
        (found,) = Results.of(answer(board, job.parcel().to_bytes()).header, 1).found
        assert found.seconds is not None
        assert found.seconds > 0
    again = replace(job, bench=replace(job.bench, client="bob"))
    assert answer(board, again.parcel().to_bytes()).kind == "measure"
    assert len(board._sessions) == 2
    pids = [s.worker.pid for s in board._sessions.values()]
    board.tidy()
    assert len(board._sessions) == 2
    board.tidy(lease=0.0)
    assert not board._sessions
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert board.facts()["busy"] == ""
    assert board.facts()["done"] >= 3


def test_a_program_that_is_none_costs_its_trial_only(board: Board, job: MeasureJob) -> None:
    broken = replace(job, programs=(job.programs[0], b"not an object"))
    (found,) = Results.of(answer(board, broken.parcel().to_bytes()).header, 1).found
    assert found.failure == "build_error"
    (found,) = Results.of(answer(board, job.parcel().to_bytes()).header, 1).found
    assert found.failure is None


def test_who_is_sent_home_gets_no_more_work_before_it_says_so(job: MeasureJob) -> None:
    told = []
    with Board("box", ["x86"], cores=CORES, memory=1 << 30) as board:
        board.leave = lambda: told.append(board.draining)
        assert answer(board, Parcel(DRAIN, {}).to_bytes()).kind == DRAIN
        folder = board.folder
        assert folder.is_dir()
    assert told == [True]
    assert not folder.exists()


def test_a_board_that_is_killed_leaves_no_folder() -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)

    def serve() -> None:
        with Board("box", ["x86"], cores=CORES, memory=1 << 30) as board:
            theirs.send(str(board.folder))
            os.kill(os.getpid(), signal.SIGKILL)

    child = context.Process(target=serve)
    child.start()
    folder = Path(ours.recv())
    child.join()
    until = time.monotonic() + 30.0
    while folder.exists():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize(
    "targets, emulated, error, words",
    [
        (["vdla"], False, UsageError, "only processors can be had through a pool"),
        (["nothing"], False, UsageError, "unknown target"),
        (["arm -mcpu=cortex-a72"], False, DeviceError, "compiled for aarch64"),
        (["x86"], True, DeviceError, "nothing is to be emulated"),
    ],
)
def test_a_board_is_there_for_what_it_can_do(
    targets: list[str], emulated: bool, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        Board("box", targets, cores=CORES, memory=1 << 30, emulated=emulated)


def test_what_a_board_tells_of_itself_is_read_strictly(board: Board) -> None:
    told = board.facts()
    found = BoardInfo.from_json(told, "tls://somewhere:1")
    assert (found.name, found.threads, found.kinds, found.address) == ("box", 1, ("measure",), "tls://somewhere:1")
    assert found.has("x86")
    assert found.has(resource_of(get_target("x86")))
    assert found.has("x86", 2 << 30)
    assert not found.has("x86", (2 << 30) + 1)
    assert not found.has("arm")
    assert board.resources["memory"] == 2048
    for wrong in (None, [], {**told, "more": 1}, {**told, "threads": 0}, {**told, "offers": [1]}):
        with pytest.raises(Exception, match=r"expected|is not a field"):
            BoardInfo.from_json(wrong, "")


def test_results_that_make_no_sense_are_none() -> None:
    good = {
        "seconds": 1e-3, "spread": 0.0, "failure": None, "message": "", "noisy": False, "run_seconds": 0.1
    }  # fmt: skip
    assert Results.of({"results": [good], "peak": 1.0}, 1).found[0].seconds == 1e-3
    for some in (
        [{**good, "seconds": -1.0}],
        [{**good, "seconds": 0}],
        [{**good, "seconds": float("nan")}],
        [{**good, "seconds": None}],
        [{**good, "seconds": None, "failure": "bored"}],
        [{**good, "failure": "run_crash"}],
        [{**good, "spread": "wide"}],
        [good, good],
        [],
        "none",
    ):
        with pytest.raises(Exception, match=r"expected|either|results of 1"):
            Results.of({"results": some, "peak": 1.0}, 1)


def test_arrays_travel_as_they_are() -> None:
    scalar, empty = np.array(2.5, np.float32), np.zeros((0, 3), np.int8)
    feeds = {"a": np.arange(6, dtype=np.int64).reshape(2, 3).T, "s": scalar, "e": empty, "b": np.array([True, False])}
    found = RunJob.of(Parcel.from_bytes(RunJob("x86", b"module", feeds, 7, 2, "ann").parcel().to_bytes()))
    assert (found.module, found.seed, found.threads) == (b"module", 7, 2)
    for name, array in feeds.items():
        assert found.feeds[name].dtype == array.dtype
        np.testing.assert_array_equal(found.feeds[name], array)
        assert found.feeds[name].shape == array.shape

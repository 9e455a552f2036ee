"""A board by itself: what it refuses, what it gives up, and that nothing of it is left."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import signal
import tarfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import mlc
from mlc.errors import DeviceError, UnsupportedError, UsageError
from mlc.pool.board import DRAIN, Board
from mlc.pool.building import BuildJob
from mlc.pool.jobs import MeasureJob, Results, Sent, types_of
from mlc.pool.offers import BoardInfo, Kind, Offer, building_for, resource_of
from mlc.pool.parcel import Parcel
from mlc.pool.processes import Process
from mlc.pool.remote import RunJob
from mlc.pool.trial import product_job
from mlc.targets.base import get_target
from tests.e2e.compiled import load, network

CORES = (max(os.sched_getaffinity(0)),)


@pytest.fixture(scope="module")
def board() -> Iterator[Board]:
    with Board("box", ["x86"], kinds=[Kind.MEASURE], cores=CORES, memory=2 << 30) as made:
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


def archive(name: str, link: str = "") -> bytes:
    """A tar with one member."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = (tarfile.SYMTYPE, link) if link else (tarfile.REGTYPE, "")
        tar.addfile(member)
    return made.getvalue()


def test_modules_are_looked_at_as_those_of_files_are(tmp_path: Path) -> None:
    """Whatever a client sends is refused in words that do not tell of the board's files, and costs it nothing."""
    x = np.array([[-1, 2]], np.float32)
    model = load(network([helper.make_node("Relu", ["x"], ["y"])], {"x": x}, ["y"]))
    ours, foreign = (mlc.compile(model, target) for target in ("x86", "arm"))
    ours.save(tmp_path / "ours.tar")
    foreign.save(tmp_path / "foreign.tar")
    good = (tmp_path / "ours.tar").read_bytes()
    flipped = good.replace(ours.members["lib/model.o"], b"\0" * len(ours.members["lib/model.o"]))
    with Board("box", ["x86"], kinds=[Kind.RUN], cores=CORES, memory=2 << 30) as board:
        for module, feeds, words in (
            (b"nonsense", {"x": x}, "box: the module: is only 8 bytes long"),
            (archive("../escape"), {"x": x}, "is not a name that a package may have"),
            (archive("manifest.json", "/etc/passwd"), {"x": x}, "is not a regular file"),
            (good[:-2048], {"x": x}, "box: the module: "),
            (flipped, {"x": x}, "does not match its SHA-256"),
            ((tmp_path / "foreign.tar").read_bytes(), {"x": x}, "compiled for aarch64"),
            (good, {}, "input 'x' is missing"),
            (good, {"x": x[:, :1]}, "expected f32[1,2], got f32[1,1]"),
            (good, {"x": x, "z": x}, "unknown input 'z'"),
        ):
            said = reason(board, RunJob("x86", module, feeds).parcel().to_bytes())
            assert words in said
            assert "/proc" not in said
        assert "was not started for arm" in reason(board, RunJob("arm", good, {}).parcel().to_bytes())
        assert answer(board, RunJob("x86", good, {"x": x}).parcel().to_bytes()).parts == (np.maximum(x, 0).tobytes(),)


def test_boards_whose_times_cannot_be_compared_are_other_resources() -> None:
    texts = (
        "x86 -mcpu=haswell",
        "x86 -mcpu=skylake-avx512",
        "arm -mcpu=cortex-a76",
        "arm -mcpu=cortex-a76 -mattr=-dotprod",
    )
    found = [resource_of(get_target(text)) for text in texts]
    found.append(resource_of(get_target(texts[2]), emulated=True))
    assert len(set(found)) == len(found)
    assert resource_of(get_target("arm -mcpu=cortex-a76 -libc=musl")) == found[2]


def test_times_are_taken_and_a_process_is_kept_for_a_while(board: Board, job: MeasureJob) -> None:
    for _ in range(2):
        (found,) = Results.of(answer(board, job.parcel().to_bytes()).header, 1).found
        assert found.seconds is not None
        assert found.seconds > 0
    again = replace(job, bench=replace(job.bench, told=replace(job.bench.told, client="bob")))
    assert answer(board, again.parcel().to_bytes()).kind == "measure"
    pids = board._processes.idle
    assert len(pids) == 2
    board.tidy()
    assert board._processes.idle == pids
    board._processes.tidy(lease=0.0)
    assert not board._processes.idle
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert board.facts()["busy"] == ""
    assert board.facts()["done"] >= 3


def test_a_program_that_is_none_costs_its_trial_only(board: Board, job: MeasureJob) -> None:
    broken = replace(job, programs=(job.programs[0], b"not an object"))
    (found,) = Results.of(answer(board, broken.parcel().to_bytes()).header, 1).found
    assert found.failure == "build_error"
    (found,) = Results.of(answer(board, job.parcel().to_bytes()).header, 1).found
    assert found.failure is None


def test_a_task_that_is_too_large_costs_its_own_process_only(board: Board, job: MeasureJob) -> None:
    """Beyond what a workload may have, beyond what a piece of work may take, beyond what its process may."""
    target = get_target("x86")

    def of_columns(count: int, types: list[Any] | None = None) -> bytes:
        document = json.loads(json.dumps(job.bench.told.document).replace("256", str(count)))
        told = replace(job.bench.told, document=document)
        task = told.task(target) if types is None else None
        config = task.space.default if task else job.candidates[0].config
        sent = Sent(config, 0, types_of(task, target, config) if task else [])
        return replace(job, bench=replace(job.bench, told=told), candidates=(sent, sent)).parcel().to_bytes()

    assert "the limit is" in reason(board, of_columns(1 << 31, []))
    (lost,) = Results.of(answer(board, of_columns(1 << 22)).header, 1).found
    assert (lost.seconds, lost.failure) == (None, "build_oom")
    assert "Unable to allocate" in lost.message
    assert "Cannot allocate memory" in reason(board, of_columns(1 << 24))
    (found,) = Results.of(answer(board, job.parcel().to_bytes()).header, 1).found
    assert found.seconds


@pytest.fixture(scope="module")
def builder() -> Iterator[Board]:
    with Board("mill", ["x86", "arm -mcpu=cortex-a72"], kinds=[Kind.BUILD], cores=CORES * 2, memory=2 << 30) as made:
        yield made


def build_job(job: MeasureJob, target: str = "x86") -> BuildJob:
    untuned = job.candidates[0]
    told = replace(job.bench.told, resource=resource_of(get_target(target)))
    return BuildJob(told, replace(untuned, scratch=0), 3, True, 30.0)


def test_what_is_built_for_others_is_what_they_would_have_built(builder: Board, job: MeasureJob) -> None:
    assert builder.at_once == 2
    assert all(n == 2 for name, n in builder.resources.items() if name != "memory")
    with ThreadPoolExecutor(2) as pool:
        parcels = [build_job(job).parcel().to_bytes()] * 4
        found = [Parcel.from_bytes(data) for data in pool.map(builder.work, parcels)]
    assert [p.parts for p in found] == [(job.programs[0],)] * 4
    assert {p.header["scratch"] for p in found} == {job.candidates[0].scratch}
    assert builder.facts()["busy"] == ""


def test_what_cannot_be_built_is_its_own_fault_or_refused(builder: Board, job: MeasureJob) -> None:
    good = build_job(job)
    config = {**good.candidate.config, "order": "backwards"}
    assert reason(builder, Parcel("build", {}).to_bytes()) == "mill: told: is missing"
    assert reason(builder, job.parcel().to_bytes()) == "mill: it was not started to measure"
    for wrong, words in (
        (replace(good, told=replace(good.told, resource="x86:haswell:0")), "it was not started for x86:haswell:0"),
        (replace(good, told=replace(good.told, document={"nodes": 1})), "row_major: is missing"),
        (replace(good, candidate=replace(good.candidate, types=[])), "lie in memory otherwise than here"),
    ):
        assert words in reason(builder, wrong.parcel().to_bytes())
    senseless = replace(good, candidate=replace(good.candidate, config=config))
    assert answer(builder, senseless.parcel().to_bytes()).header["failure"] == "refused"
    hurried = answer(builder, replace(good, timeout=0.0).parcel().to_bytes())  # it has begun within half a minute
    assert hurried.parts == (job.programs[0],)


def test_a_compiler_that_dies_costs_its_candidate_only(
    builder: Board, job: MeasureJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*args: object, **options: object) -> Process:
        process = take(*args, **options)
        os.kill(process.worker.pid, signal.SIGKILL)
        return process

    take = builder._processes.take
    monkeypatch.setattr(builder._processes, "take", killed)
    lost = answer(builder, build_job(job).parcel().to_bytes())
    assert (lost.header["failure"], lost.parts) == ("build_oom", (b"",))
    monkeypatch.undo()
    assert answer(builder, build_job(job).parcel().to_bytes()).parts == (job.programs[0],)


@pytest.mark.parametrize("kinds, emulated", [([Kind.BUILD, Kind.RUN], False), ([Kind.BUILD], True)])
def test_who_builds_does_nothing_else(kinds: list[Kind], emulated: bool) -> None:
    with pytest.raises(UsageError, match="builds measures and runs nothing"):
        Board("box", ["x86"], kinds=kinds, cores=CORES, memory=1 << 30, emulated=emulated)


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
        (["vdla"], False, UnsupportedError, "vdla: cannot be tuned through a pool"),
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
    assert not found.has("x86")  # it was not started to run modules
    assert BoardInfo.from_json({**told, "kinds": ["run"]}, "").resources == {"x86"}
    assert BoardInfo.from_json({**told, "kinds": ["build"]}, "").resources == {
        building_for(told["offers"][0]["resource"])
    }
    assert found.has(resource_of(get_target("x86")))
    assert found.has(resource_of(get_target("x86")), 2 << 30)
    assert not found.has(resource_of(get_target("x86")), (2 << 30) + 1)
    assert not found.has(resource_of(get_target("x86"), emulated=True))
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

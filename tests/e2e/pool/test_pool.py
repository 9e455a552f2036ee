"""A pool on the loopback: who gets what of it, and what becomes of work when parties die."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("distributed")
pytest.importorskip("cryptography")

from distributed import WorkerPlugin

import mlc
from mlc.errors import DeviceError
from mlc.pool import client, cluster
from mlc.pool.board import Board
from mlc.pool.certificates import Authority, Role
from mlc.pool.client import Pool
from mlc.pool.jobs import MeasureJob, Results
from mlc.pool.offers import Offer, resource_of
from mlc.pool.parcel import Parcel
from mlc.pool.trial import product_job
from mlc.records.files import read_records
from mlc.records.measurement import Failure
from mlc.records.record import DECIDED, Record
from mlc.targets.base import get_target
from mlc.targets.llvm.module import Machine, compile_text
from mlc.tuning import whole
from tests.e2e.measure.faulty import KERNELS
from tests.emulated import needs_emulator
from tests.pool import LocalPool, Party, local_pool
from tests.steady import DELAY, LIE, LIES, LOG

TARGETS = {"x86": "tests.steady:SteadyTarget"}
TRIALS = 9
BOARDS = ("one", "two", "three")
ARM = "arm -mcpu=cortex-a53"
emulated = not needs_emulator.args[0]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalPool]:
    """A scheduler, three boards with this processor, and one with another one, emulated, where there is an emulator."""
    with pytest.MonkeyPatch.context() as patched, local_pool(tmp_path_factory.mktemp("pool"), TARGETS) as made:
        patched.setattr(whole, "SECONDS", 0.2)
        patched.setattr(cluster, "_AGAIN", 0.2)
        made.hub = made.scheduler()
        for name in BOARDS:
            begin(made, name)
        made.boards["mill"] = made.board("mill", "--only", "build")
        if emulated:
            made.boards["four"] = made.board("four", "--target", ARM, "--emulate")
        for party in made.boards.values():
            party.has_said("serves")
        yield made


def begin(pool: LocalPool, name: str) -> None:
    pool.boards[name] = pool.board(name, environment=environment(pool))


def environment(pool: LocalPool) -> dict[str, str]:
    return {LOG: str(pool.folder / "log.jsonl"), LIES: str(pool.folder / "lies"), DELAY: "0.03"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    w = numpy_helper.from_array(rng.normal(size=(64, 96)).astype(np.float32), "w")
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [48, k]) for n, k in (("x", 64), ("y", 96)))
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "product", [x], [y], [w])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    return path


def trials(path: Path) -> list[Record]:
    return [r for r in read_records([path]).records if r.explorer != DECIDED] if path.exists() else []


def until(found: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end
        time.sleep(0.02)


def results(path: Path) -> Counter[tuple[object, ...]]:
    """Trials and decisions, whatever their order and whenever they were made."""
    return Counter(
        (r.workload, json.dumps(dict(r.config), sort_keys=True), r.result.seconds, r.result.failure, r.explorer, r.seed)
        for r in read_records([path]).records
    )


def test_a_run_in_the_pool_leaves_the_records_of_one_at_home(pool: LocalPool, model: Path, tmp_path: Path) -> None:
    trials = ("--trials", str(TRIALS), "--seed", "3")
    there = pool.tune("ann", model, tmp_path / "there.jsonl", *trials)
    built = pool.tune("bob", model, tmp_path / "built.jsonl", *trials, "--pool-build")
    words = ("tune", str(model), "-o", str(tmp_path / "here.jsonl"), "--explorer", "random", "--threads", "1")
    here = pool.start(*words, "--no-check", *trials)
    for party in (there, built, here):
        assert party.wait() == 0, party.said.read_text()
    found = results(tmp_path / "here.jsonl")
    assert found.total() >= TRIALS + 1
    assert found == results(tmp_path / "there.jsonl")
    assert found == results(tmp_path / "built.jsonl")


def test_a_worker_that_dies_while_it_builds_costs_nothing(pool: LocalPool, model: Path, tmp_path: Path) -> None:
    records = tmp_path / "r.jsonl"
    party = pool.tune("ann", model, records, "--trials", "14", "--seed", "7", "--pool-build")
    until(lambda: len(trials(records)) > 3)
    pool.boards["mill"].kill()
    pool.boards["mill"] = pool.board("mill", "--only", "build")
    assert party.wait() == 0, party.said.read_text()
    found = trials(records)
    assert len({(r.workload, json.dumps(dict(r.config), sort_keys=True)) for r in found}) == len(found) == 14
    assert all(r.result.failure is None for r in found)


def test_the_whole_model_is_compared_on_a_board(pool: LocalPool, model: Path, tmp_path: Path) -> None:
    words = ("--trials", "2", "--json", str(tmp_path / "t.json"))
    party = pool.tune("ann", model, tmp_path / "r.jsonl", *words, check=True)
    assert party.wait() == 0, party.said.read_text()
    compared = json.loads((tmp_path / "t.json").read_text())["whole"]
    assert compared["untuned_ms"] > 0
    assert compared["tuned_ms"] > 0
    assert compared["error"] < 1e-5
    assert "the model, in turns" in party.said.read_text()


def overlaps(log: Path) -> list[str]:
    """Trials that two processes ran at the same time."""
    runs: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    for line in log.read_text().splitlines():
        note = json.loads(line)
        runs[note["trial"]].append((note["begin"], note["end"], note["pid"]))
    untuned = max(runs, key=lambda trial: len({pid for *_, pid in runs[trial]}))  # every board has it at hand
    return [
        trial
        for trial, found in runs.items()
        for (_, end, pid), (begin, _, other) in zip(sorted(found), sorted(found)[1:], strict=False)
        if trial != untuned and pid != other and begin < end
    ]


def test_two_clients_share_boards_of_which_one_dies(pool: LocalPool, model: Path, tmp_path: Path) -> None:
    log = pool.folder / "log.jsonl"
    log.write_text("")
    both = {
        who: pool.tune(who, model, tmp_path / f"{who}.jsonl", "--trials", str(TRIALS), "--seed", seed)
        for who, seed in (("ann", "1"), ("bob", "2"))
    }
    other = None
    if emulated:
        other = pool.tune("ann", model, tmp_path / "arm.jsonl", "--target", ARM, "--trials", "3", check=True)
    until(lambda: all(len(trials(tmp_path / f"{who}.jsonl")) > 3 for who in both))
    pool.boards["three"].kill()
    tried: list[set[tuple[str, str]]] = []
    for who, party in both.items():
        assert party.wait() == 0, party.said.read_text()
        found = trials(tmp_path / f"{who}.jsonl")
        assert len(found) == TRIALS
        tried.append({(r.workload, json.dumps(dict(r.config), sort_keys=True)) for r in found})
        assert len(tried[-1]) == TRIALS
        assert all(r.result.failure is None for r in found)
    # what both clients happen to try may be on two boards at once
    assert len(overlaps(log)) <= len(tried[0] & tried[1])
    if other is not None:
        assert other.wait() == 0, other.said.read_text()
        assert {r.fingerprint.cpu for r in trials(tmp_path / "arm.jsonl")} == {"cortex-a53"}
        assert len([r for r in trials(tmp_path / "arm.jsonl") if r.result.seconds]) == 3
        assert "its boards are emulated, and their times say nothing" in other.said.read_text()
        assert "the model, in turns" not in other.said.read_text()
    begin(pool, "three")
    pool.boards["three"].has_said("serves")


@pytest.mark.slow  # it takes the scheduler up to a minute to be sure
def test_a_board_that_stands_still_loses_its_work_and_comes_back(pool: LocalPool, model: Path, tmp_path: Path) -> None:
    records = tmp_path / "r.jsonl"
    party = pool.tune("ann", model, records, "--trials", "30", "--seed", "8")
    until(lambda: len(trials(records)) > 3)
    pool.boards["two"].kill(signal.SIGSTOP)
    try:
        assert party.wait(120.0) == 0, party.said.read_text()
        assert "two" not in pool.asked(lambda p: [b.name for b in p.boards()])
    finally:
        pool.boards["two"].kill(signal.SIGCONT)
    found = trials(records)
    assert len({(r.workload, json.dumps(dict(r.config), sort_keys=True)) for r in found}) == len(found) == 30
    assert all(r.result.failure is None for r in found)
    until(lambda: "two" in pool.asked(lambda p: [b.name for b in p.boards()]))


def test_a_scheduler_that_dies_ends_clients_and_both_go_on_when_it_is_back(
    pool: LocalPool, model: Path, tmp_path: Path
) -> None:
    def tune(who: str, seed: str) -> Party:
        return pool.tune(who, model, tmp_path / f"{who}.jsonl", "--trials", "18", "--seed", seed)

    both = {who: tune(who, seed) for who, seed in (("ann", "5"), ("bob", "6"))}
    until(lambda: all(len(trials(tmp_path / f"{who}.jsonl")) > 3 for who in both))
    pool.hub.kill()
    before = {}
    try:
        for who, party in both.items():
            assert party.wait() == 6, party.said.read_text()
            complaints = [line for line in party.said.read_text().splitlines() if line.startswith("error")]
            assert complaints == [f"error: {pool.url}: the pool is gone"], party.said.read_text()
            assert "Traceback" not in party.said.read_text()
            before[who] = trials(tmp_path / f"{who}.jsonl")
            assert 3 < len(before[who]) < 18
    finally:
        pool.hub = pool.scheduler()
    both = {who: tune(who, seed) for who, seed in (("ann", "5"), ("bob", "6"))}
    for who, party in both.items():
        assert party.wait() == 0, party.said.read_text()
        found = trials(tmp_path / f"{who}.jsonl")
        assert found[: len(before[who])] == before[who]
        assert len({(r.workload, json.dumps(dict(r.config), sort_keys=True)) for r in found}) == len(found) == 18


def test_strangers_and_forbidden_work_get_nothing(pool: LocalPool, model: Path, tmp_path: Path) -> None:
    foreign = Authority(tmp_path / "foreign").issue("ann", Role.CLIENT)
    words = ("tune", str(model), "-o", str(tmp_path / "r.jsonl"), "--pool", pool.url, "--trials", "4")
    ours = (*words, "--certificates", pool.certificates("ann"))
    runs = {
        "takes a certificate": (2, words),
        "is not of your pool": (6, (*words, "--certificates", str(foreign))),
        "is the certificate of a board, and not of a client": (2, (*words, "--certificates", pool.certificates("one"))),
        "no board for x86:haswell": (
            6, (*ours, "--target", "x86 -mcpu=haswell"),
        ),
        "vdla: cannot be tuned through a pool": (
            4, (*ours, "--target", "vdla"),
        ),
        "--pool-build is for a pool": (2, (*words[:4], "--pool-build")),
        "not talked to in clear": (2, (*words, "--pool", "tcp" + pool.url[3:])),
    }  # fmt: skip
    parties = {complaint: (code, pool.start(*some)) for complaint, (code, some) in runs.items()}
    for complaint, (code, party) in parties.items():
        assert party.wait(50.0) == code, party.said.read_text()  # not the minute that it waits for a first board
        assert complaint in party.said.read_text()
        assert not trials(tmp_path / "r.jsonl")


def test_who_lies_about_a_time_wins_nothing_by_it(pool: LocalPool, model: Path, tmp_path: Path) -> None:
    """The best few are measured once more before one of them is adopted."""
    (pool.folder / "lies").mkdir()
    party = pool.tune("ann", model, tmp_path / "r.jsonl", "--trials", str(TRIALS), "--seed", "4")
    assert party.wait() == 0, party.said.read_text()
    (pool.folder / "lies").rename(pool.folder / "told")
    found = read_records([tmp_path / "r.jsonl"]).records
    (decided,) = [r for r in found if r.explorer == DECIDED]
    lies = [r for r in found if r.result.seconds == pytest.approx(LIE)]
    assert lies
    assert decided not in lies
    assert decided.result.seconds == min(r.result.seconds or 1.0 for r in found if r not in lies)


def disorderly(pool: Pool) -> list[str]:
    """What comes of dask's own orders to do something else than work."""
    dask = pool._client
    orders: dict[str, Callable[[], object]] = {
        "run on boards": lambda: dask.run(time.time),
        "run on the scheduler": lambda: dask.run_on_scheduler(time.time),
        "take a plug-in": lambda: dask.register_plugin(WorkerPlugin()),
        "end boards": lambda: dask.retire_workers(),
        "start again": lambda: dask.restart(timeout=2),
    }
    found = []
    for what, order in orders.items():
        try:
            found.append(f"{what}: {order()}")
        except ValueError as error:
            if "explicitly disallowed" not in str(error):
                found.append(f"{what}: {error}")
    return found


def test_orders_to_do_something_else_than_work_are_refused(pool: LocalPool) -> None:
    assert pool.asked(disorderly) == []


def misversioned(pool: Pool) -> str:
    """What a client of another version is told, before it has sent anything."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(client, "__version__", "9.9")
        with pytest.raises(DeviceError) as refused:
            pool.wait_for()
    return refused.value.message.partition(": ")[2]


def test_a_client_of_another_version_is_told_before_it_sends_anything(pool: LocalPool) -> None:
    assert pool.asked(misversioned) == f"the board four has mlc {mlc.__version__}, and this is 9.9"


def job() -> MeasureJob:
    """A sound piece of work, which may take two seconds."""
    target = get_target("x86")
    made, _ = product_job(Offer(resource_of(target), "x86"), "test")
    return replace(made, bench=replace(made.bench, run_timeout=2.0))


def faulty(fault: str) -> bytes:
    """A program that does not even begin with what it should do."""
    import llvmlite.binding as llvm

    arguments = "ptr %inputs, ptr %outputs, ptr %params, ptr %workspace, ptr %pool"
    text = f"@zero = internal global i32 0\ndefine i32 @mlc_run({arguments}) {{\n{KERNELS[fault]}\n}}\n"
    llvm.initialize_native_target()
    return compile_text(text, Machine(llvm.get_process_triple(), llvm.get_host_cpu_name(), "", 256))


def hostile(pool: Pool) -> list[str]:
    """What boards say to work that they shall not do."""
    good = job()
    bench = good.bench
    other, nothing = replace(bench.told, resource="x86:haswell:0"), replace(bench.told, document={"nodes": 1})
    some = {
        "of another target": replace(good, bench=replace(bench, told=other)).parcel(),
        "of another version": replace(good.parcel(), version="0.0.0"),
        "of no known kind": Parcel("format-disk", {}),
        "of a task that is none": replace(good, bench=replace(bench, told=nothing)).parcel(),
        "whose operands lie elsewhere": replace(
            good, candidates=tuple(replace(c, types=[{"dtype": "f32", "shape": [1]}]) for c in good.candidates)
        ).parcel(),
        "with more threads than there are": replace(good, bench=replace(bench, threads=999)).parcel(),
        "without programs": Parcel("measure", good.parcel().header),
    }
    found = []
    for parcel in some.values():
        try:
            pool.ask(parcel, bench.told.resource)
            found.append("done")
        except DeviceError as error:
            found.append(error.message.partition("refused: ")[2])
    return found


def test_boards_do_only_what_they_were_started_for(pool: LocalPool) -> None:
    said = pool.asked(hostile)
    wanted = (
        "was not started for x86:haswell:0", "it has mlc", "was not started to format-disk", "row_major: is missing",
        "lie in memory otherwise", "threads, and not 999", "with 0 programs",
    )  # fmt: skip
    assert [text in answer for text, answer in zip(wanted, said, strict=True)] == [True] * len(wanted), said


def crashing(pool: Pool) -> list[object]:
    """A kernel that crashes, one that hangs, one that is no program, and a sound one, on one board."""
    good = job()
    found: list[object] = []
    for fault in ("null", "forever", None, ""):
        program = b"\x7fELF" if fault is None else faulty(fault) if fault else good.programs[1]
        parcel = replace(good, programs=(good.programs[0], program)).parcel()
        (board,) = [b.address for b in pool.boards() if b.name == "one"]
        answer = pool.ask(parcel, good.bench.told.resource, board)
        (m,) = Results.of(answer.header, 1).found
        found.append(m.failure or m.seconds)
    return found


def test_what_a_kernel_breaks_is_its_own_process(pool: LocalPool) -> None:
    *failures, seconds = pool.asked(crashing)
    assert failures == [Failure.RUN_CRASH, Failure.RUN_TIMEOUT, Failure.BUILD_ERROR]
    assert seconds > 0
    assert pool.boards["one"].code is None


def impatient(pool: Pool) -> list[str]:
    """What becomes of work for a board that has gone, for one that has no such target, and of too large work."""
    good = job()
    found = []
    for where in (
        "tls://127.0.0.1:1",
        next((b.address for b in pool.boards() if b.name == "four"), "tls://127.0.0.1:2"),
    ):
        with pytest.raises(DeviceError) as refused:
            pool.ask(good.parcel(), good.bench.told.resource, where)
        found.append(refused.value.message.partition(": ")[2])
    with pytest.raises(DeviceError) as refused:
        pool.wait_for(good.bench.told.resource, 1 << 40)
    return [*found, refused.value.message.partition(": ")[2]]


def test_work_that_nobody_can_do_is_given_up(pool: LocalPool) -> None:
    gone, unfit, large = pool.asked(impatient, patience=1.0)
    assert large == f"no board for {job().bench.told.resource} gives 1048576 MiB"
    assert gone == "the board is gone"
    assert unfit == (f"no board for {job().bench.told.resource}" if emulated else "the board is gone")


def urgent(pool: Pool) -> list[str]:
    """In which order a board does what it was asked for: three things, then a more urgent one."""
    (board,) = [b.address for b in pool.boards() if b.name == "one"]
    good = job()
    tickets = []
    for label in ("first", "second", "third", "urgent"):
        pool.priority = 9 if label == "urgent" else 0
        tickets.append(pool.send(good.parcel(), good.bench.told.resource, label, board))
    found = [pool.next(good.bench.told.resource, board) for _ in tickets]
    assert all(Results.of(pool.answer(t).header, 1).found for t in found)
    return [t.label for t in found]


def test_what_is_urgent_comes_first(pool: LocalPool) -> None:
    order = pool.asked(urgent)
    assert order[0] == "first"
    assert order.index("urgent") < order.index("third")


def test_a_client_that_is_killed_holds_no_board(pool: LocalPool, model: Path, tmp_path: Path) -> None:
    words = ("--trials", "2000", "--batch", "24")
    greedy = pool.tune("bob", model, tmp_path / "greedy.jsonl", *words, "--pool-priority", "5")
    until(lambda: len(trials(tmp_path / "greedy.jsonl")) > 3)
    modest = pool.tune("ann", model, tmp_path / "modest.jsonl", "--trials", "6")
    greedy.kill()
    assert modest.wait() == 0, modest.said.read_text()
    assert len(trials(tmp_path / "modest.jsonl")) == 6
    # what it was at when its client died is the last that a board does for that
    until(lambda: not any(pool.asked(lambda p: [b.busy for b in p.boards()])))


def test_who_is_withdrawn_is_out_at_once_and_nobody_starts_again(pool: LocalPool, model: Path, tmp_path: Path) -> None:
    eve = pool.tune("eve", model, tmp_path / "eve.jsonl", "--trials", "2000", "--batch", "24")
    five = pool.start("devices", "serve", pool.url, "--certificates", pool.certificates("five"), "--name", "five")
    five.has_said("serves")
    until(lambda: len(trials(tmp_path / "eve.jsonl")) > 3)
    authority = Authority(pool.folder / "ca")
    for name in ("eve", "five"):
        authority.revoke(name)
    for party in (eve, five):
        assert party.wait() == 6, party.said.read_text()
        assert "does not let you in" in party.said.read_text()
        assert "Traceback" not in party.said.read_text()
    again = pool.tune("eve", model, tmp_path / "again.jsonl", "--trials", "2")
    ann = pool.tune("ann", model, tmp_path / "ann.jsonl", "--trials", "4")
    assert again.wait() == 6
    assert "does not let you in" in again.said.read_text()
    assert ann.wait() == 0, ann.said.read_text()
    until(lambda: "five" not in pool.asked(lambda p: [b.name for b in p.boards()]))


def test_boards_are_listed_tried_and_sent_home(pool: LocalPool) -> None:
    ann = (pool.url, "--certificates", pool.certificates("ann"))
    listed, tried = pool.start("devices", "list", *ann, "--json"), pool.start("devices", "test", *ann, "one", "mill")
    assert listed.wait() == 0
    boards = json.loads(listed.said.read_text())["boards"]
    offers = {b["name"]: [(o["target"], o["emulated"]) for o in b["offers"]] for b in boards}
    x86 = {name: [("x86", False)] for name in (*BOARDS, "mill")}
    assert offers == x86 | ({"four": [(ARM, True)]} if emulated else {})
    assert {b["name"]: b["kinds"] for b in boards}["mill"] == ["build"]
    assert tried.wait() == 0, tried.said.read_text()
    assert tried.said.read_text().count("GFLOP/s") == 1
    assert "built in " in tried.said.read_text()
    wrong = pool.start("devices", "drain", ann[0], "tow", *ann[1:])
    assert wrong.wait() == 2
    assert "there is no board 'tow'\nhint: did you mean two" in wrong.said.read_text()
    assert pool.start("devices", "drain", ann[0], "three", *ann[1:]).wait() == 0
    assert pool.boards["three"].wait() == 0
    until(lambda: "three" not in pool.asked(lambda p: [b.name for b in p.boards()]))


def test_a_board_leaves_after_its_answer_however_late_that_is(pool: LocalPool, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Board.work

    def late(board: Board, data: object) -> bytes:
        answer = work(board, data)
        time.sleep(0.6)  # longer than a board takes to see that it shall leave
        return answer

    monkeypatch.setattr(Board, "work", late)
    leaving = pool.board("late")
    leaving.has_said("serves")
    words = ("devices", "drain", pool.url, "late", "--certificates", pool.certificates("ann"))
    drained = pool.start(*words)
    assert drained.wait() == 0, drained.said.read_text()
    assert leaving.wait() == 0


def test_a_module_runs_on_a_board(pool: LocalPool, model: Path, tmp_path: Path) -> None:
    loaded = mlc.load(model)
    x = np.random.default_rng(0).normal(size=(48, 64)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    parties = {}
    for target in ("x86", ARM) if emulated else ("x86",):
        package, outputs = tmp_path / f"{target[:3]}.tar", tmp_path / f"{target[:3]}.npz"
        mlc.compile(loaded, target).save(package)
        words = ("run", str(package), "--pool", pool.url, "--certificates", pool.certificates("bob"))
        parties[target] = pool.start(*words, "-i", str(tmp_path / "x.npz"), "-o", str(outputs), "--verify", "model")
    for target, party in parties.items():
        assert party.wait() == 0, party.said.read_text()
        (w,) = onnx.load(model).graph.initializer
        expected = x @ numpy_helper.to_array(w)
        with np.load(tmp_path / f"{target[:3]}.npz") as found:
            np.testing.assert_allclose(found["y"], expected, rtol=1e-4, atol=1e-4)

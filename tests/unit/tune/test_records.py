from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import OutputError, UsageError
from mlc.tune import records
from mlc.tune.base import Failure, Measurement
from mlc.tune.records import (
    Checkpoint,
    Fingerprint,
    Found,
    Journal,
    Log,
    Record,
    RecordError,
    best_of,
    decode,
    encode,
    operators,
    read_records,
    write_best,
)
from tests.fuzz import examples

HERE = Fingerprint("znver3", ("avx2", "f16c", "fma"), 8)
TEXT = "(f32[512,1024], const f32[1024,1024]) -> row-major\nmatmul(%0, %1) (a, False) -> f32[512,1024]"


def record(trial: int = 0, seconds: float | None = 1e-3, **changes: object) -> Record:
    result = Measurement(seconds) if seconds is not None else Measurement(None, failure=Failure.RUN_CRASH)
    made = Record(
        HERE, 1, "0123456789abcdef", TEXT, "matmul_1024", 10**9, {"rows": 6, "k": (8, (1, 2)), "order": "rows"},
        result, 1700000000.5 + trial, "0.1.0", "random", 3, trial,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


scalars = st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6)
seconds = st.floats(0, 1e6, exclude_min=True)
results = st.builds(
    Measurement, seconds, spread=st.floats(0, 1e6), noisy=st.booleans(), build_seconds=st.floats(0, 1e6)
) | st.builds(Measurement, st.none(), failure=st.sampled_from(Failure), message=st.text())
all_records = st.builds(
    record,
    st.integers(0, 10**9),
    fingerprint=st.builds(Fingerprint, st.text(), st.lists(st.text(), max_size=3).map(tuple), st.integers(0, 64)),
    text=st.text(),
    config=st.dictionaries(st.text(), values, max_size=4),
    result=results,
)


@given(all_records)
@examples(100)
def test_decoding_undoes_encoding(made: Record) -> None:
    line = encode(made)
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    assert decode(line[:-1]) == made


def test_a_checkpoint_brings_generators_back() -> None:
    rng = np.random.default_rng(5)
    rng.random(3)
    made = Checkpoint.save(7, 12.5, {"explorer": rng}, task="a")
    expected = rng.random(4)
    found = decode(encode(made)[:-1])
    assert found == made
    assert isinstance(found, Checkpoint)
    other = np.random.default_rng(0)
    assert found.restore("explorer", other)
    assert (other.random(4) == expected).all()
    assert not found.restore("model", other)
    assert found.notes == {"task": "a"}


DAMAGES = st.tuples(st.integers(0, 1 << 20), st.sampled_from(["set", "cut", "insert", "delete"]), st.binary(max_size=9))


@given(st.lists(all_records, min_size=1, max_size=3), st.lists(DAMAGES, min_size=1, max_size=4))
@examples(200)
def test_no_damage_makes_a_wrong_record_or_an_exception(
    made: list[Record], damages: list[tuple[int, str, bytes]]
) -> None:
    data = bytearray(b"".join(map(encode, made)))
    for where, what, patch in damages:
        at = where % (len(data) + 1)
        match what:
            case "set":
                data[at : at + len(patch)] = patch
            case "cut":
                del data[at:]
            case "insert":
                data[at:at] = patch
            case "delete":
                del data[at : at + len(patch)]
    log = Log()
    log.add(bytes(data))
    assert all(r in made for r in log.records)


@given(st.binary(max_size=200))
@examples(100)
def test_bytes_that_are_no_records_are_counted(data: bytes) -> None:
    log = Log()
    log.add(data)
    assert not log.records
    assert log.bad == sum(1 for line in data.split(b"\n") if line.strip())


def with_body(**changes: object) -> bytes:
    """A line with a true checksum over a body that was changed."""
    body = json.dumps({**record().to_json(), **changes}).encode()
    return b'{"crc":"%08x","body":%s}' % (records.zlib.crc32(body), body)


@pytest.mark.parametrize(
    "changes",
    [
        {"seconds": -1.0},
        {"seconds": 0},
        {"seconds": "fast"},
        {"seconds": True},
        {"seconds": float("nan")},
        {"seconds": 10**400},
        {"seconds": None},
        {"failure": "sloth"},
        {"failure": ["sloth"]},
        {"failure": "refused"},
        {"config": []},
        {"config": {"rows": None}},
        {"config": {"rows": {}}},
        {"target": {}},
        {"target": {"cpu": "x", "features": [1], "lanes": 8}},
        {"trial": -1},
        {"trial": 1.0},
        {"v": "1"},
        {"kind": "song"},
    ],
)
def test_a_record_that_makes_no_sense_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(RecordError):
        decode(with_body(**changes))


def test_lines_of_later_versions_are_counted() -> None:
    log = Log()
    log.add(with_body(v=2) + b"\n" + encode(record()))
    assert (log.newer, log.bad, len(log.records)) == (1, 0, 1)


# -- journals ---------------------------------------------------------------------------------------------------------
def test_a_journal_goes_on_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    made = [record(k, 1e-3 / (k + 1)) for k in range(3)]
    with Journal(path) as journal:
        assert journal.log.next_trial == 0
        for r in made[:2]:
            journal.append(r)
        journal.append(Checkpoint(2, 30.0))
    with Journal(path) as journal:
        assert journal.log.records == made[:2]
        assert (journal.log.next_trial, journal.log.seconds) == (2, 30.0)
        late = replace(made[2], result=replace(made[2].result, build_seconds=0.5, run_seconds=1.0))
        journal.append(late)
    log = read_records([path])
    assert log.records == [*made[:2], late]
    assert (log.bad, log.next_trial, log.seconds) == (0, 3, 31.5)
    assert log.measured("0123456789abcdef", HERE, 1) == log.records
    assert not log.measured("0123456789abcdef", HERE, 2)


@pytest.mark.parametrize("cut", [1, 2, 40, 300])
def test_a_torn_end_is_put_aside(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "r.jsonl"
    lines = [encode(record(k)) for k in range(3)]
    path.write_bytes(b"".join(lines)[:-cut])
    with Journal(path) as journal:
        # without its end alone a line is still whole
        assert len(journal.log.records) == (3 if cut == 1 else 2)
        assert journal.log.bad == (0 if cut == 1 else 1)
        journal.append(record(3))
    log = read_records([path])
    assert log.bad == 0
    assert [r.trial for r in log.records] == ([0, 1, 2, 3] if cut == 1 else [0, 1, 3])
    aside = tmp_path / "r.jsonl.corrupt"
    assert aside.exists() == (cut > 1)
    if cut > 1:
        assert aside.read_bytes() == lines[2][:-cut] + b"\n"


def test_a_flipped_byte_in_the_middle_costs_one_record(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    data = bytearray(b"".join(encode(record(k)) for k in range(3)))
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with Journal(path) as journal:
        assert [r.trial for r in journal.log.records] == [0, 2]
        assert journal.log.bad == 1
    assert path.read_bytes() == bytes(data)


def test_a_trial_that_is_there_twice_counts_once() -> None:
    log = Log()
    log.add(encode(record()) * 2)
    assert (len(log.records), log.repeated) == (1, 1)


def test_a_second_writer_is_told_who_writes(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with Journal(path) as journal:
        journal.append(record())
        with pytest.raises(UsageError, match=rf"is being written by (the process {os.getpid()}|another process)$"):
            Journal(path)
        assert read_records([path]).records == [record()]
    Journal(path).close()


@pytest.fixture
def small_files() -> Iterator[int]:
    """Files of this process cannot grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limit = len(encode(record())) * 5 // 2
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, before)


def test_a_full_disk_is_one_clear_error_and_nothing_is_lost(tmp_path: Path, small_files: int) -> None:
    path = tmp_path / "r.jsonl"
    with Journal(path) as journal:
        journal.append(record(0))
        journal.append(record(1))
        with pytest.raises(OutputError, match=r"r\.jsonl: cannot be written: "):
            journal.append(record(2))
        with pytest.raises(OutputError, match="is closed"):
            journal.append(record(3))
    log = read_records([path])
    assert [r.trial for r in log.records] == [0, 1]
    assert log.bad == 0


def test_what_cannot_be_written_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="No such file or directory"):
        Journal(tmp_path / "nowhere" / "r.jsonl")
    with pytest.raises(OutputError, match="Is a directory"):
        Journal(tmp_path)
    with pytest.raises(OutputError, match="not a regular file"):
        Journal("/dev/null")


def test_records_are_synced_at_each_best_and_every_so_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(records.os, "fsync", lambda _: synced.append(journal_length))
    journal_length = 0
    with Journal(tmp_path / "r.jsonl") as journal:
        monkeypatch.setattr(records, "SYNC_SECONDS", 1e9)
        for k in range(40):
            journal_length = k
            journal.append(record(k, 1.0 if k in (0, 1, 2) else 0.5 if k == 10 else 2.0))
        assert synced == [0, 10, 26]


def test_a_run_that_is_killed_keeps_what_it_measured(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    script = f"""
import sys
sys.path[:0] = {sys.path!r}
from tests.unit.tune.test_records import Journal, record
journal = Journal({str(path)!r})
for k in range(10**9):
    journal.append(record(k))
    print(k, flush=True)
"""
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for _ in range(50):
                last = child.stdout.readline()
            child.kill()
            last = [last, *child.stdout][-1]
        with Journal(path) as journal:
            assert journal.log.bad <= 1
            assert max(r.trial for r in journal.log.records) >= int(last)
        assert read_records([path]).bad == 0


# -- many files -------------------------------------------------------------------------------------------------------
def test_files_and_folders_are_read_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "b.jsonl").write_bytes(encode(record(1)))
    (folder / "a.jsonl").write_bytes(encode(record(0)) + b"rubbish\n")
    (folder / "note.txt").write_text("no record", encoding="utf-8")
    single = tmp_path / "c.jsonl"
    single.write_bytes(encode(record(2)) + encode(record(0)))
    log = read_records([folder, single])
    assert [r.trial for r in log.records] == [0, 1, 2]
    assert (log.bad, log.repeated) == (1, 1)
    with pytest.raises(UsageError, match=r"nothing\.jsonl: cannot be read: No such file"):
        read_records([tmp_path / "nothing.jsonl"])


def test_the_best_is_the_fastest_that_suits_the_processor() -> None:
    other_cpu = Fingerprint("haswell", HERE.features, 8)
    wider = Fingerprint("skylake-avx512", ("avx512f",), 16)
    some = [
        record(0, 3e-3),
        record(1, 2e-3),
        record(2, None),
        record(3, 1e-3, fingerprint=other_cpu),
        record(4, 1e-4, fingerprint=wider),
        record(5, 1.9e-3, result=Measurement(1.9e-3, spread=3e-4, noisy=True)),
        record(6, 1e-3, workload="b", fingerprint=other_cpu, text=TEXT.replace("1024", "2048")),
    ]
    best = best_of(some, HERE)
    assert {key: r.trial for key, r in best.hits.items()} == {"0123456789abcdef": 1, "b": 6}
    assert best.configs["b"] == some[6].config
    assert best.find("b", "") == (Found.HIT, some[6])
    assert best.find("c", TEXT.replace("1024", "1000")) == (Found.NEAR, some[1])
    assert best.find("c", TEXT.replace("1024", "3000")) == (Found.NEAR, some[6])
    assert best.find("c", TEXT.replace("matmul", "conv")) == (Found.MISS, None)
    assert best_of([record(0, 1e-3), record(1, 2e-3, threads=2)], HERE, threads=2).hits["0123456789abcdef"].trial == 1


def test_the_best_have_a_file_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "best.jsonl"
    write_best(path, best_of([record(0, 3e-3), record(1, 2e-3)], HERE))
    assert [r.trial for r in read_records([path]).records] == [1]


def test_operators_are_told_without_shapes_and_layouts() -> None:
    packed = "(f32[1,64,56,56]@split(1, 8).reorder(0,1,3,4,2)) -> any\nconv(%0) (strides, (2, 2)) -> f32[1,64,28,28]"
    assert operators(packed) == "(f32[]@) -> any\nconv(%0) (strides, (2, 2)) -> f32[]"


def test_a_lock_is_gone_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    journal = Journal(path)
    journal.close()
    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

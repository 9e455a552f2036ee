from __future__ import annotations

import fcntl
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mlc.errors import OutputError, UsageError
from mlc.records.files import read_records
from mlc.records.record import Checkpoint, encode
from mlc.tuning import journal as journal_module
from mlc.tuning.journal import Journal
from tests.unit.records.test_record import HERE, record


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


@pytest.mark.parametrize("data", [b"no end", b"a\nb\n", b"\x08\x07onnx\n\x00", b'{"crc": 1}\n'])
def test_a_file_of_another_kind_is_left_alone(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    with pytest.raises(UsageError, match="holds no records"):
        Journal(path)
    assert path.read_bytes() == data
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize("data", [b"", b"\n", b'{"cr', encode(record())[:60]])
def test_what_a_killed_run_may_leave_is_gone_on_from(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(data)
    with Journal(path) as journal:
        journal.append(record())
    assert read_records([path]).records == [record()]


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
    monkeypatch.setattr(journal_module.os, "fsync", lambda _: synced.append(journal_length))
    journal_length = 0
    with Journal(tmp_path / "r.jsonl") as journal:
        monkeypatch.setattr(journal_module, "SYNC_SECONDS", 1e9)
        for k in range(40):
            journal_length = k
            journal.append(record(k, 1.0 if k in (0, 1, 2) else 0.5 if k == 10 else 2.0))
        assert synced == [0, 10, 26]


def test_a_run_that_is_killed_keeps_what_it_measured(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    script = f"""
import sys
sys.path[:0] = {sys.path!r}
from dataclasses import replace
from mlc.tuning.journal import Journal
from mlc.records.record import decode
made = decode({encode(record()).rstrip()!r})
journal = Journal({str(path)!r})
for k in range(10**9):
    journal.append(replace(made, trial=k))
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


def test_a_lock_is_gone_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    journal = Journal(path)
    journal.close()
    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

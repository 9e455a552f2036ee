from __future__ import annotations

import json
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import UsageError
from mlc.records.files import Log, read_records
from mlc.records.measurement import Failure, Measurement
from mlc.records.record import Checkpoint, Fingerprint, Record, RecordError, decode, encode
from tests.fuzz import examples

HERE = Fingerprint("znver3", ("avx2", "f16c", "fma"), 8)


def product(rows: int = 512, op: str = "matmul") -> dict[str, Any]:
    """A workload's document."""

    def f32(*shape: int) -> dict[str, Any]:
        return {"dtype": "f32", "shape": list(shape)}

    node = {"op": op, "inputs": [0, 1], "attrs": {"a": False}, "outputs": [f32(rows, 1024)]}
    operands = [f32(rows, 1024), {**f32(1024, 1024), "constant": True}]
    return {"operands": operands, "row_major": True, "literals": [], "nodes": [node], "outputs": [2]}


DOCUMENT = product()


def record(trial: int = 0, seconds: float | None = 1e-3, **changes: object) -> Record:
    result = Measurement(seconds) if seconds is not None else Measurement(None, failure=Failure.RUN_CRASH)
    made = Record(
        HERE, 1, "0123456789abcdef", DOCUMENT, "matmul_1024", 10**9, {"rows": 6, "k": (8, (1, 2)), "order": "rows"},
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
    document=st.dictionaries(st.text(), scalars | st.lists(scalars, max_size=3), max_size=3),
    config=st.dictionaries(st.text(), values, max_size=4),
    result=results,
    margins=st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=2).map(tuple), max_size=3).map(
        tuple
    ),
    flushed=st.booleans(),
)


@given(all_records)
@examples(100)
def test_decoding_undoes_encoding(made: Record) -> None:
    line = encode(made)
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    assert decode(line[:-1]) == made


def test_a_checkpoint_is_read_as_it_was_written() -> None:
    made = Checkpoint(7, 12.5, "0123", 1700000000.5)
    assert decode(encode(made)[:-1]) == made


def test_what_is_of_no_use_is_told() -> None:
    other = Fingerprint("skylake-avx512", ("avx2", "avx512f", "fma"), 16)
    log = Log()
    log.add(encode(record()) + b"nonsense\n" + encode(record(1, fingerprint=other)) + b"{}\n")
    assert log.complaints(HERE) == [
        "2 lines of records left out: damaged",
        "1 of 2 records are of other processors: skylake-avx512 with 16 lanes, not znver3 with 8",
    ]
    good = Log()
    good.add(encode(record()))
    assert good.complaints(HERE) == []
    assert Log().complaints(HERE) == ["there are no records in what was named"]


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
    return b'{"crc":"%08x","body":%s}' % (zlib.crc32(body), body)


def deep(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


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
        {"document": "(f32[4]) -> any"},
        {"document": {"nodes": deep(20)}},
        {"margins": {}},
        {"margins": [[[1, -1]]]},
        {"flushed": 1},
    ],
)
def test_a_record_that_makes_no_sense_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(RecordError):
        decode(with_body(**changes))


def test_lines_of_other_versions_are_counted() -> None:
    log = Log()
    log.add(with_body(v=3) + b"\n" + with_body(v=1) + b"\n" + encode(record()))
    assert (log.others, log.bad, len(log.records)) == (2, 0, 1)


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


def test_families_of_processors() -> None:
    def like(*features: str, lanes: int = 8) -> bool:
        return Fingerprint("other", features, lanes).is_family_of(HERE)

    assert like("avx2", "fma")
    assert like("avx2", "bmi", "f16c", "fma", "sse4a")
    assert not like("avx2")
    assert not like("avx2", "avx512f", "avx512vl", "fma")
    assert not like("avx2", "fma", lanes=4)


def test_a_trial_that_is_there_twice_counts_once() -> None:
    log = Log()
    log.add(encode(record()) * 2)
    assert (len(log.records), log.repeated) == (1, 1)

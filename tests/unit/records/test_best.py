from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mlc.records.best import Found, best_of, compacted, operators
from mlc.records.files import Log, read_records, write_records
from mlc.records.measurement import Measurement
from mlc.records.record import DECIDED, Fingerprint, encode
from tests.unit.records.test_record import HERE, product, record


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
        record(6, 1e-3, workload="b", fingerprint=other_cpu, document=product(2048)),
    ]
    best = best_of(some, HERE)
    assert {key: r.trial for key, r in best.hits.items()} == {"0123456789abcdef": 1, "b": 6}
    assert best.find("b", {}) == (Found.HIT, some[6])
    assert best.find("c", product(500)) == (Found.NEAR, some[1])
    assert best.find("c", product(3000)) == (Found.NEAR, some[6])
    assert best.find("c", product(op="conv")) == (Found.MISS, None)
    assert best_of([record(0, 1e-3), record(1, 2e-3, threads=2)], HERE, threads=2).hits["0123456789abcdef"].trial == 1


def test_what_settles_a_task_wins_unless_a_later_trial_is_clearly_faster() -> None:
    fast = record(0, 1e-3)
    settled = record(1, 3e-3, config={"rows": 2}, explorer=DECIDED)  # the fast one lost in the whole model
    close, better = record(2, 0.97e-3, config={"rows": 3}), record(3, 0.5e-3, config={"rows": 4})
    assert best_of([fast, settled], HERE, 1).hits == {fast.workload: settled}
    assert best_of([fast, settled, close], HERE, 1).hits == {fast.workload: settled}
    assert best_of([fast, settled, close, better], HERE, 1).hits == {fast.workload: better}
    again = record(4, 0.6e-3, config={"rows": 5}, explorer=DECIDED)
    assert best_of([fast, settled, better, again], HERE, 1).hits == {fast.workload: again}


def test_times_with_empty_caches_are_never_compared_with_others() -> None:
    full, empty = record(0, 1e-3), record(1, 3e-3, flushed=True, config={"rows": 2})
    log = Log()
    log.add(encode(full) + encode(empty))
    assert log.measured(full.workload, HERE, 1) == [full]
    assert log.measured(full.workload, HERE, 1, flushed=True) == [empty]
    assert best_of([empty], HERE, 1).hits == {full.workload: empty}  # better than nothing
    assert best_of([empty, full], HERE, 1).hits == {full.workload: full}
    quicker = replace(empty, result=Measurement(0.1e-3))
    assert best_of([full, quicker], HERE, 1).hits == {full.workload: full}
    # whichever was decided for last, whatever the times
    slow = record(2, 4e-3, flushed=True, config={"rows": 3}, explorer=DECIDED)
    assert best_of([full, quicker, slow], HERE, 1).hits == {full.workload: slow}
    again = record(3, 5e-3, config={"rows": 4}, explorer=DECIDED)
    assert best_of([full, quicker, slow, again], HERE, 1).hits == {full.workload: again}
    # a decision is surpassed only by later times of its own kind
    later = record(4, 0.1e-3, config={"rows": 5})
    assert best_of([slow, later], HERE, 1).hits == {full.workload: slow}
    cold = replace(later, flushed=True)
    assert best_of([slow, cold], HERE, 1).hits == {full.workload: cold}
    # another processor or number of threads matters more
    other = record(5, 1e-3, explorer=DECIDED, threads=4)
    assert best_of([empty, other], HERE, 1).hits == {full.workload: empty}
    assert compacted([full, slow, other]) == [slow, other]


def test_the_best_have_a_file_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "best.jsonl"
    two = [record(2, 3e-3, threads=2), record(3, 4e-3, threads=2, config={"rows": 2}, explorer=DECIDED)]
    write_records(path, compacted([record(0, 3e-3), record(1, 2e-3), *two]))
    assert [(r.threads, r.trial) for r in read_records([path]).records] == [(1, 1), (2, 3)]


def test_operators_are_told_without_shapes_and_layouts() -> None:
    packed = product(64)
    packed["operands"][0]["layout"] = [["split", 1, 8]]
    assert operators(packed) == operators(product())
    assert operators(product(op="conv")) != operators(product())
    wider = product()
    wider["operands"][0]["dtype"] = "f64"
    assert operators(wider) != operators(product())

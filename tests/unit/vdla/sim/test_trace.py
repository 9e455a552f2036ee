"""Traces: every instruction once, tracks that never overlap, an arrow for every token."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise

import pytest

from mlc.errors import UsageError
from mlc.vdla.sim import Device, Report
from mlc.vdla.sim.trace import trace
from tests.unit.vdla.convolutions import FULL, TINY, case


@pytest.fixture(scope="module")
def report() -> Report:
    return Device(FULL).run(case(TINY).program, exec=False)


@pytest.fixture(scope="module")
def events(report: Report) -> list[dict]:
    return json.loads(json.dumps(trace(report)))["traceEvents"]


def test_every_instruction_is_on_the_track_of_its_unit(report: Report, events: list[dict]) -> None:
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert list(tracks.values()) == ["layers", "LD requests", "CMP requests", "ST requests", "LD", "CMP", "ST"]
    work = [e for e in events if e["ph"] == "X" and tracks[e["tid"]] in ("LD", "CMP", "ST")]
    assert [e["args"]["instruction"] for e in work] == list(range(len(report.instructions)))
    assert [tracks[e["tid"]] for e in work] == [x.unit.name for x in report.instructions]
    assert {e["name"] for e in work} == {
        "LOAD UOP",
        "LOAD INP",
        "LOAD WGT",
        "GEMM SET",
        "GEMM ACC",
        "STORE OUT",
        "FINISH",
    }
    end = max(e["ts"] + e["dur"] for e in work)
    assert end == pytest.approx(report.cycles / FULL.freq_mhz, abs=0.01)


def test_spans_of_one_track_do_not_overlap(events: list[dict]) -> None:
    tracks = defaultdict(list)
    for e in events:
        if e["ph"] == "X":
            tracks[e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
    assert len(tracks) == 7
    for spans in tracks.values():
        assert all(a <= b for a, b in spans)
        assert all(end <= begin + 1e-9 for (_, end), (begin, _) in pairwise(sorted(spans)))


def test_every_token_is_an_arrow_forward_in_time(report: Report, events: list[dict]) -> None:
    begins = {e["id"]: e["ts"] for e in events if e["ph"] == "s"}
    ends = {e["id"]: e["ts"] for e in events if e["ph"] == "f"}
    assert begins.keys() == ends.keys()
    assert len(begins) == sum(report.tokens.values())
    assert all(begins[token] <= ends[token] for token in begins)


def test_a_run_without_times_has_no_trace() -> None:
    with pytest.raises(UsageError, match="needs the timing simulator"):
        trace(Report(FULL, []))

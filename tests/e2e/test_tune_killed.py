"""A tuner that is killed at any moment: everything measured is kept, and the next run goes on from there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mlc.records.files import read_records
from mlc.records.record import DECIDED
from mlc.targets.opencl.driver import OpenClDevice
from tests.opencl import pocl

__all__ = ["pocl"]

TRIALS = 400  # more than are measured before the last kill


@pytest.fixture
def model(tmp_path: Path) -> Path:
    w = numpy_helper.from_array(np.ones((64, 96), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [48, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [48, 96])],
        [w],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    return path


def _trials(path: Path) -> list[str]:
    """Configurations in a record file, in order; it must be readable at any moment."""
    records = read_records([path]).records if path.exists() else []
    return [json.dumps(dict(r.config), sort_keys=True) for r in records if r.explorer != DECIDED]


def _tune(model: Path, records: Path, trials: int, target: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "mlc", "-q", "tune", str(model), "-o", str(records), "--trials", str(trials)]
    options = ["--target", target, "--threads", "1", "--explorer", "random", "--batch", "4", "--no-check"]
    return subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _children(pid: int) -> set[int]:
    """All processes below one."""
    found: set[int] = set()
    stack = [pid]
    while stack:
        parent = stack.pop()
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                below = {int(p) for p in task.read_text().split()}
            except OSError:
                continue
            stack += below - found
            found |= below
    return found


def _left(pids: set[int], seconds: float = 10.0) -> set[int]:
    """Those of some processes that are still there after a while."""
    end = time.monotonic() + seconds
    left = set(pids)
    while left and time.monotonic() < end:
        left = {p for p in left if Path(f"/proc/{p}").exists() and _state(p) != "Z"}
        time.sleep(0.05)
    return left


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "Z"


def _kill_again_and_again(model: Path, records: Path, times: int, seed: int, target: str = "x86") -> None:
    """Kills a run at random moments; what it had written a second before must be there afterwards."""
    rng = np.random.default_rng(seed)
    for turn in range(times):
        running = _tune(model, records, TRIALS, target)
        kept = before = _trials(records)
        # some are killed while they start, some while they measure
        wait = rng.uniform(0.2, 2.0) if turn % 4 == 3 else rng.uniform(3.0, 7.0)
        end = time.monotonic() + wait
        history = [(time.monotonic(), before)]
        while time.monotonic() < end:
            time.sleep(0.1)
            now = _trials(records)
            assert now[: len(kept)] == kept, "a record has disappeared"
            kept = now
            history.append((time.monotonic(), now))
        below = _children(running.pid)
        killed = time.monotonic()
        os.kill(running.pid, signal.SIGKILL)
        running.wait()
        assert not _left(below), "a process is left"
        after = _trials(records)
        safe = max((t for when, t in history if when <= killed - 1.0), key=len, default=before)
        assert after[: len(safe)] == safe
        assert len(set(after)) == len(after), "a configuration was measured twice"
    done = len(_trials(records))
    running = _tune(model, records, done + 4, target)
    assert running.wait(120) == 0
    last = _trials(records)
    assert len(last) == len(set(last)) == done + 4
    numbers = [r.trial for r in read_records([records]).records]
    assert len(set(numbers)) == len(numbers)


def test_a_run_that_is_killed_is_gone_on_from(model: Path, tmp_path: Path) -> None:
    _kill_again_and_again(model, tmp_path / "r.jsonl", 1, 0)


@pytest.mark.slow
def test_a_run_on_a_device_that_is_killed_is_gone_on_from(pocl: OpenClDevice, model: Path, tmp_path: Path) -> None:
    _kill_again_and_again(model, tmp_path / "r.jsonl", 3, 2, "opencl -device=pocl")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_that_is_killed_twenty_times_is_gone_on_from(model: Path, tmp_path: Path) -> None:
    _kill_again_and_again(model, tmp_path / "r.jsonl", 20, 1)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_runs_that_give_up_every_candidate_at_once_come_to_an_end(model: Path, tmp_path: Path) -> None:
    """A hundred of them, five at a time: workers are killed in every state, those just forked included."""

    def run(number: int) -> tuple[int, str]:
        command = [sys.executable, "-m", "mlc", "tune", str(model), "-o", str(tmp_path / f"{number}.jsonl")]
        options = ["--trials", "3", "--fresh", "--run-timeout", "0.0001", "--explorer", "random", "--no-check"]
        done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, done.stderr

    with ThreadPoolExecutor(5) as pool:
        ended = list(pool.map(run, range(100)))
    assert [code for code, _ in ended] == [0] * 100, next(text for code, text in ended if code)

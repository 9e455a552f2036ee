"""The benchmark of GPUs, rehearsed on a processor: what was found is kept, whatever becomes of the worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu import worker
from benchmarks.gpu.command import main
from benchmarks.gpu.pool import LOST, Worker
from benchmarks.gpu.state import State
from benchmarks.gpu.table import COMPILED, OURS, document, gain
from benchmarks.papers import devices, tvm_fig4, tvm_fig7, tvm_fig14, tvm_fig15, tvm_fig19
from mlc.errors import DeviceError
from mlc.targets.cuda.api import CudaError
from mlc.targets.opencl.driver import OpenClDevice
from tests.cuda import CXX, CUresult, FakeCuda, Install, install
from tests.opencl import pocl, quick_pocl

__all__ = ["install", "pocl", "quick_pocl"]

ROW = {"stage": "measure", "model": "C1", "precision": "fp32", "tuned": False, "quick": False}
TIMES = {"mlc": {"median": 2e-3}, "torch": {"median": 4e-3}, "torch.compile": {"median": 3e-3}}


def command(folder: Path, *more: str) -> int:
    return main(
        ["--target", "opencl -device=pocl", "--quick", "--out", str(folder), "--work", str(folder / "work"), *more]
    )


@pytest.fixture(autouse=True)
def _device_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command itself asks only whether there is one."""
    monkeypatch.setattr("benchmarks.gpu.command.open_device", lambda *_: SimpleNamespace(close=lambda: None))


def test_without_a_device_nothing_is_begun_or_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, options: object) -> None:
        raise DeviceError(f"{name}: there is none", hint="buy one")

    monkeypatch.setattr("benchmarks.gpu.command.open_device", refuse)
    with pytest.raises(SystemExit, match=r"benchmarks\.gpu: opencl: there is none; buy one"):
        command(tmp_path / "out", "check")
    assert not (tmp_path / "out").exists()


def test_models_are_checked_once(pocl: OpenClDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some = ("check", "--models", "MM1,D9", "--precisions", "fp32")
    assert command(tmp_path, *some) == 0
    assert "2 done, 0 wrong" in capsys.readouterr().out
    rows = json.loads((tmp_path / "bench.json").read_text())["rows"]
    assert [r["model"] for r in rows] == ["D9", "MM1"]  # as in the zoo
    assert all(r["difference"] < 1e-4 for r in rows)
    assert "2 of 2 results agree" in (tmp_path / "bench.md").read_text()
    assert command(tmp_path, *some) == 0
    assert "0 done, 0 wrong" in capsys.readouterr().out
    assert command(tmp_path, "check", "--models", "MM2", "--precisions", "fp32", "--budget", "0") == 3


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_model_is_measured_tuned_and_measured_again(pocl: OpenClDevice, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    some = ("--models", "MM1", "--precisions", "fp32")
    assert command(tmp_path, "measure", *some) == 0
    assert command(tmp_path, "tune", *some, "--trials", "2") == 0
    assert command(tmp_path, "measure", "--tuned", *some) == 0
    rows = [r for r in json.loads((tmp_path / "bench.json").read_text())["rows"] if r["stage"] == "measure"]
    assert [r["tuned"] for r in rows] == [False, True]
    assert all(set(r["seconds"]) == {"mlc", "torch", "torch.compile"} for r in rows)


def test_tuning_that_the_time_ends_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    budgets = []

    def tune(command: list[str], **settings: object) -> SimpleNamespace:
        value = dict(pairwise(command))
        budgets.append(float(value["--time-budget"].rstrip("s")))
        Path(value["-o"]).touch()
        Path(value["--json"]).write_text(json.dumps({"limit": "time" if len(budgets) < 2 else "trials"}))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr("benchmarks.gpu.command.subprocess", SimpleNamespace(run=tune, TimeoutExpired=TimeoutError))
    some = ("tune", "--models", "MM1", "--precisions", "fp32", "--budget", "100")
    assert [command(tmp_path, *some) for _ in range(2)] == [3, 1]  # and of no records, none is kept
    assert budgets == pytest.approx([75, 150], abs=2)
    assert "no configuration could be decided for" in (tmp_path / "work" / "state.jsonl").read_text()


def test_a_job_that_the_end_of_a_call_cuts_off_is_left_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.gpu.pool.Worker.do", lambda worker, job, seconds: None)
    some = ("check", "--models", "MM1", "--precisions", "fp32", "--budget")
    assert command(tmp_path, *some, "30") == 3
    assert "0 done, 0 wrong or failed, 1 left" in capsys.readouterr().out
    assert command(tmp_path, *some, "300") == 1
    assert "took longer than 120 s" in (tmp_path / "bench.md").read_text()


@pytest.mark.parametrize(
    ("budget", "compiled", "code", "said"),
    [
        ("500", None, 0, "took longer than 240 s"),
        ("500", {"error": "no Triton"}, 0, "no Triton"),
        ("300", None, 3, None),
    ],
    ids=["late", "failed", "unfinished"],
)
def test_what_a_compiler_cannot_do_is_measured_without_it(
    budget: str,
    compiled: dict[str, Any] | None,
    code: int,
    said: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def do(worker: Worker, job: dict[str, Any], seconds: float) -> dict[str, Any] | None:
        if job["stage"] == "peer":
            return compiled
        return {"seconds": {n: TIMES[n] for n in ("mlc", *job["peers"])}, "failed": {}} if "peers" in job else {}

    monkeypatch.setattr("benchmarks.gpu.pool.Worker.do", do)
    monkeypatch.setattr("benchmarks.gpu.command.require", lambda *names: None)
    some = ("measure", "--models", "MM1", "--precisions", "fp32", "--budget", budget)
    assert command(tmp_path, *some) == code
    rows = json.loads((tmp_path / "bench.json").read_text())["rows"]
    assert [(set(r["seconds"]), r["failed"]) for r in rows] == (
        [({"mlc", "torch"}, {"torch.compile": said})] if said else []
    )
    assert not said or f"{said} | 2.00 |" in (tmp_path / "bench.md").read_text()


def test_what_cannot_be_meant_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["weigh"], "unknown stage 'weigh'; known: check, measure, tune"),
        (["--models", "C99"], "unknown model 'C99'"),
        (["--precisions", "fp8"], "unknown precision 'fp8'"),
        (["check", "--target", "opencl -device=h200"], "unknown device 'h200'"),
        (["check", "--target", "x86"], "target 'x86' has no device"),
    ):
        with pytest.raises(SystemExit) as caught:
            command(tmp_path, *arguments)
        assert caught.value.code == 2
        assert message in capsys.readouterr().err


def test_a_worker_that_ends_or_hangs_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "python"
    cases = "*die*) kill -9 $$;; *hang*) sleep 60;; *) echo '{\"difference\": 0}';;"
    script.write_text(f"#!/bin/sh\nread job\ncase $job in {cases} esac\n")
    script.chmod(0o755)
    monkeypatch.setattr("benchmarks.gpu.pool.sys.executable", str(script))
    one = Worker(tmp_path / "log")
    assert "signal 9" in (one.do({"model": "die"}, 10) or {})["error"]
    assert one.do({"model": "hang"}, 0.2) is None
    assert one.do({"model": "C1"}, 10) == {"difference": 0}
    one.close()
    one.close()


@pytest.fixture
def numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Worker:
    """A worker whose processes answer with their number, or that a side has lost the device, as the job wants it."""
    script, count = tmp_path / "python", tmp_path / "count"
    script.write_text(
        f"""#!{sys.executable}
import json, sys
with open({str(count)!r}, "a+") as file:
    me = file.write(".") and (file.seek(0), len(file.read()))[1]
for line in sys.stdin:
    job = json.loads(line)
    side = job.get("lost_by", {{}}).get(str(me))
    answer = {{"by": me}} if side is None or side not in ("mlc", *job["peers"]) else {{"error": side, "lost": side}}
    print(json.dumps({{"error": "no model"}} if job["model"] == "none" else answer), flush=True)
"""
    )
    script.chmod(0o755)
    monkeypatch.setattr("benchmarks.gpu.pool.sys.executable", str(script))
    return Worker(tmp_path / "log")


def test_a_process_that_has_lost_the_device_answers_no_more(numbered: Worker) -> None:
    def do(model: str = "C1", **lost_by: str) -> dict[str, Any] | None:
        sides = {number.removeprefix("in_"): side for number, side in lost_by.items()}
        return numbered.do({"model": model, "peers": ["torch"], "lost_by": sides}, 20)

    assert do() == do() == {"by": 1}
    assert do(in_1="mlc") == {"by": 2}  # done again
    assert do() == {"by": 2}
    assert do(in_2="mlc", in_3="mlc") == {"error": "mlc", LOST: "mlc"}
    assert do(in_4="torch") == {"by": 5}
    assert do(in_5="torch", in_6="torch") == {"by": 7, "failed": {"torch": "torch"}}  # without the peer
    assert do("none") == {"error": "no model"}  # not done again: a fresh process would say the same
    assert do() == {"by": 8}
    numbered.close()


def test_measuring_begins_in_fresh_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: set[Worker] = set()
    stages = []

    def do(one: Worker, job: dict[str, Any], seconds: float) -> dict[str, Any]:
        stages.append(job["stage"])
        assert job["stage"] == "peer" or one not in used
        if job["stage"] == "peer":
            used.add(one)
        return {"seconds": TIMES, "failed": {}} if job["stage"] == "measure" else {}

    monkeypatch.setattr("benchmarks.gpu.pool.Worker.do", do)
    monkeypatch.setattr("benchmarks.gpu.pool.Worker.close", lambda one: used.discard(one))
    monkeypatch.setattr("benchmarks.gpu.command.require", lambda *names: None)
    assert command(tmp_path, "measure", "--models", "MM1,MM2,MM3", "--precisions", "fp32", "--jobs", "2") == 0
    assert stages == ["build"] * 3 + ["peer"] * 3 + ["measure"] * 3


@pytest.mark.parametrize("by", [OURS, "torch", COMPILED])
@pytest.mark.parametrize("when", ["begins", "turns"])
def test_who_has_lost_the_device_is_said(
    by: str, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def side(name: str) -> worker.Side:
        runs = 0

        def seconds() -> float:
            nonlocal runs
            runs += 1
            if name == by and runs > worker.WARMUP + 1:
                raise CudaError("CUDA_ERROR_ILLEGAL_ADDRESS", "cannot run the module")
            return 1.0

        if name == by and when == "begins":
            raise CudaError("CUDA_ERROR_LAUNCH_FAILED", "cannot run the module")
        return worker.Side(seconds, dict)

    monkeypatch.setattr(worker, "ours", lambda job, inputs: (side(OURS), True))
    monkeypatch.setattr(
        worker, "theirs", lambda *args, compiler, **how: side("torch" if compiler is None else COMPILED)
    )
    job = {"target": "cuda -arch=sm_90", "package": str(tmp_path / "m.tar"), **ROW, "quick": True}
    answer = worker.answer_of(job)
    assert answer[LOST] == by
    assert answer["error"].startswith(f"{by}: CudaError: cannot run the module: a kernel ")
    log = capsys.readouterr().err
    assert f"measure C1 fp32: the device is lost by {by}: CudaError" in log
    assert f"] {by} begins" in log


def test_what_a_peer_cannot_compile_is_no_lost_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def theirs(*args: Any, compiler: object, **how: Any) -> worker.Side:
        if compiler is not None:
            raise RuntimeError("no Triton\nhere")
        return worker.Side(lambda: 1.0, dict)

    monkeypatch.setattr(worker, "ours", lambda job, inputs: (worker.Side(lambda: 1.0, dict), True))
    monkeypatch.setattr(worker, "theirs", theirs)
    answer = worker.answer_of({"target": "cuda", "package": str(tmp_path / "m.tar"), **ROW, "quick": True})
    assert (set(answer["seconds"]), answer["failed"]) == ({OURS, "torch"}, {COMPILED: "RuntimeError: no Triton"})


@pytest.mark.skipif(CXX is None, reason="there is no C++ compiler")
def test_a_kernel_that_faults_is_told_from_a_model_that_fails(
    install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a simulated GPU, by whose driver only the former loses the device."""
    job = {**ROW, "stage": "check", "quick": True, "target": "cuda -arch=sm_90", "package": str(tmp_path / "m.tar")}
    for error, said in (
        ("CUDA_ERROR_ILLEGAL_ADDRESS", "the device is lost by mlc: DeviceError"),
        ("CUDA_ERROR_OUT_OF_MEMORY", "failed on the side of mlc: DeviceError"),
    ):
        call = "cuStreamSynchronize" if "ADDRESS" in error else "cuMemAlloc"
        install(FakeCuda(fail={call: CUresult[error]}))
        answer = worker.answer_of(job)
        assert error in answer["error"]
        assert answer.get(LOST) == (OURS if "ADDRESS" in error else None)
        assert f"check C1 fp32: {said}" in capsys.readouterr().err
    install(FakeCuda())
    assert worker.answer_of(job)["difference"] < 1e-4


def test_a_worker_ends_with_the_benchmark(tmp_path: Path) -> None:
    """Killed, too: else it would be on the device beside that of the next call."""
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho $$ > pid\nsleep 60\n")
    script.chmod(0o755)
    code = "import sys; from pathlib import Path; from benchmarks.gpu.pool import Worker;"
    code += f"sys.executable = {str(script)!r}; Worker(Path('log')).do({{}}, 60)"
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    benchmark = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=environment)
    pid = tmp_path / "pid"
    while not (pid.exists() and pid.read_text().endswith("\n")):
        assert benchmark.poll() is None
        time.sleep(0.05)
    benchmark.kill()
    benchmark.wait()
    state = Path(f"/proc/{pid.read_text().strip()}/stat")
    end = time.monotonic() + 20
    while (there := state.exists() and ") Z " not in state.read_text()) and time.monotonic() < end:
        time.sleep(0.05)
    assert not there


def test_rows_survive_a_run_that_was_killed(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    state = State(file)
    state.keep({**ROW, "error": "the device is gone"})
    assert not state.has(ROW)
    state.keep({**ROW, "seconds": TIMES})
    with file.open("a") as cut:
        cut.write('{"stage": "mea')
    again = State(file)
    assert again.has(ROW)
    assert not again.has({**ROW, "tuned": True})
    assert list(State(file)) == list(again)


def test_what_is_wrong_has_no_figure() -> None:
    right, wrong = {**ROW, "seconds": TIMES}, {**ROW, "model": "C2", "seconds": TIMES, "error": "results differ"}
    assert gain(right) == pytest.approx(1.5)
    assert gain(wrong) is None
    text = document("T", ["cpu: x"], [right, wrong, {**ROW, "stage": "check", "error": "crashed"}])
    assert "0 of 1 results agree" in text
    assert "| C1 | fp32 | no | 2.0000 | 4.0000 | 3.0000 | 1.50 |" in text
    assert "results differ |" in text
    assert "operators, fp32, untuned: 1.50 x the better peer (geometric mean of 1)" in text


def test_figure_7_has_both_sides(pocl: OpenClDevice, tmp_path: Path) -> None:
    how = ["--target", "opencl -device=pocl", "--sizes", "24", "--tiles", "1", "--rounds", "2"]
    tvm_fig7.main([*how, "--out", str(tmp_path)])
    (row,) = json.loads((tmp_path / "tvm_fig7_pocl.json").read_text())["rows"]
    assert {side: config["shared"] for side, config in row["config"].items()} == tvm_fig7.SIDES
    text = (tmp_path / "tvm_fig7_pocl.md").read_text()
    assert "a rehearsal" in text
    assert "| 24 |" in text


POCL = ["--target", "opencl -device=pocl"]


def test_figure_4_counts_launches_of_a_device(
    quick_pocl: OpenClDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tvm_fig4, "WORKLOADS", {"cell": lambda: tvm_fig4.lstm_cell(hidden=8)})
    tvm_fig4.main([*POCL, "--rounds", "2", "--seconds", "0.001", "--out", str(tmp_path)])
    (result,) = json.loads((tmp_path / "tvm_fig4_pocl.json").read_text())["results"]
    assert result["error"] < 1e-5
    assert result["kernels"]["mlc"] < result["kernels"]["mlc[disabled_passes=gates+fuse]"]
    assert devices.REHEARSAL in (tmp_path / "tvm_fig4_pocl.md").read_text()


@pytest.mark.slow
def test_figure_19_has_both_precisions(
    quick_pocl: OpenClDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "WORK", tmp_path / "work")
    tvm_fig19.main(
        ["--target", "opencl -device=mali -driver=pocl", "--models", "dqn", "--small", "--out", str(tmp_path)]
    )
    rows = json.loads((tmp_path / "tvm_fig19_mali-on-pocl.json").read_text())["rows"]
    assert [(r["model"], r["precision"], r["note"]) for r in rows] == [("dqn", "fp32", ""), ("dqn", "fp16", "")]
    assert all(set(r["milliseconds"]) == {"mlc", devices.PLAIN} for r in rows)
    assert {r["timed"] for r in rows} == {"events"}  # nobody of PyTorch's is there
    text = (tmp_path / "tvm_fig19_mali-on-pocl.md").read_text()
    assert devices.REHEARSAL in text
    assert "| dqn | fp16 |" in text


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_figures_14_and_15_have_pytorch_beside(
    quick_pocl: OpenClDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(devices, "WORK", tmp_path / "work")
    for script, model in ((tvm_fig14, "dqn"), (tvm_fig15, "D9")):
        script.main([*POCL, "--models", model, "--small", "--out", str(tmp_path)])
        (row,) = json.loads((tmp_path / f"{script.FIGURE.name}_pocl.json").read_text())["rows"]
        assert {"mlc", "torch"} <= set(row["milliseconds"])


def test_a_figure_goes_on_where_its_time_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    class Answering:
        def __init__(self, log: Path) -> None: ...

        def do(self, job: dict[str, Any], seconds: float) -> dict[str, Any] | None:
            asked.append(job["model"])
            return None if len(asked) == 2 else {"seconds": TIMES, "timed": "events"}

        def close(self) -> None: ...

    monkeypatch.setattr(devices, "WORK", tmp_path / "work")
    monkeypatch.setattr(devices, "Worker", Answering)
    monkeypatch.setattr(devices, "require", lambda *names: None)
    how = [*POCL, "--models", "C1,C2,C3", "--small", "--budget", "60", "--out", str(tmp_path)]
    for left, rows in (("1 left for the next call", ["C1", "C3"]), ("", ["C1", "C2", "C3"])):
        tvm_fig15.main(how)
        assert left in capsys.readouterr().out
        found = json.loads((tmp_path / "tvm_fig15_pocl.json").read_text())["rows"]
        assert [r["model"] for r in found] == rows
    assert asked == ["C1", "C2", "C3", "C2"]
    tvm_fig15.main([*how, "--fresh"])
    assert asked[4:] == ["C1", "C2", "C3"]


def test_figures_refuse_what_they_cannot_measure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["--models", "bert_base"], "the figure has no 'bert_base'; it has resnet18, mobilenet_v1"),
        (["--target", "x86"], "target 'x86' has no device"),
        (["--target", "cuda -arch=sm_1"], "unknown architecture 'sm_1'"),
    ):
        with pytest.raises(SystemExit) as caught:
            tvm_fig14.main([*arguments, "--out", str(tmp_path)])
        assert caught.value.code == 2
        assert message in capsys.readouterr().err

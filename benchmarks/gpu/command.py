"""Models on a GPU, beside PyTorch on the same one, checked first.

    python -m benchmarks.gpu                      # check, then measure
    python -m benchmarks.gpu tune                 # tune what was measured
    python -m benchmarks.gpu measure --tuned      # measure again, with what was found

Every call ends in time (--budget), keeps each row as soon as it is there, and goes on where the last one ended.
Packages are built, models checked, tuned and compiled by PyTorch several at a time (--jobs), measured one after the
other. The rows are in state.jsonl of the folder --work, the table is made anew at the end of every call. Operators and
networks are those of benchmarks.zoo, at batch 1. PyTorch is measured eager and compiled with max-autotune, both as a
CUDA graph, with inputs on the device and TF32 off; both sides by events around one launch of the graph, in turns. What
is wrong or fails is in the table with the reason, and is tried again by the next call. Records of the stage tune are
put where mlc ships those of the device (of a rehearsal, in the folder --work).

With --target "opencl -device=pocl" --quick the same runs on a processor, with PyTorch's processor side as the peer.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import onnx

import mlc
from benchmarks import machine
from benchmarks.gpu.pool import Job, Worker
from benchmarks.gpu.state import State
from benchmarks.gpu.table import COMPILED, SIDES, document, gain
from benchmarks.papers.needs import require
from benchmarks.processes import end_with_parent
from benchmarks.zoo import MODELS, build
from mlc.errors import DeviceError, MlcError
from mlc.records.best import compacted
from mlc.records.files import read_records, write_records
from mlc.records.places import shipped_file
from mlc.records.record import DECIDED
from mlc.runtime.device import open_device
from mlc.targets.base import get_target

RESULTS, WORK = Path("benchmarks/results"), Path("build/gpu")
BUDGET = 530.0  # seconds: a lent machine takes commands of ten minutes
LEAST = 20.0  # seconds that must be left for another job
LONGEST = {"build": 240.0, "check": 120.0, "peer": 240.0, "measure": 240.0}  # seconds of one job
COMPILING = 0.6  # of the time that is left when measuring begins, for PyTorch's compiler
SHARING = 4  # jobs at a time that use the device for moments only: checks, and tuning, whose runs take turns on it
UNFINISHED = {"unfinished": "the time was up"}  # a job that the next call begins again, or goes on with
NETWORKS = ("resnet18", "resnet50", "mobilenet_v1", "mobilenet_v2", "dqn", "dcgan", "lstm_lm", "bert_base")
OPERATORS = tuple(name for name, spec in MODELS.items() if spec.kind == "operator")
MEASURED = (*NETWORKS, *OPERATORS)
PRECISIONS = ("fp32", "fp16")


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    found = argparse.ArgumentParser(
        "python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("stages", nargs="*", metavar="STAGE", help="check, measure, tune; check and measure if none")
    found.add_argument("--target", default="cuda", help="what for (%(default)s)")
    found.add_argument("--models", type=_names, help="of the zoo, separated by commas; all unless given")
    found.add_argument("--precisions", type=_names, default=PRECISIONS, help="fp32,fp16 unless given")
    found.add_argument("--tuned", action="store_true", help="measure with the records of the stage tune")
    found.add_argument("--trials", type=int, default=300, help="of the stage tune, each model (%(default)s)")
    found.add_argument("--peers", type=_names, default=SIDES[1:], help="torch,torch.compile unless given")
    found.add_argument("--jobs", type=int, default=os.cpu_count(), help="at a time (%(default)s)")
    found.add_argument("--budget", type=float, default=BUDGET, help="seconds of this call (%(default)s)")
    found.add_argument("--quick", action="store_true", help="small variants of the models, for a rehearsal")
    found.add_argument("--fresh", action="store_true", help="forget what earlier calls have found")
    found.add_argument("--work", type=Path, help="folder of packages and of what was found; build/gpu/<device>")
    found.add_argument("--out", type=Path, help="folder of results; benchmarks/results/<device> unless given")
    return found


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code is 1 where something is wrong, and 3 where the time was up before all was done."""
    options = parser().parse_args(arguments)
    stages = options.stages or ["check", "measure"]
    for what, given, known in (
        ("stage", stages, ("check", "measure", "tune")),
        ("model", options.models or (), MODELS),
        ("precision", options.precisions, PRECISIONS),
        ("peer", options.peers, SIDES[1:]),
    ):
        for name in given:
            if name not in known:
                parser().error(f"unknown {what} {name!r}; known: {', '.join(known)}")
    if "measure" in stages:
        require("gpu", "torch")
    try:
        accelerator = get_target(options.target).accelerator
    except MlcError as error:
        parser().error(error.message)
    if accelerator is None:
        parser().error(f"target {options.target!r} has no device")
    try:
        open_device(accelerator.device, accelerator.options()).close()
    except DeviceError as error:  # before hours of work, and before tables of such a device are written over
        raise SystemExit(f"python -m benchmarks.gpu: {error.message}; {error.hint}") from None
    device = str(accelerator.processor).split("-", 1)[1]
    out: Path = options.out or RESULTS / device
    out.mkdir(parents=True, exist_ok=True)
    work: Path = options.work or WORK / device
    file = work / "state.jsonl"
    if options.fresh:
        file.unlink(missing_ok=True)
    run = _Run(options, work, State(file))
    try:
        for stage in stages:
            run.stage(stage)
    finally:
        run.close()
        _write(out, f"Models on {device}", options, run.state)
    print(f"{out / 'bench.md'}: {run.done} done, {run.wrong} wrong or failed, {run.left} left for the next call")
    return 1 if run.wrong else 3 if run.left else 0


class _Run:
    """One call of the command.

    Attributes:
        done, wrong, left: jobs that went well, that did not, and for which there was no time.
    """

    def __init__(self, options: argparse.Namespace, work: Path, state: State) -> None:
        self._options = options
        self._work = work
        self._records = work / "records.jsonl" if options.quick else shipped_file(get_target(options.target))
        self.state = state
        self._end = time.monotonic() + options.budget
        self._jobs_at_once = max(1, options.jobs)
        self._workers = [Worker(work / "worker.log") for _ in range(self._jobs_at_once)]
        # processes end with the thread that started them, so threads are there as long as the run is
        self._threads = ThreadPoolExecutor(self._jobs_at_once)
        self._lock = threading.Lock()
        self._failed: dict[str, str] = {}  # why PyTorch's compiler has not compiled a model
        self.done = self.wrong = self.left = 0

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._threads.shutdown()

    def stage(self, stage: str) -> None:
        """All jobs of a stage that were not done before, as long as there is time."""
        jobs = [job for job in self._jobs(stage) if not self.state.has(job)]
        if stage != "tune":
            self._side_by_side(self._packages(jobs), self._jobs_at_once, self._build)
        if stage == "measure" and COMPILED in self._options.peers:
            jobs = self._compiled(jobs)
        together = 1 if stage == "measure" else min(SHARING, self._jobs_at_once)
        self._side_by_side(jobs, together, self._job)

    def _compiled(self, jobs: Sequence[Job]) -> list[Job]:
        """Has PyTorch compile what is to be measured: it chooses kernels for minutes, on one core a model.

        Returns:
            what can be measured: not what its compiler had no time for, which is left for the next call.
        """
        end = time.monotonic() + COMPILING * max(0.0, self._end - time.monotonic())
        late: list[Job] = []

        def compile_one(job: Job, worker: Worker) -> None:
            longest, left = LONGEST["peer"], end - time.monotonic()
            answer = worker.do({**self._whole(job), "stage": "peer"}, min(longest, left)) if left > 0 else None
            with self._lock:
                if answer is None and left <= longest:
                    late.append(job)
                elif answer is None:
                    self._failed[_name(job)] = f"took longer than {longest:.0f} s"
                elif answer.get("error"):
                    self._failed[_name(job)] = answer["error"]

        largest = sorted(jobs, key=lambda job: MODELS[job["model"]].kind != "network")
        self._side_by_side(largest, self._jobs_at_once, compile_one)
        self.left += len(late)
        return [job for job in jobs if job not in late]

    def _side_by_side(self, jobs: Iterable[Job], lanes: int, action: Callable[[Job, Worker], None]) -> None:
        """Does jobs in their order, some at a time, each of these with a worker of its own."""
        waiting = iter(jobs)

        def lane(worker: Worker) -> None:
            while True:
                with self._lock:
                    job = next(waiting, None)
                if job is None:
                    return
                action(job, worker)

        list(self._threads.map(lane, self._workers[:lanes]))
        for worker in self._workers:  # whoever comes next must not find the device busy, or its memory taken; nor be in
            worker.close()  # a process that others have used: what they broke in it, it would answer for

    def _packages(self, jobs: Sequence[Job]) -> list[Job]:
        """What to build for jobs, the largest models first, since they take longest."""
        wanted = [whole for job in jobs if not Path((whole := self._whole(job))["package"]).exists()]
        return sorted(wanted, key=lambda job: MODELS[job["model"]].kind != "network")

    def _build(self, whole: Job, worker: Worker) -> None:
        """Makes a package. Where that fails, the job that wants it says so."""
        left = self._end - time.monotonic()
        if left > LEAST:
            worker.do({**whole, "stage": "build"}, min(LONGEST["build"], left))

    def _job(self, job: Job, worker: Worker) -> None:
        """Does a job, unless the time is up, and keeps what comes of it."""
        stage, left = job["stage"], self._end - time.monotonic()
        if left < min(LEAST, self._options.budget / 4):
            with self._lock:
                self.left += 1
            return
        start = time.monotonic()
        answer = self._tune(job, left) if stage == "tune" else self._done(job, worker, left)
        row = {**job, **answer, "took": round(time.monotonic() - start, 2)}
        with self._lock:
            self.state.keep(row)
            self.wrong += bool(row.get("error"))
            self.left += bool(row.get("unfinished"))
            self.done += not (row.get("error") or row.get("unfinished"))
            ratio = gain(row)
            what = row.get("error") or row.get("unfinished")
            what = what or (f"{ratio:.2f} x the better peer" if ratio is not None else "good")
            print(f"{stage:8}{job['model']:16}{job['precision']:6}{what}", flush=True)

    def _done(self, job: Job, worker: Worker, left: float) -> Job:
        """What the worker says, or why it says nothing."""
        longest, whole = LONGEST[job["stage"]], self._whole(job)
        failed = self._failed.get(_name(job)) if job["stage"] == "measure" else None
        if failed:  # what is measured without it is better than nothing
            whole["peers"] = [name for name in whole["peers"] if name != COMPILED]
        answer = worker.do(whole, min(longest, left))
        if answer is None:
            return {"error": f"took longer than {longest:.0f} s"} if left > longest else dict(UNFINISHED)
        return {**answer, "failed": {COMPILED: failed, **answer.get("failed", {})}} if failed else answer

    def _jobs(self, stage: str) -> Iterator[Job]:
        some = self._options.models or (MODELS if stage == "check" else MEASURED)
        for precision in self._options.precisions:
            for model in some:
                yield {
                    "stage": stage,
                    "model": model,
                    "precision": precision,
                    "tuned": self._options.tuned and stage == "measure",
                    "quick": self._options.quick,
                }

    def _whole(self, job: Job) -> Job:
        """With what the worker must know besides."""
        how = "tuned" if job["tuned"] else "untuned"
        size = "small" if job["quick"] else "full"
        made_by = f"{_code()}-{_digest([self._records])}" if job["tuned"] else _code()
        package = self._work / "packages" / made_by / f"{job['model']}-{job['precision']}-{how}-{size}.tar"
        records = str(self._records) if job["tuned"] else ""
        whole = {**job, "target": self._options.target, "package": str(package), "records": records}
        return {**whole, "peers": list(self._options.peers)} if job["stage"] == "measure" else whole

    def _tune(self, job: Job, left: float) -> Job:
        """Tunes a model in a process of its own, and keeps what was decided among the records."""
        folder = self._work / "tuning"
        folder.mkdir(parents=True, exist_ok=True)
        name = _name(job)
        file, journal = folder / f"{name}.onnx", folder / f"{name}.jsonl"
        onnx.save(build(job["model"], small=job["quick"]), file)
        told = folder / f"{name}.json"
        spent = float((self.state.row(job) or {}).get("spent", 0))
        seconds = max(5.0, left - max(LEAST, left / 4))  # then it decides, and compares the whole model
        unfinished = {**UNFINISHED, "spent": spent + seconds}
        command = [sys.executable, "-m", "mlc", "-q", "tune", str(file), "--target", self._options.target]
        command += ["--trials", str(self._options.trials), "-o", str(journal), "--json", str(told)]
        command += ["--time-budget", f"{spent + seconds:.0f}s"]  # that of earlier calls included
        command += ["--threads", "1", *(["--fp16"] if job["precision"] == "fp16" else [])]
        with (self._work / "worker.log").open("ab") as log:
            settings: dict[str, Any] = {"stderr": log, "stdout": log, "preexec_fn": end_with_parent}
            try:
                code = subprocess.run(command, check=False, timeout=left, **settings).returncode
            except subprocess.TimeoutExpired:
                return unfinished  # the journal is gone on from
        if code:
            return {"error": f"exit code {code} of {shlex.join(command)}"}
        kept = self._records
        found = [r for r in compacted(read_records([journal]).records) if r.explorer == DECIDED]
        with self._lock:
            before = read_records([kept]).records if kept.exists() else []
            write_records(kept, compacted([*before, *found]))
        over = json.loads(told.read_text())["limit"] == "time"
        if not found and not over:
            return {"error": "no configuration could be decided for", "spent": spent}
        return {"decided": len(found), **(unfinished if over else {})}


def _name(job: Job) -> str:
    return f"{job['model']}-{job['precision']}"


@cache
def _code() -> str:
    """A digest of this compiler: a package that another one has made is not run again."""
    return _digest(sorted(Path(mlc.__file__).parent.rglob("*.py")))


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes() if file.exists() else b"")
    return digest.hexdigest()[:12]


def _write(out: Path, title: str, options: argparse.Namespace, state: State) -> None:
    """The rows as JSON and as a table."""
    facts = {**machine.describe(), "target": options.target, "sizes": "small variants" if options.quick else "full"}
    rows = list(state)
    (out / "bench.json").write_text(json.dumps({"machine": facts, "rows": rows}, indent=1) + "\n")
    (out / "bench.md").write_text(document(title, [f"{k}: {v}" for k, v in facts.items()], rows))

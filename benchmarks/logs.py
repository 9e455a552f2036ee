"""Tunes the zoo on this machine and writes the records that ``mlc`` ships: ``python -m benchmarks.logs``.

All trials are kept in ``build/logs``, so a run that was stopped goes on where it was. What is shipped is what was
decided for each kernel, by number of threads, in one file a processor. What is in it already stays: records
of other networks and other numbers of threads.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import onnx

from benchmarks.command import GROUPS
from benchmarks.zoo import MODELS, build, is_model
from mlc.records.best import compacted
from mlc.records.files import read_records, write_records
from mlc.records.places import shipped_file
from mlc.records.record import DECIDED, Record
from mlc.targets.base import get_target

JOURNALS = Path("build/logs")


def tune(name: str, threads: int, options: argparse.Namespace) -> int:
    """Tunes a model of the zoo in a process of its own; its exit code."""
    file = JOURNALS / f"{name}.onnx"
    onnx.save(build(name), file)
    command = [sys.executable, "-m", "mlc", "tune", str(file), "--target", options.target, "--threads", str(threads)]
    command += ["--trials", str(options.trials), "-o", str(journal(name, threads))]
    if options.time_budget:
        command += ["--time-budget", options.time_budget]
    return subprocess.run(command, check=False).returncode


def journal(name: str, threads: int) -> Path:
    """All trials of a model."""
    return JOURNALS / f"{name}-{threads}.jsonl"


def decided(name: str, threads: int) -> list[Record]:
    """What a network's run has decided for, the whole network being checked."""
    if not journal(name, threads).exists():
        return []
    return [r for r in compacted(read_records([journal(name, threads)]).records) if r.explorer == DECIDED]


def ship(target: str, records: Sequence[Record]) -> Path:
    """Adds some records to those that are shipped; the file of the target's processor."""
    path = shipped_file(get_target(target))
    shipped = read_records([path]).records if path.exists() else []
    path.parent.mkdir(parents=True, exist_ok=True)
    write_records(path, compacted([*shipped, *records]))
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.logs", description=__doc__)
    names = GROUPS["networks"]
    parser.add_argument(
        "--models", default=",".join(names), help="of the zoo, NAME.int8 as well, with commas in between"
    )
    parser.add_argument("--target", default="x86", help="what to tune for; this machine has to run it")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", default="1" if cores == 1 else f"1,{cores}", help="numbers of threads")
    parser.add_argument("--trials", type=int, default=400, help="of each network, for each number of threads")
    parser.add_argument("--time-budget", help="for each, e.g. 5m")
    parser.add_argument("--ship-only", action="store_true", help="tune nothing, write what was found so far")
    options = parser.parse_args(arguments)
    chosen = options.models.split(",")
    unknown = [name for name in chosen if not is_model(name)]
    if unknown:
        parser.error(f"no model is called {unknown[0]!r}; there are {', '.join(MODELS)}, and NAME.int8")
    try:
        threads = [int(n) for n in options.threads.split(",")]
    except ValueError:
        parser.error(f"--threads {options.threads!r}: not whole numbers with commas in between")
    JOURNALS.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in chosen:
        for n in threads:
            print(f"== {name}, {n} threads", flush=True)
            code = 0 if options.ship_only else tune(name, n, options)
            if code == 130:
                return code
            if code:
                failed.append(f"{name}-{n}")
            found = decided(name, n) if code == 0 else []
            print(f"{ship(options.target, found)}: {len(found)} records of {name} on {n} threads", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

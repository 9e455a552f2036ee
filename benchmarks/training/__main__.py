"""Training steps and inference against PyTorch: ``python -m benchmarks.training``, on a machine that does nothing else.

A step is what trains once: forward, loss, all derivatives, and SGD with momentum; inference is the forward part alone.
Ours, PyTorch as it stands and ``torch.compile`` of it do some calls each in turns, on the same batch from the same
parameters; before that their first losses are compared. Every case has a process of its own. Results go to a JSON file
case by case, so that a run that was stopped goes on, and to a table beside it.

Compiling takes much longer than measuring. ``--prepare`` does it alone, beforehand and beside whatever else runs; what
it made lies in a folder, and a later run finds it there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.training.report import KNOWN, NOVEL, report
from mlc.runtime.atomic import atomic_write

KINDS = ("step", "inference")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; ``arguments`` default to those of the process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=__doc__)
    add = parser.add_argument
    add("networks", nargs="*", default=[*NOVEL, *KNOWN], help=f"of {', '.join((*NOVEL, *KNOWN))}")
    add("--batch", type=int, nargs="+", default=[1, 4, 16, 64], help="examples in a step")
    add("--threads", type=int, nargs="+", default=[1, 2], help="that run a step")
    add("--kind", nargs="+", choices=KINDS, default=KINDS, help="what is measured")
    add("--out", type=Path, required=True, help="FILE.json of results; the table is FILE.md")
    add("--again", action="store_true", help="measure what the file holds once more")
    add("--prepare", action="store_true", help="compile, and measure nothing")
    add("--minutes", type=float, default=float("inf"), help="begin no case later than that")
    add("--folder", type=Path, default=Path("build/training"), help="for what is compiled")
    options = parser.parse_args(arguments)
    found: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    found.setdefault("machine", describe())
    cases = found.setdefault("cases", {})
    end = time.monotonic() + 60 * options.minutes
    keys = [
        f"{kind} {name} {batch} {threads}"
        for threads in options.threads
        for batch in options.batch
        for name in options.networks
        for kind in options.kind
    ]
    for key in keys:
        if (key in cases and not options.again) or time.monotonic() > end:
            continue
        case = run(options.folder, key, prepare=options.prepare)
        print(key, json.dumps(case), file=sys.stderr, flush=True)
        if not options.prepare:
            cases[key] = {**case, "date": describe()["date"]}
            options.out.parent.mkdir(parents=True, exist_ok=True)
            _write(options.out, json.dumps(found, indent=1) + "\n")
            _write(options.out.with_suffix(".md"), report(found))


def run(folder: Path, key: str, *, prepare: bool) -> dict[str, Any]:
    """One case in a process of its own: what it printed, or why it ended."""
    command = [sys.executable, "-m", "benchmarks.training.case", str(folder), *key.split()]
    done = subprocess.run([*command, *["--prepare"] * prepare], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result
    why = done.stderr.strip().splitlines()[-1:] or [f"ended by signal {-done.returncode}"]
    return {"losses": {}, "failures": {"all": why[0][:300]}, "agrees": False, "times": {}, "rounds": 0}


def _write(path: Path, text: str) -> None:
    with atomic_write(path) as file:
        file.write(text.encode())


if __name__ == "__main__":
    main()

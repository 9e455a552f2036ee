"""Memory of a training step against PyTorch's: ``python -m benchmarks.training.memory``.

Every engine has a process of its own that makes its parameters, a batch and the optimizer's memory, and does some
steps (as :mod:`benchmarks.training.engines`). What counts is by how much the process grows at most, as the system sees
it: its greatest resident set since it began with parameters, less what was resident before. Ours is measured twice: as
it is, and with ``--memory`` of half of PyTorch's, or where that is refused, the least that the refusal names. Then both
do steps in turns, which takes a machine that does nothing else; ``--no-times`` leaves that out.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe
from benchmarks.report import table
from benchmarks.training.case import times_of
from mlc.errors import UnsupportedError
from mlc.runtime import load_module
from mlc.runtime.atomic import atomic_write

STEPS = 4
MIB = 1 << 20
EAGER, WHOLE, HALF, LEAST = "eager", "whole", "half", "least"
_LEAST = re.compile(r"a run takes at least (\d+) bytes")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; ``arguments`` default to those of the process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training.memory", description=__doc__)
    add = parser.add_argument
    add("networks", nargs="+", help="see python -m benchmarks.training")
    add("--batch", type=int, default=16, help="examples in a step")
    add("--out", type=Path, help="FILE.json of results; the table is FILE.md")
    add("--folder", type=Path, default=Path("build/training-memory"), help="for what is compiled")
    add("--no-times", dest="times", action="store_false", help="measure memory alone")
    add("--prepare", action="store_true", help="compile, and measure memory, for a later call")
    add("--one", help=argparse.SUPPRESS)
    add("--limit", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        (name,) = options.networks
        print(json.dumps(_PARTS[options.one](name, options.batch, options.folder, options.limit)))
        return
    if options.out is None:
        parser.error("--out is required")
    found: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    found.setdefault("machine", describe())
    cases = found.setdefault("cases", {})
    for name in options.networks:
        key = f"{name} {options.batch}"
        case = cases.setdefault(key, {})
        if "peaks" not in case:
            case |= _peaks(name, options.batch, options.folder)
        if options.times and not options.prepare:
            case |= _part("times", name, options.batch, options.folder)
        print(key, json.dumps(case), file=sys.stderr, flush=True)
        for path, text in ((options.out, json.dumps(found, indent=1) + "\n"), (_table_of(options.out), report(found))):
            with atomic_write(path) as file:
                file.write(text.encode())


def _table_of(out: Path) -> Path:
    return out.with_suffix(".md")


def _peaks(name: str, batch: int, folder: Path) -> dict[str, Any]:
    """Bytes by engine, and those that each version of ours was told to keep within."""
    peaks = {EAGER: _part("eager", name, batch, folder)["peak"]}
    limits: dict[str, int | None] = {WHOLE: None, HALF: peaks[EAGER] // 2}
    case: dict[str, Any] = {"peaks": peaks, "limits": limits}
    for version, limit in list(limits.items()):
        made = _part("make", name, batch, folder / version, limit)
        if "least" in made:
            del limits[version]
            version, limits[LEAST] = LEAST, made["least"]
            made = _part("make", name, batch, folder / version, made["least"])
        peaks[version] = _part("run", name, batch, folder / version)["peak"]
        case.setdefault("steps", {})[version] = made["steps"]
    return case


def _part(what: str, name: str, batch: int, folder: Path, limit: int | None = None) -> dict[str, Any]:
    """What a process of its own prints."""
    command = [sys.executable, "-m", "benchmarks.training.memory", name, "--batch", str(batch), "--one", what]
    command += ["--folder", str(folder), *(["--limit", str(limit)] if limit is not None else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _grown(begin: Callable[[], Callable[[], object]]) -> dict[str, int]:
    """By how many bytes this process grows at most while it begins and then does some steps."""
    gc.collect()
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the greatest resident set counts from here
    step = begin()
    for _ in range(STEPS):
        step()
    return {"peak": _status("VmHWM") - before}


def _status(field: str) -> int:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{field}:")]
    return int(line.split()[1]) << 10


def _eager(name: str, batch: int, folder: Path, limit: int | None) -> dict[str, int]:
    import torch

    from benchmarks.training.engines import EAGER as AS_IT_STANDS
    from benchmarks.training.engines import steps
    from benchmarks.training.networks import network

    torch.set_num_threads(1)
    net = network(name, batch)
    make = steps(net, 1, folder)[AS_IT_STANDS]
    torch.ones(8).exp_()  # what the library takes for itself
    return _grown(make)


def _make(name: str, batch: int, folder: Path, limit: int | None) -> dict[str, int]:
    import mlc
    from benchmarks.training.engines import MOMENTUM, RATE, RATES
    from benchmarks.training.networks import network
    from mlc.api.training import wrapped
    from mlc.training.optimizers import optimizer

    learns = optimizer("sgd", momentum=MOMENTUM)
    net = network(name, batch)
    step = net.step(learns)
    try:
        package = mlc.compile(wrapped(step.graph), threads=1, max_kernels=None, memory=limit)
    except UnsupportedError as error:
        found = _LEAST.search(error.message)
        if found is None:
            raise
        return {"least": int(found[1])}
    folder.mkdir(parents=True, exist_ok=True)
    package.save(folder / f"{name}-{batch}.tar")
    rates = np.array(learns.rates(RATE, 1), np.float32)
    arrays = {**net.batch(step), **step.parameters, **step.statistics, **step.moments, RATES: rates}
    with atomic_write(_arrays(folder, name, batch)) as file:
        np.savez(file, **arrays)
    return {"steps": len(package.manifest.steps)}


def _arrays(folder: Path, name: str, batch: int) -> Path:
    return folder / f"{name}-{batch}.npz"


def _stepping(name: str, batch: int, folder: Path) -> Callable[[], object]:
    """What does a step of ours from a package."""
    from mlc.training.step import NEXT

    module = load_module(folder / f"{name}-{batch}.tar", 1)
    with np.load(_arrays(folder, name, batch)) as data:
        tensors = dict(data)

    def step() -> None:
        results = module.run(tensors)
        tensors.update({n: results[n + NEXT] for n in tensors if n + NEXT in results})

    return step


def _run(name: str, batch: int, folder: Path, limit: int | None) -> dict[str, int]:
    return _grown(lambda: _stepping(name, batch, folder))


def _times(name: str, batch: int, folder: Path, limit: int | None) -> dict[str, Any]:
    calls = {
        v: _stepping(name, batch, folder / v) for v in (WHOLE, HALF, LEAST) if _arrays(folder / v, name, batch).exists()
    }
    return {"times": times_of(calls)[0]}


_PARTS: Mapping[str, Callable[[str, int, Path, int | None], dict[str, Any]]] = {
    "eager": _eager, "make": _make, "run": _run, "times": _times,
}  # fmt: skip


def report(found: Mapping[str, Any]) -> str:
    """The table of all cases."""
    rows = []
    for key, case in found["cases"].items():
        if "peaks" not in case:
            continue
        peaks, times = case["peaks"], case.get("times", {})
        for version in (v for v in (WHOLE, HALF, LEAST) if v in peaks):
            limit = case["limits"].get(version)
            rows.append(
                [
                    *key.split(), "-" if limit is None else f"{limit / MIB:.0f}", f"{peaks[version] / MIB:.0f}",
                    f"{peaks[EAGER] / MIB:.0f}", f"{peaks[version] / peaks[EAGER]:.2f}",
                    f"{times[version]:.1f}" if version in times else "-",
                    f"{times[version] / times[WHOLE]:.2f}" if version in times else "-",
                ]
            )  # fmt: skip
    heads = ["network", "batch", "--memory, MiB", "mlc, MiB", "PyTorch, MiB", "mlc / PyTorch", "step, ms", "/ without"]
    return "\n".join(["# Memory of training steps", "", *table(heads, rows), ""])


if __name__ == "__main__":
    main()

"""Memory of a training step against PyTorch's: ``python -m benchmarks.training.memory``.

Every engine has a process of its own that makes its parameters, a batch and the optimizer's memory, and does some
steps. What counts is by how much the process grows at most, as the system sees it: its greatest resident set since it
began with parameters, less what was resident before. Ours is measured twice: as it is, and, with ``--half``, with
``--memory`` of half of PyTorch's, or where that is refused, the least that the refusal names. Then both do steps in
turns, which takes a machine that does nothing else; ``--no-times`` leaves that out.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe
from benchmarks.report import table
from benchmarks.training.case import times_of
from mlc.errors import UnsupportedError
from mlc.runtime import load_module
from mlc.runtime.atomic import atomic_write
from mlc.training.optimizers import Optimizer, optimizer
from mlc.training.schedules import Schedule
from mlc.training.step import LOSS, NUMBER

STEPS = 4
RATE = 1e-3
MIB = 1 << 20
OPTIMIZERS: Mapping[str, tuple[str, float, float]] = {  # by our name, momentum, decay
    "sgd": ("sgd", 0.0, 0.0), "momentum": ("sgd", 0.9, 0.0), "adam": ("adam", 0.0, 0.0), "adamw": ("adamw", 0.0, 0.01),
}  # fmt: skip
EAGER, WHOLE, HALF, LEAST = "eager", "whole", "half", "least"
_LEAST = re.compile(r"a run takes at least (\d+) bytes")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; ``arguments`` default to those of the process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training.memory", description=__doc__)
    add = parser.add_argument
    add("networks", nargs="+", help="see python -m benchmarks.training")
    add("--batch", type=int, default=16, help="examples in a step")
    add("--optimizer", choices=OPTIMIZERS, default="momentum", help="what follows derivatives")
    add("--half", action="store_true", help="with half of PyTorch's memory, too")
    add("--out", type=Path, help="FILE.json of results; the table is FILE.md")
    add("--folder", type=Path, default=Path("build/training-memory"), help="for what is compiled")
    add("--no-times", dest="times", action="store_false", help="measure memory alone")
    add("--prepare", action="store_true", help="compile, and measure memory, for a later call")
    add("--one", help=argparse.SUPPRESS)
    add("--limit", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        (name,) = options.networks
        case = Case(name, options.batch, options.optimizer, options.folder)
        print(json.dumps(_PARTS[options.one](case, options.limit)))
        return
    if options.out is None:
        parser.error("--out is required")
    found: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    found.setdefault("machine", describe())
    cases = found.setdefault("cases", {})
    for name in options.networks:
        asked = Case(name, options.batch, options.optimizer, options.folder)
        case = cases.setdefault(asked.key, {})
        if "peaks" not in case or (options.half and len(case["peaks"]) < 3):
            case |= _peaks(asked, half=options.half)
        if options.times and not options.prepare:
            case |= _part("times", asked)
        print(asked.key, json.dumps(case), file=sys.stderr, flush=True)
        for path, text in ((options.out, json.dumps(found, indent=1) + "\n"), (_table_of(options.out), report(found))):
            with atomic_write(path) as file:
                file.write(text.encode())


@dataclass(frozen=True)
class Case:
    """A network, the examples in a step, its optimizer, and a folder for what is compiled."""

    name: str
    batch: int
    optimizer: str
    folder: Path

    @property
    def key(self) -> str:
        return f"{self.name} {self.batch} {self.optimizer}"

    def version(self, version: str) -> Case:
        """The same, in a folder of its own."""
        return replace(self, folder=self.folder / version)

    def file(self, suffix: str) -> Path:
        """One of what is compiled: the package, and the arrays that it takes."""
        return self.folder / f"{self.name}-{self.batch}-{self.optimizer}{suffix}"


def _table_of(out: Path) -> Path:
    return out.with_suffix(".md")


def _peaks(case: Case, *, half: bool) -> dict[str, Any]:
    """Bytes by engine, and those that each version of ours was told to keep within."""
    peaks = {EAGER: _part("eager", case)["peak"]}
    limits: dict[str, int | None] = {WHOLE: None, **({HALF: peaks[EAGER] // 2} if half else {})}
    steps: dict[str, int] = {}
    for version, limit in list(limits.items()):
        made = _part("make", case.version(version), limit)
        if "least" in made:
            del limits[version]
            version, limits[LEAST] = LEAST, made["least"]
            made = _part("make", case.version(version), made["least"])
        peaks[version] = _part("run", case.version(version))["peak"]
        steps[version] = made["steps"]
    return {"peaks": peaks, "limits": limits, "steps": steps}


def _part(what: str, case: Case, limit: int | None = None) -> dict[str, Any]:
    """What a process of its own prints."""
    command = [sys.executable, "-m", "benchmarks.training.memory", case.name, "--batch", str(case.batch), "--one", what]
    command += ["--optimizer", case.optimizer, "--folder", str(case.folder)]
    command += ["--limit", str(limit)] if limit is not None else []
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


def _eager(case: Case, limit: int | None) -> dict[str, int]:
    import torch

    from benchmarks.training.networks import network

    torch.set_num_threads(1)
    net = network(case.name, case.batch)
    step = net.step(_ours(case), Schedule(RATE))
    batch = net.batch(step)
    name, momentum, decay = OPTIMIZERS[case.optimizer]

    def begin() -> Callable[[], object]:
        parameters = net.parameters(step)
        given, learned = net.torch_batch(batch), list(parameters.values())
        update: torch.optim.Optimizer
        if name == "sgd":
            update = torch.optim.SGD(learned, RATE, momentum=momentum)
        else:
            update = (torch.optim.Adam if name == "adam" else torch.optim.AdamW)(learned, RATE, weight_decay=decay)

        def advance() -> None:
            update.zero_grad(set_to_none=True)
            net.torch_loss(parameters, given).backward()
            update.step()

        return advance

    torch.ones(8).exp_()  # what the library takes for itself
    return _grown(begin)


def _ours(case: Case) -> Optimizer:
    name, momentum, decay = OPTIMIZERS[case.optimizer]
    return optimizer(name, momentum=momentum, decay=decay)


def _make(case: Case, limit: int | None) -> dict[str, int]:
    import mlc
    from benchmarks.training.networks import network
    from mlc.api.training import wrapped

    learns = _ours(case)
    net = network(case.name, case.batch)
    step = net.step(learns, Schedule(RATE))
    try:
        package = mlc.compile(wrapped(step.graph, step.updates), threads=1, max_kernels=None, memory=limit)
    except UnsupportedError as error:
        found = _LEAST.search(error.message)
        if found is None:
            raise
        return {"least": int(found[1])}
    case.folder.mkdir(parents=True, exist_ok=True)
    package.save(case.file(".tar"))
    arrays = {**net.batch(step), **step.parameters, **step.statistics, **step.moments, NUMBER: np.ones(1, np.int64)}
    with atomic_write(case.file(".npz")) as file:
        np.savez(file, **arrays)
    return {"steps": len(package.manifest.steps)}


def _stepping(case: Case) -> Callable[[], float]:
    """What does a step of ours from a package, with all that is updated in place, and gives its loss."""
    module = load_module(case.file(".tar"), 1)
    with np.load(case.file(".npz")) as data:
        tensors = dict(data)
    places = {new: tensors[old] for new, old in module.manifest.updates.items()}
    return lambda: float(module.run(tensors, places)[LOSS].reshape(-1)[0])


def _run(case: Case, limit: int | None) -> dict[str, int]:
    return _grown(lambda: _stepping(case))


def _times(case: Case, limit: int | None) -> dict[str, Any]:
    versions = [v for v in (WHOLE, HALF, LEAST) if case.version(v).file(".npz").exists()]
    return {"times": times_of({v: _stepping(case.version(v)) for v in versions})[0]}


_PARTS: Mapping[str, Callable[[Case, int | None], dict[str, Any]]] = {
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
    heads = [
        "network",
        "batch",
        "optimizer",
        "--memory, MiB",
        "mlc, MiB",
        "PyTorch, MiB",
        "mlc / PyTorch",
        "step, ms",
        "/ without",
    ]
    return "\n".join(["# Memory of training steps", "", *table(heads, rows), ""])


if __name__ == "__main__":
    main()

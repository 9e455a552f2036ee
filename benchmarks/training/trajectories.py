"""Losses of 200 steps beside PyTorch's, of whole networks: ``python -m benchmarks.training.trajectories --out F.json``.

Ours and PyTorch's begin with the same parameters and see the same batches, sixteen in turns; both compute in float32.
How far rounding alone leads is told beside it, where ``--judge`` asks for it: PyTorch's losses from parameters that
differ in their last bits. Batch norms over few numbers and rectifiers behind them multiply that from step to step.
Results go to a JSON file case by case, so that a run that was stopped goes on, and to a table beside it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mlc
from benchmarks.machine import describe
from benchmarks.report import table
from benchmarks.training.networks import NETWORKS, Network, network
from mlc.api.training import wrapped
from mlc.runtime.atomic import atomic_write
from mlc.training.loop import own
from mlc.training.optimizers import Optimizer, optimizer
from mlc.training.schedules import Schedule
from mlc.training.step import LOSS, NUMBER, TrainingStep

STEPS, BATCHES, CLOSE = 200, 16, 1e-3
Twin = Callable[[list[torch.Tensor], float], torch.optim.Optimizer]
OPTIMIZERS: dict[str, tuple[Optimizer, Twin, float]] = {
    "sgd": (optimizer("sgd"), lambda p, lr: torch.optim.SGD(p, lr), 0.02),
    "momentum": (optimizer("sgd", momentum=0.9), lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9), 0.02),
    "adam": (optimizer("adam"), lambda p, lr: torch.optim.Adam(p, lr), 0.002),
    "adamw": (optimizer("adamw", decay=0.01), lambda p, lr: torch.optim.AdamW(p, lr, weight_decay=0.01), 0.002),
}
"""Ours, PyTorch's, and a learning rate, by name."""


def started(name: str, step: TrainingStep) -> TrainingStep:
    """A step with other parameters to begin with, where PyTorch does not follow itself from the network's own.

    ResNet-50's derivatives grow from block to block: by plain SGD, PyTorch's float64 leaves the losses that it has from
    parameters changed by 1e-15 within 10 steps, at a hundredth of the rate within 50. So the norms at the ends of
    blocks begin small, as in Goyal et al., "Accurate, Large Minibatch SGD", 2017, section 5.1.
    """
    if name != "resnet50":
        return step
    ends = {n: 0.2 * a for n, a in step.parameters.items() if n.startswith("stage") and n.endswith(".2.norm.weight")}
    assert len(ends) == 16
    return replace(step, parameters={**step.parameters, **ends})


def losses(net: Network, how: str, steps: int, lr: float | None = None) -> Iterator[tuple[float, float]]:
    """Our losses and PyTorch's, step by step.

    Args:
        how: see :data:`OPTIMIZERS`.
        lr: the learning rate; the optimizer's unless given.
    """
    learns, made, usual = OPTIMIZERS[how]
    rate = lr or usual
    step = started(net.name, net.step(learns, Schedule(rate)))
    dtype = torch.float64 if step.dtype.bits == 64 else torch.float32
    theirs = pytorch(net, step, made, rate, steps, dtype)
    kept = own({**step.parameters, **step.statistics, **step.moments})
    places = {new: kept[old] for new, old in step.updates.items()}
    with mlc.compile(wrapped(step.graph, step.updates), max_kernels=None, threads=1).load(1) as module:
        for k, their in enumerate(theirs, 1):
            examples = net.batch(step, seed=k % BATCHES)
            found = module.run({**examples, **kept, NUMBER: np.array([k])}, places)
            yield float(found[LOSS][0]), their


def pytorch(
    net: Network, step: TrainingStep, made: Twin, lr: float, steps: int, dtype: torch.dtype, changed: int | None = None
) -> Iterator[float]:
    """PyTorch's losses from the parameters that a step of ours begins with.

    Args:
        changed: draws how their last bits are changed; not at all unless given.
    """
    parameters = net.parameters(step, dtype)
    rng = np.random.default_rng(changed)
    for p in parameters.values() if changed is not None else ():
        signs = torch.from_numpy(rng.choice([-1.0, 1.0], tuple(p.shape)))
        p.data.mul_((1.0 + signs * torch.finfo(dtype).eps).to(dtype))
    learns = made(list(parameters.values()), lr)
    for k in range(1, steps + 1):
        learns.zero_grad()
        loss = net.torch_loss(parameters, net.torch_batch(net.batch(step, seed=k % BATCHES), dtype))
        loss.backward()
        learns.step()
        yield loss.item()


def gap(a: float, b: float) -> float:
    """By how much losses differ, relative to the second; what both have below 1e-2 counts as 1e-2."""
    return abs(a - b) / max(abs(b), 1e-2) if np.isfinite(a) and np.isfinite(b) else float("inf")


def measured(
    name: str, batch: int, size: int | None, how: str, lr: float | None, *, small: bool, judge: bool
) -> dict[str, Any]:
    """The greatest gaps within all steps, and in which step ours first is not close."""
    net = network(name, batch, small=small, dims={} if size is None else {"size": size})
    begin = time.monotonic()
    pairs = list(losses(net, how, STEPS, lr))
    gaps = [gap(*pair) for pair in pairs]
    found: dict[str, Any] = {
        "first": pairs[0], "last": pairs[-1], "gap": max(gaps),
        "left": _left(gaps),
    }  # fmt: skip
    if judge:
        learns, made, usual = OPTIMIZERS[how]
        step = started(name, net.step(learns, Schedule(usual)))
        other = list(pytorch(net, step, made, lr or usual, STEPS, torch.float32, changed=0))
        gaps = [gap(e, theirs) for (_, theirs), e in zip(pairs, other, strict=True)]
        found["own_gap"], found["own_left"] = max(gaps), _left(gaps)
    return {**found, "seconds": time.monotonic() - begin, "date": describe()["date"]}


def _left(gaps: Sequence[float]) -> int | None:
    return next((k for k, g in enumerate(gaps, 1) if g > CLOSE), None)


def report(found: Mapping[str, Any]) -> str:
    """The table of all cases."""
    rows = []
    for key, case in found["cases"].items():
        rows.append(
            [
                *key.split(), f"{case['first'][1]:.4f}", f"{case['last'][0]:.4f}",
                f"{case['last'][1]:.4f}",
                *(f"{case[k]:.1e}" if k in case else "-" for k in ("gap", "own_gap")),
                *("-" if case.get(k) is None else str(case[k]) for k in ("left", "own_left")),
            ]
        )  # fmt: skip
    heads = [
        "network", "batch", "size", "optimizer", "rate", "first loss", "mlc's last", "PyTorch's last", "greatest gap",
        "PyTorch's own", "beyond 1e-3 from step", "PyTorch's own",
    ]  # fmt: skip
    title = f"# Losses of {STEPS} steps in float32, mlc and PyTorch"
    about = [f"- {k}: {v}" for k, v in found["machine"].items()]
    return "\n".join([title, "", *about, "", *table(heads, rows), ""])


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; ``arguments`` default to those of the process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training.trajectories", description=__doc__)
    add = parser.add_argument
    add("networks", nargs="*", default=list(NETWORKS), help=f"of {', '.join(NETWORKS)}")
    add("--optimizer", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS), help="how they learn")
    add("--batch", type=int, default=16, help="examples in a step")
    add("--size", type=int, help="of images; the network's own unless given")
    add("--small", action="store_true", help="small variants, as the tests have them")
    add("--lr", type=float, help="the learning rate; the optimizer's own unless given")
    add("--judge", action="store_true", help="PyTorch once more, from parameters that differ in their last bits")
    add("--out", type=Path, required=True, help="FILE.json of results; the table is FILE.md")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    found: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    found.setdefault("machine", describe())
    cases = found.setdefault("cases", {})
    for name in options.networks:
        for how in options.optimizer:
            size = "small" if options.small else options.size or "own"
            key = f"{name} {options.batch} {size} {how} {options.lr or OPTIMIZERS[how][2]:g}"
            if key in cases:
                continue
            cases[key] = measured(
                name, options.batch, options.size, how, options.lr, small=options.small, judge=options.judge
            )
            print(key, json.dumps(cases[key]), file=sys.stderr, flush=True)
            options.out.parent.mkdir(parents=True, exist_ok=True)
            _write(options.out, json.dumps(found, indent=1) + "\n")
            _write(options.out.with_suffix(".md"), report(found))


def _write(path: Path, text: str) -> None:
    with atomic_write(path) as file:
        file.write(text.encode())


if __name__ == "__main__":
    main()

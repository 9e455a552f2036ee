"""Training steps and inference against PyTorch: ``python -m benchmarks.training``, on a machine that does nothing else.

A step is what trains once: forward, loss, all derivatives, and SGD with momentum; inference is the forward part alone.
Ours, PyTorch as it stands and ``torch.compile`` of it do some calls each in turns, on the same batch from the same
parameters; before that their first losses are compared. Results go to a JSON file case by case, so that a run that was
stopped goes on, and to a table beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe
from benchmarks.report import table
from benchmarks.stats import geometric_mean
from mlc.runtime.atomic import atomic_write

NOVEL = ("capsule_net", "mi_lstm", "sc_rnn", "sub_lstm", "lltm")
KNOWN = ("shufflenet", "mobilenet", "resnet18", "resnet50", "bert_encoder")
OURS, EAGER, COMPILED = "mlc", "eager", "torch.compile"
RATE, MOMENTUM = 1e-3, 0.9
ROUNDS = 7
SECONDS = 0.3  # of an engine in a round, at least a call
CLOSE = 1e-3  # losses, relative

Call = Callable[[], float]  # gives the loss


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; ``arguments`` default to those of the process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=__doc__)
    parser.add_argument("networks", nargs="*", default=NOVEL, help=f"of {', '.join((*NOVEL, *KNOWN))}")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 64], help="examples in a step")
    parser.add_argument("--threads", type=int, nargs="+", default=[1], help="that run a step")
    parser.add_argument("--out", type=Path, required=True, help="FILE.json of results; the table is FILE.md")
    parser.add_argument("--again", action="store_true", help="measure what the file holds once more")
    options = parser.parse_args(arguments)
    found: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    found.setdefault("machine", describe())
    cases = found.setdefault("cases", {})
    for threads in options.threads:
        for batch in options.batch:
            for name in options.networks:
                key = f"{name} {batch} {threads}"
                if key in cases and not options.again:
                    continue
                cases[key] = measured(name, batch, threads)
                print(key, json.dumps(cases[key]), file=sys.stderr)
                _write(options.out, json.dumps(found, indent=1) + "\n")
                _write(options.out.with_suffix(".md"), report(found))


def _write(path: Path, text: str) -> None:
    with atomic_write(path) as file:
        file.write(text.encode())


def measured(name: str, batch: int, threads: int) -> dict[str, Any]:
    """Milliseconds of a step and of a forward pass by engine, and the losses of the first step."""
    import torch

    from benchmarks.training.networks import network

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    torch._dynamo.reset()
    net = network(name, batch)
    result: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for what, make_all in {"step": _steps, "inference": _forwards}.items():
            made = make_all(net, threads)
            calls, result[f"{what} losses"] = {}, {}
            for engine, make in made.items():
                try:
                    calls[engine] = make()
                    result[f"{what} losses"][engine] = calls[engine]()
                except Exception as error:  # an engine that cannot do a network is told, not hidden
                    result.setdefault("failures", {})[f"{what} {engine}"] = f"{type(error).__name__}: {error}"[:300]
                    calls.pop(engine, None)
            losses = list(result[f"{what} losses"].values())
            result[f"{what} agrees"] = bool(np.allclose(losses, losses[0], rtol=CLOSE))
            result[what] = _times(calls)
    return result


def _times(calls: Mapping[str, Call]) -> dict[str, float]:
    """Median milliseconds of a call by engine, taken in turns."""
    taken: dict[str, list[float]] = {engine: [] for engine in calls}
    for call in calls.values():
        for _ in range(3):
            call()
    for _ in range(ROUNDS):
        for engine, call in calls.items():
            end = time.perf_counter() + SECONDS
            while True:
                begin = time.perf_counter()
                call()
                now = time.perf_counter()
                taken[engine].append(now - begin)
                if now >= end:
                    break
    return {engine: 1e3 * statistics.median(seconds) for engine, seconds in taken.items()}


def _steps(net: Any, threads: int) -> dict[str, Callable[[], Call]]:
    """What makes a training step of each engine."""
    import torch

    from mlc.api.packages import compile
    from mlc.api.training import wrapped
    from mlc.training.optimizers import optimizer
    from mlc.training.step import LOSS, NEXT
    from mlc.training.step import RATE as RATES

    learns = optimizer("sgd", momentum=MOMENTUM)
    step = net.step(learns)
    batch = net.batch(step)

    def ours() -> Call:
        module = compile(wrapped(step.graph), threads=threads, max_kernels=None).load(threads)
        tensors = {**step.parameters, **step.statistics, **step.moments}
        rates = np.array(learns.rates(RATE, 1), np.float32)

        def call() -> float:
            results = module.run({**batch, **tensors, RATES: rates})
            tensors.update({name: results.get(name + NEXT, old) for name, old in tensors.items()})
            return float(results[LOSS].reshape(-1)[0])

        return call

    def theirs(*, compiled: bool) -> Call:
        parameters = net.parameters(step)
        given = net.torch_batch(batch)
        update = torch.optim.SGD(list(parameters.values()), RATE, momentum=MOMENTUM)
        loss_of = torch.compile(net.torch_loss) if compiled else net.torch_loss
        advance = torch.compile(update.step) if compiled else update.step

        def call() -> float:
            update.zero_grad(set_to_none=True)
            loss = loss_of(parameters, given)
            loss.backward()
            advance()
            return float(loss.detach())

        return call

    return {OURS: ours, EAGER: lambda: theirs(compiled=False), COMPILED: lambda: theirs(compiled=True)}


def _forwards(net: Any, threads: int) -> dict[str, Callable[[], Call]]:
    """What makes a forward pass of each engine, with the loss of its batch."""
    import torch

    from mlc.api.packages import compile
    from mlc.training.optimizers import optimizer
    from mlc.training.step import LOSS

    step = net.step(optimizer("sgd"))
    batch = net.batch(step)

    def ours() -> Call:
        module = compile(net.forward(step), threads=threads, max_kernels=None).load(threads)
        return lambda: float(module.run(batch)[LOSS].mean())

    def theirs(*, compiled: bool) -> Call:
        parameters = net.fixed(step)
        given = net.torch_batch(batch)
        loss_of = torch.compile(net.torch_loss) if compiled else net.torch_loss

        def call() -> float:
            with torch.inference_mode():
                return float(loss_of(parameters, given))

        return call

    return {OURS: ours, EAGER: lambda: theirs(compiled=False), COMPILED: lambda: theirs(compiled=True)}


def report(found: Mapping[str, Any]) -> str:
    """The table of all cases, with geometric means by kind of network."""
    lines = ["# Training steps and inference", "", *(f"- {k}: {v}" for k, v in found["machine"].items()), ""]
    for what in ("step", "inference"):
        rows, ratios = [], []
        for key, case in found["cases"].items():
            times = case.get(what)
            if times is None:
                continue
            name, batch, threads = key.split()
            faster = {e: times[e] / times[OURS] for e in (EAGER, COMPILED) if OURS in times and e in times}
            ratios.append((name in NOVEL, faster))
            cells = [f"{times[e]:.3f}" if e in times else "-" for e in (OURS, EAGER, COMPILED)]
            over = [f"{faster[e]:.2f}" if e in faster else "-" for e in (EAGER, COMPILED)]
            rows.append([name, batch, threads, *cells, *over, "yes" if case[f"{what} agrees"] else "**no**"])
        heads = ["network", "batch", "threads", "mlc, ms", "eager, ms", "torch.compile, ms"]
        lines += [
            f"## {what.capitalize()}",
            "",
            *table([*heads, "eager / mlc", "compiled / mlc", "losses agree"], rows),
            "",
        ]
        for novel, kind in ((True, "novel"), (False, "known")):
            for engine in (EAGER, COMPILED):
                values = [f[engine] for is_novel, f in ratios if is_novel == novel and engine in f]
                if values:
                    lines.append(f"- {kind} networks, {engine} / mlc: geometric mean {geometric_mean(values):.2f}")
        lines.append("")
    lines.append("Medians of calls taken in turns; `python -m benchmarks.training --out FILE.json` measures them.")
    failures = [
        f"- {key}, {e}: {text}" for key, c in found["cases"].items() for e, text in c.get("failures", {}).items()
    ]
    return "\n".join([*lines, *(["", *failures] if failures else []), ""])


if __name__ == "__main__":
    main()

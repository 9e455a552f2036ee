"""P_d, P_c and L of NeoFlow's equation (4), measured by mlc's own kernels: ``python -m benchmarks.peaks``.

Compilations take them from the target's record, so that a package depends on the model, the target and the records of
tuning alone, and can be made on another machine. This measures them here, on one thread, and says what the record
gives. Their unit is no matter: what decides is how many operations a byte is worth, and how many bytes a launch. Then
it counts, of a training step of every network, the groups that are made without computing anything again, by the
record, and by what was measured: a difference is a decision that the record takes otherwise than this machine would.

Exit code 1 where there is one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from statistics import median

import numpy as np

import mlc
from benchmarks.report import table
from mlc.api.training import wrapped
from mlc.ir.cost import Peaks
from mlc.ir.graph import Builder, Graph
from mlc.ir.types import TensorType, f32
from mlc.ops import get
from mlc.pipeline.passes import REPEAT, optimise
from mlc.rewrite.group import body_of, is_group
from mlc.rewrite.recurrence import graphs
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import Target, get_target

STREAM = 1 << 24  # elements, of which no cache holds much
SIDE = 1024  # of a product of matrices
STEPS = 256  # of next to no work


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; ``arguments`` default to those of the process."""
    from benchmarks.training.networks import NETWORKS

    parser = argparse.ArgumentParser(prog="python -m benchmarks.peaks", description=__doc__)
    parser.add_argument("networks", nargs="*", help=f"all unless given: {', '.join(NETWORKS)}")
    parser.add_argument("--batch", type=int, default=16, help="examples in a step")
    parser.add_argument("--target", default="x86", help="this machine has to be one")
    options = parser.parse_args(arguments)
    target = get_target(options.target)
    found, recorded = measured(options.target), target.peaks()
    print(f"{found.transfer / 1e9:.1f} GB/s, {found.compute / 1e9:.1f} GFLOP/s, {found.launch * 1e9:.0f} ns a step\n")
    rows = [
        [name, f"{p.compute / p.transfer:.1f}", f"{p.launch * p.transfer:.0f}"]
        for name, p in (("measured", found), ("record", recorded))
    ]
    print("\n".join(table(["", "operations that a byte is worth", "bytes that a step is worth"], rows)))
    rows = []
    for name in options.networks or NETWORKS:
        none, one, other = (decisions(name, options.batch, target, p) for p in (None, recorded, found))
        rows.append([name, *(str(len(groups)) for groups in (none, one, other)), str(len(set(one) ^ set(other)))])
    print()
    print("\n".join(table(["network", "groups", "by the record", "as measured", "differ"], rows)))
    sys.exit(any(row[-1] != "0" for row in rows))


def measured(target: str) -> Peaks:
    """Bytes, operations and seconds, on one thread of this machine, in seconds."""
    n = 2 * STREAM * f32.itemsize
    return Peaks(n / _seconds(_stream(), target), 2.0 * SIDE**3 / _seconds(_product(), target), _launch(target))


def _launch(target: str) -> float:
    """Seconds that a step takes beside its work: of two chains, one twice as long, the difference."""
    short, long = (_seconds(_chain(n), target) for n in (STEPS, 2 * STEPS))
    return max(long - short, 0.0) / STEPS


def _seconds(graph: Graph, target: str) -> float:
    """The median time of a run."""
    rng = np.random.default_rng(0)
    with mlc.compile(wrapped(graph), target, threads=1, records=()).load(1) as module:
        feeds = {s.name: rng.standard_normal(s.shape).astype(np.float32) for s in module.inputs}
        return median(module.benchmark(feeds, min_seconds=1.0)) / 1e9


def _stream() -> Graph:
    g = Builder("stream")
    (y,) = g.add(get("relu"), [g.input("x", TensorType((STREAM,), f32))])
    return g.finish([y], ["y"])


def _product() -> Graph:
    g = Builder("product")
    w = g.constant(np.random.default_rng(1).standard_normal((SIDE, SIDE)).astype(np.float32), "w")
    (y,) = g.add(get("matmul"), [g.input("x", TensorType((SIDE, SIDE), f32)), w])
    return g.finish([y], ["y"])


def _chain(steps: int) -> Graph:
    """Sums of sixteen elements, which are read by the next one."""
    g = Builder("chain")
    x = v = g.input("x", TensorType((1, 16), f32))
    for _ in range(steps):
        (total,) = g.add(get("reduce_sum"), [v], {"axes": (1,), "keepdims": True})
        (v,) = g.add(get("mul"), [x, total])
    return g.finish([v], ["y"])


def decisions(name: str, batch: int, target: Target, peaks: Peaks | None) -> list[str]:
    """The groups of a network's training step, as text, by these peaks; where nothing is repeated, without any."""
    from benchmarks.training.networks import network
    from mlc.training.optimizers import optimizer
    from mlc.training.schedules import Schedule

    step = network(name, batch).step(optimizer("adam"), Schedule(1e-3))
    options = CompileOptions(name, "", "", disabled_passes=(REPEAT.name,) if peaks is None else ())
    machine = target if peaks is None else _With(target, peaks)
    whole = optimise(step.graph, machine, options, Observer())  # type: ignore[arg-type]
    found = []
    for g, _ in graphs(whole):
        for n in g.nodes:
            words = [m.op.name for m in body_of(n).nodes] if is_group(n) else [n.op.name]
            found.append(f"{' '.join(words)}: {', '.join(v.name for v in n.outputs)}")
    return found


class _With:
    """A target with other peaks."""

    def __init__(self, target: Target, peaks: Peaks) -> None:
        self._target, self._peaks = target, peaks

    def peaks(self) -> Peaks:
        return self._peaks

    def __getattr__(self, name: str) -> object:
        return getattr(self._target, name)


if __name__ == "__main__":
    main()

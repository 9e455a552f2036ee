"""What there is to tune in the zoo: ``python -m benchmarks.choices [MODEL ...]``. Nothing is measured.

Of every model, the share of its operations that are in kernels whose space has both factorisations and orders, and the
smallest space of each kind of heavy kernel: of convolutions and products, and of windows (depthwise layers and pools).
Exit code 1 where a share or a space is smaller than it ought to be.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from rich.console import Console

from benchmarks.report import table
from mlc.tuning.task import Task

SHARE = 0.95  # of a model's operations
LEAST = {"product": 100_000, "window": 1_000}  # configurations
HEAVY = 0.01  # of a model's operations, from which a kernel counts as heavy


@dataclass(frozen=True)
class Choices:
    """What there is to tune in a model.

    Args:
        share: of its operations that are in kernels with factorisations and orders to choose.
        least: configurations of the smallest space of a heavy kernel, and that kernel's name, by kind; a kind that the
            model lacks is not there.
    """

    share: float
    least: dict[str, tuple[int, str]]

    @property
    def enough(self) -> bool:
        """Whether all of it is as large as it ought to be."""
        return self.share >= SHARE and all(n >= LEAST[kind] for kind, (n, _) in self.least.items())


def choices_of(name: str, target: str = "x86", small: bool = False) -> Choices:
    """What ``mlc tune --list`` lists of a model of the zoo, in sum."""
    from benchmarks.zoo import build
    from mlc import api
    from mlc.ir import te
    from mlc.ir.cost import operations
    from mlc.ir.graph import Node, express
    from mlc.lower.knobs import Factors, Permutation
    from mlc.pipeline.passes import optimise
    from mlc.rewrite.group import is_group
    from mlc.rewrite.recurrence import graphs
    from mlc.settings import CompileOptions, Observer
    from mlc.targets.base import get_target

    def work(node: Node) -> int:
        operands = [te.placeholder(v.type.shape, v.type.dtype, v.name) for v in node.inputs]
        return operations(list(express(node, operands)))

    with tempfile.TemporaryDirectory(prefix="mlc-") as folder:
        file = Path(folder) / f"{name}.onnx"
        onnx.save(build(name, small=small), file)
        model = api.load(file)
    fused = optimise(model.graph, get_target(target), CompileOptions(name, "onnx", ""), Observer())
    total = sum(times * work(n) for g, times in graphs(fused) for n in g.nodes if is_group(n))
    tasks = api.tuning_tasks(model, target)
    least: dict[str, tuple[int, str]] = {}
    for t in tasks:
        if t.flops * t.weight >= HEAVY * total:
            kind = _kind_of(t)
            least[kind] = min(least.get(kind, (t.space.size, t.name)), (t.space.size, t.name))
    chosen = [t for t in tasks if {Factors, Permutation} <= {type(k) for k in t.space.knobs}]
    return Choices(sum(t.flops * t.weight for t in chosen) / max(1, total), least)


def _kind_of(task: Task) -> str:
    """Whether a kernel is a window, each of whose sums is of one channel, or more."""
    from mlc.ir import te
    from mlc.ir.graph import express
    from mlc.targets.groups.roles import Window, role_of

    operands = [te.placeholder(v.type.shape, v.type.dtype, v.name) for v in task.node.inputs]
    roles = [role_of(op) for op in te.topological(list(express(task.node, operands)))]
    found = [r for r in roles if r is not None]
    return "window" if found and all(isinstance(r, Window) for r in found) else "product"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; ``arguments`` default to those of the process. Returns 1 where there is too little."""
    from benchmarks.zoo import MODELS

    parser = argparse.ArgumentParser(prog="python -m benchmarks.choices", description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="of the zoo (default: all)")
    parser.add_argument("--target", default="x86", help="what to compile for; nothing is run on it")
    parser.add_argument("--small", action="store_true", help="the reduced variants of networks")
    options = parser.parse_args(arguments)
    console, enough, rows = Console(width=200), True, []
    for name in options.models or MODELS:
        found = choices_of(name, options.target, options.small)
        sizes = [f"{found.least[k][0]:,} ({found.least[k][1]})" if k in found.least else "" for k in LEAST]
        rows.append((name, f"{100 * found.share:.1f}", *sizes, "yes" if found.enough else "NO"))
        enough &= found.enough
    columns = ("model", "% with factors and orders", *(f"smallest space of a {kind}" for kind in LEAST), "enough")
    console.print("\n".join(table(columns, rows, left=1)), highlight=False, markup=False)
    return 0 if enough else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""Figure 13 of the NeoFlow paper: layout transformation, tensor swapping and parallel fusion, one at a time.

    python -m benchmarks.papers.neoflow_fig13

Section 7.4: a convolution of single pixels with and without the pass ``layout``; products as they are written and with
their operands swapped, so that the long axis is the one that vectors lie along; and a capsule convolution as eight
convolutions, as one of a batch of eight, and as one expression. Both spellings of a product or of capsules are written
down here; one thread, untuned, PyTorch's time beside.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

import mlc
from benchmarks import machine, plots
from benchmarks.papers import neoflow
from benchmarks.papers.keep import RESULTS, keep
from benchmarks.papers.needs import require
from benchmarks.report import table
from mlc import te
from mlc.define.network import Network

BATCHES = (1, 4, 16, 64)
CHANNELS_IN, CHANNELS_OUT, SIZE = 1024, 256, 14
PRODUCTS = ((1024, 1, 1024), (1024, 2, 512), (2048, 4, 512), (1024, 12, 1024))  # rows, columns, terms
WITHOUT, WITH, TORCH = "without", "with", "PyTorch"


@dataclass(frozen=True)
class Row:
    """What was measured of a workload.

    Args:
        what: is transformed.
        workload: its size.
        times: milliseconds by side.
    """

    what: str
    workload: str
    times: Mapping[str, float]

    @property
    def gain(self) -> float:
        """How many times as fast it is with the transformation."""
        return self.times[WITHOUT] / self.times[WITH]


def layout(batch: int) -> Row:
    """A convolution of single pixels, with images in rows or in blocks of channels."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, CHANNELS_IN, SIZE, SIZE)).astype(np.float32)
    w = rng.standard_normal((CHANNELS_OUT, CHANNELS_IN, 1, 1)).astype(np.float32) / np.float32(CHANNELS_IN**0.5)
    net = mlc.graph("pixels")
    given = net.input("x", x.shape)
    y = given.apply("conv", net.constant("w", w), strides=(1, 1), pads=(0,) * 4, dilations=(1, 1), groups=1)
    net.output("y", y)
    image, weights = torch.from_numpy(x), torch.from_numpy(w)
    sides = {
        WITHOUT: neoflow.ours(neoflow.compiled(net, ["layout"]), {"x": x}),
        WITH: neoflow.ours(neoflow.compiled(net), {"x": x}),
        TORCH: neoflow.theirs(lambda: F.conv2d(image, weights)),
    }
    return Row("layout transformation", f"batch {batch}", neoflow.timed(sides))


@mlc.operator
def as_written(w, x):  # type: ignore[no-untyped-def]
    """``C[i, j] = sum(W[i, k] * x[k, j])``."""
    k = te.reduce_axis(w.shape[1], "k")
    return te.compute((w.shape[0], x.shape[1]), lambda i, j: te.sum(w[i, k] * x[k, j], k), "written")


@mlc.operator
def swapped(x, w):  # type: ignore[no-untyped-def]
    """``C[j, i] = sum(x[j, k] * W[k, i])``."""
    k = te.reduce_axis(w.shape[0], "k")
    return te.compute((x.shape[0], w.shape[1]), lambda j, i: te.sum(x[j, k] * w[k, i], k), "swapped")


def product(rows: int, columns: int, terms: int) -> Row:
    """Weights times few columns, as written and with operands swapped."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((rows, terms)).astype(np.float32) / np.float32(terms**0.5)
    x = rng.standard_normal((terms, columns)).astype(np.float32)
    # the swapped one gives what the other gives the other way round
    turned = np.ascontiguousarray(x.T)
    one = mlc.graph("written")
    one.output("y", as_written(one.constant("w", w), one.input("x", x.shape)))
    other = mlc.graph("swapped")
    other.output("y", swapped(other.input("x", turned.shape), other.constant("w", np.ascontiguousarray(w.T))))
    first = neoflow.ours(neoflow.compiled(one, ["layout"]), {"x": x})
    second = neoflow.ours(neoflow.compiled(other, ["layout"]), {"x": turned})
    weights, given = torch.from_numpy(w), torch.from_numpy(x)
    sides = {
        WITHOUT: first,
        WITH: neoflow.Side(second.result.T, second.block),
        TORCH: neoflow.theirs(lambda: weights @ given),
    }
    return Row("tensor swapping", f"{rows}×{columns}×{terms}", neoflow.timed(sides))


def capsules() -> list[Row]:
    """Eight convolutions against one, and against one expression."""
    x, w = neoflow.capsules()
    given, images = torch.from_numpy(x), torch.from_numpy(neoflow.as_images(w))
    nets: dict[str, Network] = {
        WITHOUT: neoflow.separate(x, w),
        WITH: neoflow.joined(x, w),
        "one expression": neoflow.one_expression(x, w),
    }
    sides = {name: neoflow.ours(neoflow.compiled(net), {"x": x}) for name, net in nets.items()}
    sides[TORCH] = neoflow.theirs(lambda: neoflow.torch_separate(given, images))
    times = neoflow.timed(sides)
    expression = times.pop("one expression")
    what = "parallel fusion"
    return [Row(what, "one convolution", times), Row(what, "one expression", {**times, WITH: expression})]


def markdown(rows: Sequence[Row], about: Mapping[str, str], picture: str) -> str:
    """The page."""
    cells = [
        (r.what, r.workload, *(f"{r.times[k]:.3f}" for k in (WITHOUT, WITH, TORCH)), f"{r.gain:.2f}",
         f"{r.times[TORCH] / r.times[WITH]:.2f}")
        for r in rows
    ]  # fmt: skip
    heads = ("transformation", "workload", "without, ms", "with, ms", "PyTorch, ms", "gain", "PyTorch / with")
    return "\n".join(
        [
            "# Figure 13 of the NeoFlow paper: transformations of the model",
            "",
            *(f"- {k}: {v}" for k, v in about.items()),
            "",
            *([f"![{picture}]({picture})", ""] if picture else []),
            *table(heads, cells, left=2),
            "",
            f"Convolution: {CHANNELS_IN} channels in, {CHANNELS_OUT} out, {SIZE} by {SIZE}, windows of one pixel.",
            "Products: rows, columns, terms; weights by what is given, without the pass `layout` on both sides, which",
            "would pack the weights. Capsules: eight convolutions of 64 by 256 channels, 28 by 28.",
            "",
            "The paper has 1.25 times PyTorch's speed by layouts, 20 % by swapping, and 9.66 times by parallel fusion,",
            "on a V100 that eight small kernels cannot fill; one core of a processor is filled by each of them.",
            "",
        ]
    )


def draw(rows: Sequence[Row], file: Path) -> None:
    """Speed by the transformation, and PyTorch's, without it being 1."""
    names = [f"{r.what}\n{r.workload}" for r in rows]
    series = {"with": [r.gain for r in rows], "PyTorch": [r.times[WITHOUT] / r.times[TORCH] for r in rows]}
    plots.bars(file, names, series, "Speed-up over the untransformed (higher is better)", "speed-up", cut=8.0)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; ``arguments`` default to those of the process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.neoflow_fig13", description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="where results go")
    options = parser.parse_args(arguments)
    require("neoflow_fig13", "matplotlib", "torch")
    torch.set_num_threads(1)
    about = machine.describe()
    rows = [*map(layout, BATCHES), *(product(*shape) for shape in PRODUCTS), *capsules()]
    for row in rows:
        print(f"{row.what}, {row.workload}: {row.gain:.2f}, {', '.join(f'{k} {t:.3f}' for k, t in row.times.items())}")
    numbers = {"machine": about, "rows": [asdict(row) for row in rows]}
    files = keep("neoflow_fig13", options.out, numbers, lambda p: markdown(rows, about, p), lambda f: draw(rows, f))
    print(f"{options.out}/: {', '.join(files)}")


if __name__ == "__main__":
    main()

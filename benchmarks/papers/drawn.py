"""More held-out workloads: sizes that a generator drew, and the rule by which they join the comparison of explorers.

Untuned is near the best on many shapes, and where it is, no search can be better than another. So more are compared, by
a rule: of each kind of operator that :data:`DRAWS` shapes were drawn of, the first joins on which the fastest of the
random configurations is more than 2 % faster than untuned. Only random draws decide which; what is left out is
reported. The rule was there before anything was measured, but its number was not: it was 4, and became 8 when a new
schedule had left no grouped convolution, and the default stood at 0.51 of the trials of random draws.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.papers.live import FOUND, Arena, Known
from benchmarks.papers.spaces import Workload, matmul, windowed
from mlc.ir.graph import Graph
from mlc.runtime import atomic_write

DRAWS = 8  # of each kind, at most
_SEED = 16
_LEAST, _MOST = 4e6, 6e7  # operations

_Shape = tuple[str, float, Callable[[], Graph]]  # what it is, its operations, and a graph of it


def _edge(rng: np.random.Generator) -> int:
    return 2 * int(rng.integers(4, 32)) + 1


def _channels(rng: np.random.Generator, step: int = 2) -> int:
    return step * int(rng.integers(16 // step, 200 // step))


def _window(kernel: int, stride: int, rng: np.random.Generator) -> _Shape:
    edge, inner, outer, first = _edge(rng), _channels(rng), _channels(rng), bool(rng.integers(2))
    return _convolution(edge, inner, outer, kernel, stride, 1, first)


def _grouped(rng: np.random.Generator) -> _Shape:
    groups = int(rng.choice((2, 4, 8)))
    edge, inner, outer, first = _edge(rng), _channels(rng, groups), _channels(rng, groups), bool(rng.integers(2))
    return _convolution(edge, inner, outer, 3, 1, groups, first)


def _depthwise(rng: np.random.Generator) -> _Shape:
    edge, channels, first = _edge(rng), _channels(rng), bool(rng.integers(2))
    kernel, stride = int(rng.choice((3, 5))), int(rng.choice((1, 2)))
    return _convolution(edge, channels, channels, kernel, stride, channels, first)


def _convolution(edge: int, inner: int, outer: int, kernel: int, stride: int, groups: int, first: bool) -> _Shape:
    grouped = "" if groups == 1 else ", depthwise" if groups == inner else f", {groups} groups"
    text = f"convolution {edge}x{edge}, {inner} -> {outer}, {kernel}x{kernel}, stride {stride}{grouped}"
    flops = 2 * (-(-edge // stride)) ** 2 * kernel**2 * inner // groups * outer
    rows = ", row-major" if first else ""
    return text + rows, flops, partial(windowed, edge, inner, outer, kernel, stride, groups, first=first)


def _product(least: int, most: int, rng: np.random.Generator) -> _Shape:
    rows, inner, columns = int(rng.integers(least, most)), int(rng.integers(32, 800)), int(rng.integers(32, 1200))
    return f"product {rows}x{inner}x{columns}", 2.0 * rows * inner * columns, partial(matmul, rows, inner, columns)


_KINDS: dict[str, Callable[[np.random.Generator], _Shape]] = {
    "3x3": partial(_window, 3, 1),
    "5x5": partial(_window, 5, 1),
    "1x1": partial(_window, 1, 1),
    "strided": partial(_window, 3, 2),
    "grouped": _grouped,
    "depthwise": _depthwise,
    "product": partial(_product, 48, 300),
    "narrow": partial(_product, 2, 48),
}


def _drawn(number: int, kind: str, seed: int, name: str, count: int) -> Sequence[Workload]:
    """Shapes of a kind, of no more and no fewer operations than a trial should take."""
    rng = np.random.default_rng([seed, number])
    # A depthwise layer of a million operations is a large one.
    least = _LEAST / 8 if kind == "depthwise" else _LEAST
    found: list[Workload] = []
    while len(found) < count:
        text, flops, graph = _KINDS[kind](rng)
        if least <= flops <= _MOST:
            found.append(Workload(f"{name}-{kind}-{len(found) + 1}", text, graph))
    return found


DRAWN = {kind: _drawn(k, kind, _SEED, "drawn", DRAWS) for k, kind in enumerate(_KINDS)}
"""Shapes by kind, in the order in which they were drawn."""

# Depthwise layers and products differ most among themselves.
_TAUGHT = {"3x3": 3, "5x5": 2, "1x1": 3, "strided": 3, "grouped": 2, "depthwise": 10, "product": 6, "narrow": 3}
TAUGHT = [w for k, kind in enumerate(_KINDS) for w in _drawn(k, kind, _SEED + 1, "taught", _TAUGHT[kind])]
"""Operators that are never compared on, from which the tuner's prior learns (:mod:`benchmarks.papers.prior`)."""

Screened = dict[str, list[tuple[str, float]]]  # by kind: workloads in order, and untuned over the best of random draws


def screened(folder: Path) -> Screened:
    """What was looked at so far."""
    file = folder / "drawn.json"
    found: Screened = json.loads(file.read_text()) if file.is_file() else {}
    return found


def joined(folder: Path) -> list[str]:
    """Names of workloads that were drawn and on which there is something to find, of each kind at most one."""
    return [name for looks in screened(folder).values() for name, share in looks if share < FOUND]


def over(looks: Sequence[tuple[str, float]]) -> bool:
    """Whether no more of a kind are looked at."""
    return len(looks) == DRAWS or (len(looks) > 0 and looks[-1][1] < FOUND)


def screen(knowns: Sequence[Known], arena: Arena, folder: Path) -> bool:
    """Goes on with looking at what was drawn, in order; whether that is done.

    Args:
        knowns: of all that was drawn, which the arena measures.
        arena: measures.
        folder: where tables are.
    """
    found = screened(folder)
    by_name = {k.name: k for k in knowns}
    for kind, workloads in DRAWN.items():
        looks = found.setdefault(kind, [])
        while not over(looks):
            known = by_name[workloads[len(looks)].name]
            while known.missing(begin := [known.default, *known.numbers(known.pool)]) or known.near():
                if arena.over:
                    return False
                arena.measure({known.name: begin})
                arena.again([known])
            looks.append((known.name, float(known.final([known.default])[0] / known.final(begin).max())))
            with atomic_write(folder / "drawn.json") as file:
                file.write(json.dumps(found, indent=1).encode())
    return True

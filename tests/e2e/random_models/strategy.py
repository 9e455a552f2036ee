"""Random models as a Hypothesis strategy, and from a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
from hypothesis import strategies as st

from tests.e2e.random_models import elementwise, moves, products, windows
from tests.e2e.random_models.builder import Builder, Choices, RandomModel

FAMILIES = (elementwise.FAMILY, windows.FAMILY, products.FAMILY, moves.FAMILY)
OPERATORS: dict[str, Callable[[Builder], None]] = {name: f for family in FAMILIES for name, f in family.items()}


class _Drawn:
    """Chances drawn by Hypothesis, which makes them smaller when a test fails."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def whole(self, lo: int, hi: int) -> int:
        return self._draw(st.integers(lo, hi))


class _Seeded:
    """Chances from a seeded generator."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def whole(self, lo: int, hi: int) -> int:
        return int(self._rng.integers(lo, hi + 1))


def build(choices: Choices, least: int, most: int) -> RandomModel:
    """A model of ``least`` to ``most`` steps; each adds a node or a few, or none where no operands are found."""
    b = Builder(choices)
    for _ in range(b.whole(1, 3)):
        b.fresh(b.shape(b.one_of((4, 3, 2, 1, 5, 0))), constant=False)
    for _ in range(b.whole(least, most)):
        if b.nodes and b.flag(16):
            _again(b)
        else:
            # half of what is drawn comes from the heavy families: they are few
            b.apply(b.one_of(list(b.one_of(FAMILIES).values())))
    if not b.nodes:
        b.add("Identity", [b.pick()])
    return b.finish()


def _again(b: Builder) -> None:
    """An earlier node once more, or a copy of a constant: what common subexpressions are made of."""
    node = b.one_of(b.nodes[-6:])
    names = {o: f"t{len(b.tensors) + k}" for k, o in enumerate(node.output) if o}
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    del copy.output[:]
    copy.output.extend([names.get(o, "") for o in node.output])
    for old, new in names.items():
        t = b.tensors[old]
        b.tensors[new] = replace(t, name=new)
    for k, name in enumerate(copy.input):
        if name and b.tensors[name].origin == "constant":
            copy.input[k] = b.given(b.tensors[name].value).name
    b.nodes.append(copy)


@st.composite
def random_models(draw: st.DrawFn, least: int = 10, most: int = 30) -> RandomModel:
    """Random models."""
    return build(_Drawn(draw), least, most)


def seeded_model(seed: int, least: int = 10, most: int = 30) -> RandomModel:
    """The random model of a seed."""
    return build(_Seeded(seed), least, most)

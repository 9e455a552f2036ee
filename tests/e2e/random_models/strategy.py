"""Random models as a Hypothesis strategy, and from a seed.

A model is a list of steps, each the name of an operator and a seed for all that the operator chooses: operands among
what there is, shapes, attributes. So Hypothesis makes a failing model smaller by leaving steps out, and draws models as
varied as their seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import onnx
from hypothesis import strategies as st

from tests.e2e.random_models import elementwise, moves, products, windows
from tests.e2e.random_models.builder import Builder, RandomModel

Step = tuple[str, int]
MAX_SEED = 2**16 - 1


def again(b: Builder) -> None:
    """An earlier node once more, with copies of its constants: what common subexpressions are made of."""
    node = onnx.NodeProto()
    node.CopyFrom(b.one_of(b.nodes[-6:]))
    for k, name in enumerate(node.output):
        if name:
            node.output[k] = f"t{len(b.tensors)}"
            b.tensors[node.output[k]] = replace(b.tensors[name], name=node.output[k])
    for k, name in enumerate(node.input):
        if name and b.tensors[name].origin == "constant":
            node.input[k] = b.given(b.tensors[name].value).name
    b.nodes.append(node)


# every family is as likely as any other, whatever its size
FAMILIES = (elementwise.FAMILY, windows.FAMILY, products.FAMILY, moves.FAMILY, {"again": again, **windows.HEAVY})
OPERATORS: dict[str, Callable[[Builder], None]] = {name: f for family in FAMILIES for name, f in family.items()}


class Seeded:
    """Chances from a seeded generator."""

    def __init__(self, *seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def whole(self, lo: int, hi: int) -> int:
        return int(self._rng.integers(lo, hi + 1))


def assemble(steps: Sequence[Step], seed: int, *, halves: bool = False) -> RandomModel:
    """The model of some steps.

    Args:
        steps: operators with their seeds; one that finds no operands adds nothing, others add a node or a few.
        seed: decides the first inputs, and which tensors are outputs.
        halves: whether it shall mean the same in half precision.
    """
    b = Builder(Seeded(seed, 0), halves)
    for _ in range(b.whole(1, 3)):
        b.fresh(b.shape(b.one_of((4, 3, 2, 1, 5, 0))), constant=False)
    for name, step_seed in steps:
        b.choices = Seeded(step_seed)
        b.apply(OPERATORS[name])
    if not b.nodes:
        b.add("Identity", [b.pick()])
    b.choices = Seeded(seed, 1)
    return b.finish()


def random_models(least: int = 10, most: int = 30) -> st.SearchStrategy[RandomModel]:
    """Models of ``least`` to ``most`` steps."""
    names = st.one_of(*[st.sampled_from(list(family)) for family in FAMILIES])
    steps = st.lists(st.tuples(names, st.integers(0, MAX_SEED)), min_size=least, max_size=most)
    return st.builds(assemble, steps, st.integers(0, MAX_SEED))


def seeded_model(seed: int, least: int = 10, most: int = 30, *, halves: bool = False) -> RandomModel:
    """The random model of a seed; with ``halves`` one that means the same in half precision."""
    rng = np.random.default_rng(seed)
    count = rng.integers(least, most + 1)
    families = [list(FAMILIES[k]) for k in rng.integers(0, len(FAMILIES), count)]
    steps = [(family[rng.integers(0, len(family))], int(rng.integers(0, MAX_SEED + 1))) for family in families]
    return assemble(steps, seed, halves=halves)

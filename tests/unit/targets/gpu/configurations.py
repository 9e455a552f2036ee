"""Configurations of kernels, drawn at random, and what must hold of each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from mlc.errors import ScheduleError, VerifyError
from mlc.ir.graph import Node
from mlc.ir.interp import run_function
from mlc.ir.loop import Barrier, Function, seq, walk
from mlc.lower.knobs import Knob, Knobs
from mlc.lower.prove import prove
from mlc.rewrite.group import configured
from mlc.targets.gpu.kernel import kernel
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.schedules import TEMPLATES, schedule_group
from mlc.targets.gpu.schedules.blocks import BLOCKED
from mlc.targets.groups.group import group_of
from mlc.targets.groups.template import template_for
from tests.unit.lower.grids import edited
from tests.unit.targets.gpu.groups import Case, Make, assert_close

EACH = 200  # configurations of a template in a sweep
AT_ONCE = 16  # kernels of a program: compilers take longer to begin than for one
REPEATED = 60  # configurations in a row that make kernels seen before, and there are no others


class _Drawn(Knobs):
    """Answers at random, so that what is asked after one answer only is drawn, too."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        self._rng = rng

    def _ask(self, knob: Knob, default: object) -> object:
        if knob.name not in self.config:
            self.config[knob.name] = knob.values[int(self._rng.integers(len(knob.values)))]
        return super()._ask(knob, default)


def is_scheduled(node: Node) -> bool:
    """Whether a template makes the loops of a node; routines and joins have none."""
    return node.op.express is not None


def template_of(node: Node, target: Gpu) -> str:
    """The name of the template that a group gets."""
    return template_for(group_of(node, Knobs()), BLOCKED if target.vectors else TEMPLATES, target).name


def scheduled(groups: Mapping[str, Make]) -> dict[str, Case]:
    """Those of some groups that a template makes."""
    cases = {name: Case.made(name, make) for name, make in groups.items()}
    return {name: case for name, case in cases.items() if is_scheduled(case.node)}


def sizes(cases: Mapping[str, Case], target: Gpu) -> dict[str, dict[str, int]]:
    """How many configurations there are of each group, by its template."""
    found: dict[str, dict[str, int]] = {}
    for name, case in cases.items():
        knobs = Knobs()
        schedule_group(case.node, target, knobs)
        found.setdefault(template_of(case.node, target), {})[name] = knobs.space().size
    return found


def share(cases: Mapping[str, Case], target: Gpu, name: str) -> int:
    """How many configurations of a group are tried for a template to have enough of them; some are refused."""
    (of,) = (s for s in sizes(cases, target).values() if name in s)
    return next(n for n in range(1, EACH + 1) if sum(min(n, size) for size in of.values()) >= EACH * 1.2 or n == EACH)


def random_configuration(node: Node, target: Gpu, rng: np.random.Generator) -> Node:
    """A group with values drawn for all that its template asks, such that none is refused."""
    while True:
        knobs = _Drawn(rng)
        try:
            schedule_group(node, target, knobs)
        except ScheduleError:
            continue
        return configured(node, knobs.config)


def random_kernels(node: Node, target: Gpu, count: int, seed: int) -> Iterator[Function]:
    """Kernels of a group under random configurations, each of which the checker has passed.

    Configurations that make the same kernel, since a tile is no larger than what it is of, count once, and those that
    lowering refuses count nothing; where there are no more kernels to be found, there are fewer.
    """
    rng = np.random.default_rng(seed)
    seen: set[str] = set()
    repeated = 0
    while len(seen) < count and repeated < REPEATED:
        try:
            fn = kernel(random_configuration(node, target, rng), "k", target)
        except ScheduleError:  # by lowering: a tuner loses such a candidate, too
            repeated += 1
            continue
        repeated = repeated + 1 if repr(fn) in seen else 0
        if not repeated:
            seen.add(repr(fn))
            yield fn


def interpret(case: Case, fn: Function) -> None:
    """The interpreter finds no race, and what the group says."""
    feeds = case.feeds()
    arrays = case.arrays(feeds)
    results = [np.full(b.shape, 77).astype(b.dtype.numpy) for b in fn.params[len(arrays) :]]
    run_function(fn, [a.reshape(b.shape) for a, b in zip(arrays, fn.params, strict=False)] + results)
    assert_close(results, case.expected(feeds))


def proved_kernels(case: Case, target: Gpu, count: int) -> Iterator[list[Function]]:
    """Kernels of a group under so many configurations, in portions that one program has room for.

    Checker and interpreter have passed each, and none of its barriers can be left out.
    """
    found = []
    for fn in random_kernels(case.node, target, count, len(case.graph.name)):
        needs_all_barriers(fn)
        interpret(case, fn)
        found.append(named(fn, f"k{len(found)}"))
    for k in range(0, len(found), AT_ONCE):
        yield found[k : k + AT_ONCE]


def named(fn: Function, name: str) -> Function:
    """A kernel by another name."""
    return Function(name, fn.params, fn.outputs, fn.body, fn.attrs)


def is_refused(fn: Function) -> bool:
    """Whether the checker refuses a kernel."""
    try:
        prove(fn)
    except VerifyError:
        return True
    return False


def needs_all_barriers(fn: Function) -> None:
    """The checker refuses a kernel that lacks one of its barriers, whichever it is."""
    for s in walk(fn.body):
        if isinstance(s, Barrier):
            assert is_refused(edited(fn, s, seq([]))), f"a barrier can be left out of\n{fn!r}"

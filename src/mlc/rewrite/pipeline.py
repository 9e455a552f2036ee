"""The list of graph passes, which of them an optimisation level takes, and how they are run."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from mlc.errors import MlcError, UsageError
from mlc.ir.graph import Graph, Pass, verify
from mlc.rewrite.algebra import simplify_algebra
from mlc.rewrite.contractions import state_contractions
from mlc.rewrite.cse import eliminate_common_subexpressions
from mlc.rewrite.dce import eliminate_dead_code
from mlc.rewrite.fold import fold_constants
from mlc.rewrite.fuse import fuse, group_each
from mlc.rewrite.gates import fuse_gates
from mlc.rewrite.integers import use_integers
from mlc.rewrite.merge_matmuls import merge_matmuls
from mlc.rewrite.parallel import merge_parallel
from mlc.rewrite.recognise import recognise_operators
from mlc.rewrite.transposes import sink_transposes

# name, graph after the pass, seconds it took
OnPass = Callable[[str, Graph, float], None]
MAX_LEVEL = 3


@dataclass(frozen=True)
class GraphPass:
    """A pass with what people want to know about it.

    Args:
        name: as in ``--disable-pass``.
        fn: graph to graph, pure; the same object when nothing changed.
        doc: one line.
        level: lowest optimisation level that runs it.
        required: later stages rely on it, so it cannot be switched off.
        groups: it makes groups; what works on single operators goes before the first such pass.
    """

    name: str
    fn: Pass
    doc: str
    level: int = 1
    required: bool = False
    groups: bool = False


# In this order, each once. Common subexpressions go before recognition, which wants `x - mean` computed once, and both
# before algebra, whose rules would hide spellings. Transposes go before algebra, which folds what stands side by side
# then. Algebra leaves dead constants, which the last clean-up takes away.
PASSES = (
    GraphPass("fold", fold_constants, "compute what depends on constants alone"),
    GraphPass("integers", use_integers, "products of quantised numbers in integers"),
    GraphPass("contractions", state_contractions, "sums of products of one's own as products and convolutions", 3),
    GraphPass("cse", eliminate_common_subexpressions, "compute equal values once", 2),
    GraphPass("recognise", recognise_operators, "find operators that exporters spell out in primitives", 2),
    GraphPass("transposes", sink_transposes, "move transposes down until they cancel, where fewer elements move", 2),
    GraphPass("algebra", simplify_algebra, "rewriting rules: batch norms into weights, views cancelled, …", 2),
    GraphPass("merge-matmuls", merge_matmuls, "one product for queries, keys and values", 3),
    GraphPass("parallel", merge_parallel, "one product for those of one tensor whose results are joined", 3),
    GraphPass("dce", eliminate_dead_code, "drop what no output needs"),
    GraphPass("gates", fuse_gates, "group products with what combines slices of their columns", 3, groups=True),
    GraphPass("fuse", fuse, "group operators that share a kernel", 3, groups=True),
    GraphPass("group", group_each, "make every other operator a group of its own", 0, required=True, groups=True),
)


def passes_for(level: int) -> tuple[GraphPass, ...]:
    """The passes of an optimisation level, 0 (only what is required) to 3.

    Raises:
        UsageError: there is no such level.
    """
    if not 0 <= level <= MAX_LEVEL:
        raise UsageError(f"optimisation level {level}", hint=f"levels go from 0 to {MAX_LEVEL}")
    return tuple(p for p in PASSES if p.level <= level)


def run_passes(
    graph: Graph,
    passes: Sequence[GraphPass],
    *,
    later: Sequence[GraphPass] = (),
    disabled: Collection[str] = (),
    check: bool = False,
    on_pass: OnPass | None = None,
) -> Graph:
    """Run passes one after the other.

    Args:
        graph: what to rewrite.
        passes: in order.
        later: passes that somebody else runs afterwards; ``disabled`` may name them.
        disabled: names of passes to leave out; a known pass that is not among ``passes`` may be named too.
        check: verify the graph after every pass.
        on_pass: told about every pass that ran.
    Raises:
        UsageError: ``disabled`` names a pass that does not exist or that is required.
        VerifyError: a pass broke the graph (a bug); a note names the pass.
    """
    _check_disabled((*passes, *later), disabled)
    for p in passes:
        if p.name in disabled:
            continue
        begin = time.perf_counter()
        try:
            graph = p.fn(graph)
            if check:
                verify(graph)
        except MlcError as error:
            error.add_note(f"in pass {p.name}")
            raise
        if on_pass is not None:
            on_pass(p.name, graph, time.perf_counter() - begin)
    return graph


def _check_disabled(passes: Sequence[GraphPass], disabled: Collection[str]) -> None:
    known = {p.name: p for p in (*PASSES, *passes)}
    for name in disabled:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            guess = f"did you mean {near[0]}? " if near else ""
            raise UsageError(f"no pass {name!r}", hint=f"{guess}passes: {', '.join(known)}")
        if known[name].required:
            free = [p.name for p in known.values() if not p.required]
            raise UsageError(f"pass {name!r} cannot be disabled", hint=f"these can: {', '.join(free)}")

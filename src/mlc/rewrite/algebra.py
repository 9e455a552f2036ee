"""Algebraic clean-up: every rewriting rule, applied until none fits any more.

Stage in: any graph before fusion. Stage out: the same, with batch norms and channel shuffles in weights, pads in
windows, transposes and reshapes cancelled or sunk, linear layers two-dimensional, and exact arithmetic identities used.

Example: ``relu(batch_norm(conv(pad(x), w), …))`` becomes ``relu(add(conv(x, w2, pads=…), c))``.
"""

from __future__ import annotations

from mlc.ir.graph import Graph
from mlc.rewrite.pattern import RuleSet, apply_rules
from mlc.rewrite.rules import arithmetic, batch_norm, channels, products, sink, views, windows

_FAMILIES = (arithmetic, views, batch_norm, channels, windows, products, sink)
RULES = RuleSet(rule for family in _FAMILIES for rule in family.RULES)


def simplify_algebra(graph: Graph) -> Graph:
    """Apply :data:`RULES`."""
    return apply_rules(graph, RULES)

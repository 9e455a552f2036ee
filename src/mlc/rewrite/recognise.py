"""Recognition of operators that exporters spell out in primitives.

Stage in: any graph before fusion, best after common subexpressions were joined (old exporters compute ``x - mean``
twice). Stage out: the same, with ``gelu``, ``swish``, ``hard_swish``, ``mish``, ``layer_norm``, ``rms_norm``,
``softmax`` and ``channel_shuffle`` in place of their spellings. What other nodes still read of a spelling stays.

Example: ``mul(mul(x, 0.5), add(erf(div(x, 1.4142)), 1))`` becomes ``gelu(x)``.
"""

from __future__ import annotations

from mlc.ir.graph import Graph
from mlc.rewrite.pattern import RuleSet, apply_rules
from mlc.rewrite.rules import activations, channels, norms

RULES = RuleSet((*norms.RULES, *activations.RULES, *channels.SPELLINGS))


def recognise_operators(graph: Graph) -> Graph:
    """Apply :data:`RULES`."""
    return apply_rules(graph, RULES)

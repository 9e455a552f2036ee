"""Whether computing something again for each of its readers pays (NeoFlow, section 5.1, equation (4) and figure 6).

    R = ΔT / P_d + ΔC / P_c + ΔK · L

ΔT are bytes that need not be moved any more, ΔC operations that are not done any more (mostly fewer than none), and ΔK
launches that are saved. The peaks P_d, P_c and L are those of the target's record, so R is what is gained at best: a
decision whose reward is negative even so is surely none. ``python -m benchmarks.peaks`` measures them, and says
whether decisions would be others by that. The paper's figure 6 tells operators that read one tensor from those that
read several, by which ΔT is positive or may be; here the operands themselves are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlc.ir import te
from mlc.ir.cost import Peaks, operations
from mlc.ir.graph import Node, Value, express
from mlc.rewrite.profile import Profiler

DEAR = 16  # operations that a function like exp takes


@dataclass(frozen=True)
class Repetition:
    """What becomes of a group that goes into all of its readers.

    Args:
        transfer: ΔT, bytes.
        compute: ΔC, operations.
        launches: ΔK.
    """

    transfer: float
    compute: float
    launches: int = 1

    def reward(self, peaks: Peaks) -> float:
        """R, in units of time of the peaks."""
        return peaks.time(self.transfer, self.compute, self.launches)


def repetition(
    group: Sequence[Node], result: Value, readers: Sequence[tuple[Sequence[Node], float]], profile: Profiler
) -> Repetition:
    """What is gained and lost if a group goes into its readers.

    Args:
        group: its nodes, in order.
        result: the only one.
        readers: for each, its nodes without the group's, and how often it computes every element of the result.
        profile: looks at single nodes.
    """
    own = _operands(group)
    read = sum(v.type.nbytes for v in own)
    again = 0
    for nodes, _ in readers:
        there = set(_operands(nodes))
        again += sum(v.type.nbytes for v in own if v not in there)
    saved = read + result.type.nbytes * (1 + len(readers)) - again
    work = sum(operations_of(n, profile) for n in group)
    times = sum(runs for _, runs in readers)
    return Repetition(saved, work * (1.0 - times))


def operations_of(node: Node, profile: Profiler) -> float:
    """Operations of a node, where functions count as what they take."""
    operands = [te.placeholder(v.type.shape, v.type.dtype, v.name) for v in node.inputs]
    elements = sum(v.type.size for v in node.outputs)
    return operations(list(express(node, operands))) + (DEAR - 1.0) * profile(node).dear * elements


def _operands(nodes: Sequence[Node]) -> dict[Value, None]:
    """What nodes read of others, each once."""
    made = {v for n in nodes for v in n.outputs}
    return dict.fromkeys(v for n in nodes for v in n.inputs if v not in made)

"""Graph to graph: optimisation passes, fusion, layouts, and the memory plan."""

from mlc.rewrite.group import body_of, group_key, is_alias, is_group
from mlc.rewrite.memory import MemoryPlan, plan_memory
from mlc.rewrite.pipeline import GraphPass, passes_for, run_passes

__all__ = [
    "GraphPass",
    "MemoryPlan",
    "body_of",
    "group_key",
    "is_alias",
    "is_group",
    "passes_for",
    "plan_memory",
    "run_passes",
]

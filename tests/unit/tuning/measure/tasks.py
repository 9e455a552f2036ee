"""Small tasks to measure."""

from __future__ import annotations

import numpy as np

from mlc.ir.graph import Builder, Graph
from mlc.ir.types import TensorType, f32
from mlc.ops import get
from mlc.settings import CompileOptions, Observer
from mlc.targets.x86.target import X86Target
from mlc.tuning.task import Task, tasks_of

ROWS, COLUMNS, DEPTH = 24, 40, 32
OPTIONS = CompileOptions("test", "test", "")


def product(rows: int = ROWS, columns: int = COLUMNS, depth: int = DEPTH) -> Graph:
    """A matrix product with constant weights."""
    g = Builder("product")
    a = g.input("a", TensorType((rows, depth), f32))
    w = g.constant(np.ones((depth, columns), np.float32), "w")
    (p,) = g.add(get("matmul"), [a, w], names=["p"], sources=["dense"])
    return g.finish([p])


def task_of(graph: Graph, target: X86Target) -> Task:
    (task,) = tasks_of(graph, target, OPTIONS, Observer())
    return task

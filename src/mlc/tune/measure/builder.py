"""Candidates built, each by itself, as a compilation of the whole model would build them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlc.build import make_kernel
from mlc.ir.graph import Graph, Node
from mlc.lower.knobs import Config
from mlc.rewrite.inplace import InPlaceOperands
from mlc.settings import CompileOptions
from mlc.targets.base import Accelerator, CallSpec, Target
from mlc.targets.bench import Program
from mlc.tune.task import Task, candidate


class Builder:
    """Builds candidates of a target, or of the accelerator beside it where a task is of that.

    Args:
        target: to compile for.
        options: how to compile.
    """

    def __init__(self, target: Target, options: CompileOptions) -> None:
        self._target, self._options = target, options
        self._in_place = InPlaceOperands()

    def build(self, task: Task, config: Config) -> Program:
        """The program of one configuration.

        Raises:
            ScheduleError: the configuration is refused.
            MlcError: it cannot be compiled.
        """
        node = candidate(task, self._target, config)
        accelerator = self._target.accelerator
        if task.constants is None:
            return self._kernel(node)
        assert accelerator is not None
        return _region(task, node, accelerator)

    def _kernel(self, node: Node) -> Program:
        """An object whose ``mlc_run`` calls the one kernel."""
        fn = make_kernel(node, "kernel", self._target, self._in_place)
        places = [("input", k) for k in range(len(node.inputs))] + [("output", k) for k in range(len(node.outputs))]
        needs: list[int] = []

        def steps(scratch: Any) -> Sequence[CallSpec]:
            needs.append(scratch["kernel"])
            return (CallSpec("kernel", tuple(places)),)

        artifact = self._target.codegen(
            {"kernel": fn}, steps, opt_level=self._options.opt_level, contract=self._options.fast_math, whole=False
        )
        return Program(artifact.obj, needs[0])


def _region(task: Task, node: Node, accelerator: Accelerator) -> Program:
    """The program of a region of one group."""
    constants = dict(task.constants or {})
    inputs = tuple(dict.fromkeys(v for v in node.inputs if v not in constants))
    return Program(accelerator.compile(Graph("candidate", inputs, node.outputs, (node,), constants), "candidate").data)

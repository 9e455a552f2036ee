"""Candidates built, each by itself, as a compilation of the whole model would build them."""

from __future__ import annotations

from mlc.ir.graph import Graph, Node, Value
from mlc.ir.types import TensorType
from mlc.lower.knobs import Config, Knobs
from mlc.pipeline.graph import compile_graph, compiled_region
from mlc.pipeline.machine import Device, Processor
from mlc.rewrite.group import config_of
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import Accelerator, CallSpec, CompiledRegion, Target
from mlc.targets.bench import Program
from mlc.tuning.task import Task, candidate


class Builder:
    """Builds candidates of a target, or of the accelerator beside it where a task is of that.

    Args:
        target: to compile for.
        options: how to compile.
    """

    def __init__(self, target: Target, options: CompileOptions) -> None:
        self._target, self._options = target, options
        self._processor = Processor(target, contract=options.fast_math)

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
        return Program(accelerator.codegen(region_of(task, node, accelerator), "candidate").data)

    def _kernel(self, node: Node) -> Program:
        """An object whose ``mlc_run`` calls the one kernel."""
        code = self._processor.emit({"kernel": self._processor.kernel(node, "kernel", {})})
        places = [("input", k) for k in range(len(node.inputs))] + [("output", k) for k in range(len(node.outputs))]
        calls = [CallSpec("kernel", tuple(places))]
        artifact = self._target.codegen(code, calls, opt_level=self._options.opt_level, whole=False)
        return Program(artifact.obj, code.scratch["kernel"])


def region_of(task: Task, node: Node, accelerator: Accelerator) -> CompiledRegion:
    """The region of one group alone, without its program.

    Args:
        task: whose group.
        node: it, under a configuration.
        accelerator: that runs it.
    Raises:
        ScheduleError: the configuration is refused.
    """
    choice = accelerator.layouts(node, task.site, Knobs(config_of(node)))
    constants, inputs = {}, []
    for k, (v, own) in enumerate(zip(node.inputs, task.node.inputs, strict=True)):
        array = (task.constants or {}).get(own)
        if array is not None:  # packed as the untuned group wants it
            logical = array if own.type.layout is None else own.type.layout.unpack(array)
            layout = choice.packed.get(k)
            v = Value(v.name, TensorType(v.type.shape, v.type.dtype, layout))
            constants[v] = logical if layout is None else layout.pack(logical)
        inputs.append(v)
    node = Node(node.op, tuple(inputs), node.attrs, node.outputs, node.sources)
    given = tuple(dict.fromkeys(v for v in inputs if v not in constants))
    graph = Graph("candidate", given, node.outputs, (node,), constants)
    return compiled_region(compile_graph(graph, Device(accelerator), Observer()))

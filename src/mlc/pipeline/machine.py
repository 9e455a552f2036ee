"""What a graph of groups is compiled for: the host's processor, or a device beside it.

Both go through the same steps (:mod:`mlc.pipeline.layouts`, :mod:`mlc.pipeline.graph`); here is what differs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Protocol

import numpy as np

from mlc.ir import te
from mlc.ir.cost import operations, traffic
from mlc.ir.graph import Graph, Node, Value, express
from mlc.ir.loop import Function
from mlc.ir.site import Site
from mlc.lower.knobs import Knobs
from mlc.ops.shape import JOIN
from mlc.rewrite.arena import ALIGNMENT
from mlc.rewrite.group import group_key, is_alias, is_group
from mlc.rewrite.inplace import InPlaceOperands
from mlc.rewrite.memory import MemoryPlan, plan_memory
from mlc.rewrite.parts import joined, sliced
from mlc.rewrite.recurrence import body_of_scan, is_scan
from mlc.rewrite.region import is_region, on_device
from mlc.targets.base import Accelerator, Code, LayoutChoice, Target, Whole
from mlc.targets.functions import CompiledFunction, FunctionCache

Constants = Mapping[Value, np.ndarray]
Watch = Callable[[str, str], None]


class Machine(Protocol):
    """What the steps of a compilation ask."""

    @property
    def alignment(self) -> int:
        """Bytes that the places of values are multiples of."""
        ...

    def layouts(self, node: Node, site: Site, knobs: Knobs) -> LayoutChoice:
        """See :meth:`mlc.targets.base.Target.layouts`."""
        ...

    def without_kernel(self, graph: Graph) -> set[Node]:
        """Nodes for which there is nothing to run, or which another machine runs."""
        ...

    def key(self, node: Node, constants: Constants) -> Hashable:
        """What two nodes share exactly when one kernel serves both; ``constants`` are those of the graph."""
        ...

    def mark(self, key: Hashable) -> str:
        """What the name of the kernel with a key ends with, in every compilation; empty where kernels are numbered."""
        ...

    def kernel(self, node: Node, name: str, constants: Constants, watch: Watch | None = None) -> Any:
        """The kernel of a node; only the machine looks into it."""
        ...

    def emit(self, kernels: Mapping[str, Any]) -> Code:
        """Code of all kernels, and how much working memory each needs of its caller."""
        ...

    def plan(self, graph: Graph, scratch: Mapping[Node, int], over: Mapping[int, int]) -> MemoryPlan:
        """Where values lie, see :func:`~mlc.rewrite.memory.plan_memory`."""
        ...

    def time(self, node: Node) -> float:
        """What running a node would take at best, for comparisons."""
        ...


class Processor:
    """The host.

    Args:
        target: schedules and generates code.
        contract: whether ``a*b + c`` may be rounded once.
        on_stage: is told as stages of code generation begin.
        updates: whether outputs may lie over inputs.
        functions: kernels that were compiled before; they are used again, and new ones added.
    """

    alignment = ALIGNMENT

    def __init__(
        self,
        target: Target,
        *,
        contract: bool = True,
        on_stage: Callable[[str], None] | None = None,
        updates: bool = False,
        functions: FunctionCache | None = None,
    ) -> None:
        self.target = target
        self._functions = functions
        self._updates = updates
        self._contract = contract
        self._on_stage = on_stage
        self._in_place = InPlaceOperands()

    def layouts(self, node: Node, site: Site, knobs: Knobs) -> LayoutChoice:
        return self.target.layouts(node, site, knobs)

    def without_kernel(self, graph: Graph) -> set[Node]:
        return {
            *joined(graph),
            *sliced(graph),
            *(n for n in graph.nodes if is_alias(n) or on_device(n) or n.op is JOIN or is_scan(n)),
        }

    def key(self, node: Node, constants: Constants) -> Hashable:
        return group_key(node)

    def mark(self, key: Hashable) -> str:
        return "" if self._functions is None else self._functions.mark(str(key))

    def kernel(
        self, node: Node, name: str, constants: Constants, watch: Watch | None = None
    ) -> Function | CompiledFunction:
        if self._functions is None:
            return self._loops(node, name, watch)
        found = self._functions.compiled(self.target, name, lambda note: self._loops(node, name, note))
        if watch is not None and isinstance(found, CompiledFunction):
            for stage, text in found.stages:
                watch(stage, text)
        return found

    def _loops(self, node: Node, name: str, watch: Watch | None) -> Function:
        fn = self.target.kernel(node, name, watch)
        # whether a result really takes an operand's place is decided later, node by node; the kernel must bear it
        results = range(len(node.outputs)) if is_group(node) and (self._updates or len(node.outputs) == 1) else ()
        fn.attrs["aliased"] = tuple(
            (operand, len(node.inputs) + k) for k in results for operand in sorted(self._in_place(node, k))
        )
        return fn

    def emit(self, kernels: Mapping[str, Any]) -> Code:
        return self.target.emit(kernels, contract=self._contract, on_stage=self._on_stage)

    def plan(self, graph: Graph, scratch: Mapping[Node, int], over: Mapping[int, int]) -> MemoryPlan:
        accelerator = self.target.accelerator
        alignment = ALIGNMENT if accelerator is None else accelerator.alignment
        return plan_memory(graph, scratch=scratch, device_alignment=alignment, in_place=self._in_place, over=over)

    def time(self, node: Node) -> float:
        return self.target.peaks().time(traffic_of(node), operations_of(node))


class Device:
    """An accelerator, for its regions.

    Its kernels are whatever it makes of a group. Nothing is written in place of an operand: units that run side by side
    would have to know. Every node of a region is a step of its own, but for views of what lies row-major in a device
    that takes groups as they are.

    Args:
        accelerator: says what it does differently.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.alignment = accelerator.alignment
        self._views = isinstance(accelerator, Whole)

    def layouts(self, node: Node, site: Site, knobs: Knobs) -> LayoutChoice:
        return self.accelerator.layouts(node, site, knobs)

    def without_kernel(self, graph: Graph) -> set[Node]:
        return {n for n in graph.nodes if is_scan(n) or (self._views and is_alias(n))}

    def key(self, node: Node, constants: Constants) -> Hashable:
        return group_key(node), self.accelerator.depends_on(node, constants_of(node, constants))

    def mark(self, key: Hashable) -> str:
        return ""

    def kernel(self, node: Node, name: str, constants: Constants, watch: Watch | None = None) -> Any:
        return self.accelerator.kernel(node, name, constants_of(node, constants), watch)

    def emit(self, kernels: Mapping[str, Any]) -> Code:
        return _Kernels(kernels)

    def plan(self, graph: Graph, scratch: Mapping[Node, int], over: Mapping[int, int]) -> MemoryPlan:
        return plan_memory(graph, scratch=scratch, region=True, device_alignment=self.alignment, views=self._views)

    def time(self, node: Node) -> float:
        return sum(self.accelerator.estimate(node))


class _Kernels:
    """Kernels of a device as they are: its code is made when all calls are known."""

    def __init__(self, kernels: Mapping[str, Any]) -> None:
        self.scratch: Mapping[str, int] = dict.fromkeys(kernels, 0)


def constants_of(node: Node, constants: Constants) -> dict[Value, np.ndarray]:
    """Those of a graph's constants that a node reads."""
    return {v: constants[v] for v in node.inputs if v in constants}


def operations_of(node: Node) -> int:
    """Arithmetic operations of a node: of all rounds, of all that a region does."""
    if is_scan(node):
        return sum(node.attrs["rounds"] * operations_of(n) for n in body_of_scan(node).nodes)
    if is_region(node):
        return sum(map(operations_of, node.attrs["body"].nodes))
    if node.op.express is None:
        return 0
    inputs = [te.placeholder(v.type.shape, v.type.dtype, v.name) for v in node.inputs]
    return operations(list(express(node, inputs)))


def traffic_of(node: Node) -> int:
    """Bytes that a node must read and write at least once, or in every round; of a table, what is looked up."""
    if is_scan(node):
        return sum(node.attrs["rounds"] * traffic_of(n) for n in body_of_scan(node).nodes)
    return traffic(node)

"""A graph of groups with layouts to kernels, places in memory and calls, for whatever machine."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mlc.errors import LowerError, MlcError, ScheduleError, UnsupportedError
from mlc.ir.graph import Graph, Node, Value
from mlc.pipeline.calls import calls_of, loop_bytes
from mlc.pipeline.machine import Machine
from mlc.rewrite.group import body_of, config_of, identity_of, is_group
from mlc.rewrite.memory import MemoryPlan, check_plan
from mlc.rewrite.recompute import recompute
from mlc.rewrite.recurrence import body_of_scan, constants_of_all, graphs, is_scan
from mlc.rewrite.updates import readers_first
from mlc.settings import Observer
from mlc.targets.base import Code, CompiledRegion, Step

Refused = Mapping[tuple[str, ...], MlcError]  # groups by identity, and what their configurations are refused for


def require_few_kernels(graph: Graph, machine: Machine, most: int) -> None:
    """Refuse a graph, which has no layouts yet, that would take long for the number of its distinct groups.

    Raises:
        UnsupportedError: there are more than ``most``.
    """
    keys = set[Hashable]()
    for g, _ in graphs(graph):
        idle = machine.without_kernel(g)
        keys.update(machine.key(n, g.constants) for n in g.nodes if n not in idle)
    if len(keys) > most:
        raise UnsupportedError(
            f"the model takes {len(keys)} distinct kernels, more than the limit of {most}",
            hint=f"if the time it takes does not matter, raise it with mlc compile --max-kernels {2 * len(keys)}",
        )


@dataclass(eq=False)
class Kernels:
    """Distinct kernels of a machine; those of several graphs can share one table.

    Attributes:
        named: what was made, by name.
        names: by the key of the nodes that a kernel serves.
        texts: what every stage made of each, by name.
        freed: names of kernels that could not be made, by the identity of a group; its next kernel takes it.
        count: numbers given so far.
    """

    named: dict[str, Any] = field(default_factory=dict)
    names: dict[Hashable, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    freed: dict[tuple[str, ...], str] = field(default_factory=dict)
    count: int = 0

    def make(self, graph: Graph, machine: Machine, watch: Observer) -> tuple[dict[Node, str], Refused]:
        """Kernels for every node, those in recurrences included, that needs one and has none yet.

        Returns:
            the name of each node's kernel; and for groups whose configurations are refused, the reasons.
        Raises:
            MlcError: with a note that names the kernel that was being made.
        """
        of_node: dict[Node, str] = {}
        work: dict[str, tuple[Hashable, Node, Graph]] = {}
        for g, _ in graphs(graph):
            idle = machine.without_kernel(g)
            for node in g.nodes:
                if node in idle:
                    continue
                key = machine.key(node, g.constants)
                if key not in self.names:
                    name = self.names[key] = self._name(node, machine.mark(key))
                    work[name] = key, node, g
                of_node[node] = self.names[key]
        refused: dict[str, MlcError] = {}
        for done, (name, (key, node, g)) in enumerate(work.items()):
            stages: list[str] = []

            def note(stage: str, text: str, stages: list[str] = stages) -> None:
                stages.append(f"# {stage}\n{text}")

            try:
                self.named[name] = machine.kernel(node, name, g.constants, note)
            except MlcError as error:
                if config_of(node) and isinstance(error, (ScheduleError, LowerError)):
                    refused[name] = error
                    self.freed[identity_of(node)] = name
                    del self.names[key]
                    continue
                error.add_note(f"while compiling {name} for {', '.join(node.sources[:8]) or node!r}")
                raise
            self.texts[name] = f"### {name}\n\n" + "\n".join(stages) + "\n"
            watch.kernel(done + 1, len(work))
        return of_node, {identity_of(n): refused[name] for n, name in of_node.items() if name in refused}

    def of(self, of_node: Mapping[Node, str]) -> dict[str, Any]:
        """The kernels of some nodes by name, in order of first use."""
        return {name: self.named[name] for name in dict.fromkeys(of_node.values())}

    def _name(self, node: Node, mark: str) -> str:
        if mark:
            return f"f_{_identifier(node)}_{mark}"
        if name := self.freed.pop(identity_of(node), ""):
            return name
        self.count += 1
        return f"k{self.count - 1}_{_identifier(node)}"


@dataclass(frozen=True, eq=False)
class Compiled:
    """A graph in terms of a machine.

    Args:
        graph: with layouts and configurations.
        kernels: distinct ones, by name, in order of first use; what they are is the machine's affair.
        of_node: the name of each node's kernel, of those in recurrences as well.
        texts: what every stage made of each kernel, by name.
        code: of all kernels.
        plans: where values lie: those of the graph, and those of the bodies in it.
        calls: the steps, in order, and after them copies of results that no kernel can write itself.
    """

    graph: Graph
    kernels: Mapping[str, Any]
    of_node: Mapping[Node, str]
    texts: Mapping[str, str]
    code: Code
    plans: Mapping[Graph, MemoryPlan]
    calls: tuple[Step, ...]

    @property
    def plan(self) -> MemoryPlan:
        """Where the values of the graph itself lie."""
        return self.plans[self.graph]


def compile_graph(
    graph: Graph,
    machine: Machine,
    watch: Observer,
    *,
    params: Callable[[Graph], Mapping[Value, int]] | None = None,
    again: Callable[[Refused], Graph] | None = None,
    table: Kernels | None = None,
    verify: bool = False,
    within: Callable[[Graph], int] | None = None,
    over: Mapping[int, int] | None = None,
) -> Compiled:
    """Compile a graph: one kernel for each distinct group, memory, calls.

    Args:
        graph: groups with layouts, see :func:`~mlc.pipeline.layouts.lay_out`.
        machine: to compile for.
        watch: is told how it goes on.
        params: gives what calls say of the constants of a graph and of the bodies in it; their positions among
            :func:`~mlc.rewrite.recurrence.constants_of_all` unless given.
        again: lays the graph out anew after configurations have been refused: the groups get their defaults, and only
            kernels that are not there yet are made. Without it a refusal is an error.
        table: of kernels that were made for other graphs, or for this one before; gains those of this one.
        verify: follow the memory plan step by step.
        within: gives the bytes that the arena of a graph may take; nodes are repeated to come below that, as far as it
            is possible.
        over: outputs by position, and the input that each may lie over.
    Raises:
        VerifyError: something is read after it was overwritten.
        ScheduleError, LowerError: a configuration is refused, and there is no ``again``.
        MlcError: with a note that names the kernel that was being made.
    """
    start = time.perf_counter()
    table = Kernels() if table is None else table
    over = over or {}
    while True:
        graph = readers_first(graph, over)
        of_node, refused = table.make(graph, machine, watch)
        if not refused:
            break
        if again is None:
            raise next(iter(refused.values()))
        graph = again(refused)
    watch.passed("lower", "\n".join(table.texts[name] for name in dict.fromkeys(of_node.values())), _since(start))
    code = machine.emit(table.of(of_node))
    start = time.perf_counter()
    plans, needs = _plans(graph, machine, code, of_node, over)
    room = None if within is None else within(graph)
    if room is not None and plans[graph].workspace_bytes > room:
        scratch = {n: needs[n] for n in graph.nodes if n in needs}
        graph, _ = recompute(graph, room, lambda g, s: machine.plan(g, s, over), scratch, machine.time)
        made = table.count
        of_node, _ = table.make(graph, machine, watch)
        if table.count > made:  # a concat that was none in place any more
            code = machine.emit(table.of(of_node))
        plans, needs = _plans(graph, machine, code, of_node, over)
    if verify:
        for g, plan in plans.items():
            check_plan(g, plan, needs)
    watch.passed("memory", plans[graph], _since(start))
    at = params(graph) if params is not None else {v: k for k, v in enumerate(constants_of_all(graph))}
    calls = tuple(calls_of(graph, plans, of_node, at, machine.alignment))
    texts = {name: table.texts[name] for name in dict.fromkeys(of_node.values())}
    return Compiled(graph, table.of(of_node), of_node, texts, code, plans, calls)


def _plans(
    graph: Graph, machine: Machine, code: Code, of_node: Mapping[Node, str], over: Mapping[int, int]
) -> tuple[dict[Graph, MemoryPlan], dict[Node, int]]:
    """Where values lie, in a graph and in the bodies in it; and the scratch memory of its nodes."""
    needs = {n: code.scratch[k] for n, k in of_node.items() if code.scratch[k]}
    plans: dict[Graph, MemoryPlan] = {}
    for g, _ in reversed(list(graphs(graph))):  # bodies first: what one takes is the scratch memory of its recurrence
        needs.update({n: loop_bytes(n, plans[body_of_scan(n)], machine.alignment) for n in g.nodes if is_scan(n)})
        plans[g] = machine.plan(g, needs, over if g is graph else {})
    return plans, needs


def _since(start: float) -> float:
    return time.perf_counter() - start


def compiled_region(compiled: Compiled) -> CompiledRegion:
    """What an accelerator makes a program of."""
    nodes = {g: plan.steps for g, plan in compiled.plans.items()}
    constants = constants_of_all(compiled.graph)
    return CompiledRegion(
        compiled.graph, compiled.kernels, compiled.calls, constants, nodes, compiled.plan.workspace_bytes
    )


def _identifier(node: Node) -> str:
    """A short symbol-like name for a group."""
    words = [n.op.name for n in body_of(node).nodes] if is_group(node) else [node.op.name]
    return re.sub(r"[^a-z0-9_]", "_", "_".join(dict.fromkeys(words)).lower())[:40]

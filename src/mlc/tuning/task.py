"""Tasks: the distinct fused groups of a model on a target, whose schedules have something to choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from mlc.errors import ScheduleError, UsageError, WorkloadError
from mlc.ir import te
from mlc.ir.cost import operations
from mlc.ir.expr import loads
from mlc.ir.graph import RULE_ERRORS, Graph, Node, Value, express
from mlc.ir.layout import Layout
from mlc.ir.site import Site
from mlc.ir.types import TensorType
from mlc.lower.knobs import TEMPLATE, USUAL, Config, Knobs, Space
from mlc.lower.schedule import Schedule
from mlc.ops.algorithms import Algorithm
from mlc.pipeline.configurations import Configurations
from mlc.pipeline.layouts import lay_out, parts_of
from mlc.pipeline.machine import constants_of
from mlc.pipeline.passes import optimise
from mlc.records.margins import Margins, margins_of, surrounded
from mlc.records.workload import laid_out, name_of
from mlc.rewrite.group import config_of, configured, device_of, identity_of, is_group
from mlc.rewrite.recurrence import graphs
from mlc.rewrite.workload import Document, Workload, read_workload, workload_document, workload_key
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import LEVELS, LayoutChoice, Target, Tunable, Whole


@dataclass(frozen=True, eq=False)
class Task:
    """One group with something to choose.

    Args:
        key: tells the workload from all others; the same in every process and version that schedules it alike.
        name: short and readable, for people.
        node: the group as compiled untuned: inputs and outputs with layouts, constants packed.
        site: where the group stands, as the target sees it when it chooses layouts.
        space: its configurations.
        flops: operations of one call.
        weight: how often the model calls it.
        sources: names of operators in the model's file.
        constants: for a group of the target's accelerator, the values of those of its inputs that are constants;
            nothing for the host's.
        fixed: positions of inputs whose layouts are what the border of a region says.
    """

    key: str
    name: str
    node: Node
    site: Site
    space: Space
    flops: int
    weight: int = 1
    sources: tuple[str, ...] = ()
    constants: Mapping[Value, np.ndarray] | None = None
    fixed: frozenset[int] = frozenset()

    @cached_property
    def document(self) -> Document:
        """The workload; :func:`task_of` makes a task of it and the margins."""
        return workload_document(self.node, self.site)

    @cached_property
    def terms(self) -> int:
        """Products that an instruction may add up in one lane of 32 bits: as many as operands of a sum fit into it.

        Sums of f32 have 1, and so have those with weights that are widened to it; bf16 have 2, bytes 4.
        """
        outputs = express(self.node, [te.placeholder(v.type.shape, v.type.dtype, v.name) for v in self.node.inputs])
        sums = [op for op in te.topological(list(outputs)) if op.combiner is te.SUM]
        widest = [max((ld.dtype.bits for body in op.bodies for ld in loads(body)), default=32) for op in sums]
        return max((32 // max(8, bits) for bits in widest), default=1) or 1

    @property
    def untuned(self) -> Config:
        """What a compilation without records takes: no template that was asked for, or else the default."""
        return {TEMPLATE: USUAL} if TEMPLATE in self.space.default else self.space.default

    @property
    def held(self) -> tuple[bool, ...]:
        """Which inputs candidates do not take as such: constants, on an accelerator those whose values are known."""
        if self.constants is None:
            return tuple(self.site.constant)
        return tuple(c and v in self.constants for v, c in zip(self.node.inputs, self.site.constant, strict=True))

    def stands_alone(self, target: Target) -> bool:
        """Whether its layouts concern what it reads only, so that no other workload depends on them."""
        return self.constants is not None and not isinstance(target.accelerator, Whole)

    @property
    def margins(self) -> tuple[Margins, ...]:
        """Those of its values."""
        return margins_of(self.node)


def tasks_of(
    graph: Graph,
    target: Target,
    options: CompileOptions,
    watch: Observer,
    algorithms: Configurations | None = None,
    template: str | None = None,
    layouts: Configurations | None = None,
) -> list[Task]:
    """Every distinct group of a model that has knobs, in order of first use.

    Args:
        graph: an imported model.
        target: what to compile for.
        options: as for a compilation.
        watch: is told of the passes.
        algorithms: know by which algorithm an operator is to be computed; the target's own unless given.
        template: of the groups; those that it does not fit are left out. The one that fits unless given.
        layouts: know how groups lay their tensors out, which decides how the operands of others lie; the target's own
            layouts unless given.
    """
    fused = optimise(graph, target, options, watch, configurations=algorithms)
    found: dict[str, Task] = {}
    for part in parts_of(fused, target):
        # what groups of other accelerators ask for changes no workload, and what they are found by is theirs untuned
        whole = part.region is None or isinstance(target.accelerator, Whole)
        seen = _Seen(target, template, layouts if whole else None)
        laid = lay_out(part, options, watch, seen)
        for given, node, times in ((g.inputs, n, times) for g, times in graphs(laid) for n in g.nodes):
            site = seen.sites.get(identity_of(node))
            if site is None or not is_group(node) or (template is not None and identity_of(node) not in seen.asked):
                continue
            document = workload_document(node, site)
            key = workload_key(document)
            fixed = frozenset(k for k, v in enumerate(node.inputs) if part.region is not None and v in given)
            if key in found:
                task = found[key]
                sources = (*task.sources, *node.sources[:1])
                found[key] = replace(task, weight=task.weight + times, sources=sources, fixed=task.fixed & fixed)
                continue
            if LEVELS in config_of(node):  # a task knows its group untuned
                task = task_of(document, _margins_of_inputs(node), target)
                found[key] = replace(task, weight=times, sources=tuple(node.sources[:1]))
                continue
            knobs = Knobs(config_of(node))
            part.machine.layouts(node, site, knobs)
            constants = None
            if part.region is None:
                target.schedule(node, knobs)
            elif isinstance(target.accelerator, Tunable):
                constants = constants_of(node, laid.constants)
                target.accelerator.schedule(node, constants, knobs)
            if knobs.asked.keys() - {TEMPLATE}:
                task = _task(key, node, site, knobs, constants)
                found[key] = replace(task, weight=times, fixed=fixed)
    return list(found.values())


def chosen_tasks(tasks: list[Task], only: Sequence[int] | None) -> tuple[list[Task], list[int]]:
    """Those that a user has named by their positions, or all, and their positions.

    Raises:
        UsageError: there are none, or not these.
    """
    numbers = list(range(len(tasks))) if only is None else list(only)
    if not tasks or not numbers:
        raise UsageError("the model has nothing to tune", hint="its kernels have no choices on this target")
    if only is not None:
        missing = [k for k in only if not 0 <= k < len(tasks)]
        if missing:
            raise UsageError(
                f"there is no task {missing[0]}", hint=f"there are tasks 0 to {len(tasks) - 1}; see --list"
            )
    return [tasks[k] for k in numbers], numbers


def _margins_of_inputs(node: Node) -> tuple[Margins, ...]:
    """The margins of a group's operands alone: those of its results belong to the layouts that these have now."""
    found = margins_of(node)[: len(node.inputs)]
    return (*found, *[()] * len(node.outputs)) if any(found) else ()


class _Seen:
    """Notes what every group is asked about, and leaves it as it is, or gives it a template or searched layouts.

    Args:
        target: what for.
        template: of the groups that it fits.
        layouts: know which groups have searched ones.

    Attributes:
        sites: where each group stands, by its identity.
        asked: those that were given the template.
    """

    def __init__(self, target: Target, template: str | None = None, layouts: Configurations | None = None) -> None:
        self._target, self._template, self._layouts = target, template, layouts
        self.asked: set[tuple[str, ...]] = set()
        self.sites: dict[tuple[str, ...], Site] = {}

    def algorithm(self, node: Node, known: Sequence[Algorithm]) -> Algorithm | None:
        return None

    def configure(self, node: Node, site: Site) -> Node:
        self.sites[identity_of(node)] = site
        if self._layouts is not None:
            known = self._layouts.configure(node, site)
            if LEVELS in config_of(known):
                return known
        if self._template is None or not is_group(node) or device_of(node):
            return node
        knobs = Knobs({TEMPLATE: self._template})
        named = configured(node, knobs.config)
        try:
            self._target.layouts(named, site, knobs)
        except ScheduleError:  # it does not fit
            return node
        if TEMPLATE in knobs.asked:
            self.asked.add(identity_of(node))
        return named if TEMPLATE in knobs.asked else node

    def refuse(self, group: tuple[str, ...], reason: str) -> None:
        assert self._layouts is not None, "a group without a configuration"
        self._layouts.refuse(group, reason)


def _task(
    key: str,
    node: Node,
    site: Site,
    knobs: Knobs,
    constants: Mapping[Value, np.ndarray] | None = None,
) -> Task:
    operands = [te.placeholder(v.type.shape, v.type.dtype, v.name) for v in node.inputs]
    flops = operations(list(express(node, operands)))
    return Task(
        key, name_of(node), node, site, knobs.space(), flops, 1, tuple(node.sources[:1]),
        constants,
    )  # fmt: skip


def task_of(document: Any, margins: tuple[Margins, ...], target: Target) -> Task:
    """The task of a workload that no model is at hand for; the same as that of :func:`tasks_of`.

    Args:
        document: of the workload, or whatever a file holds.
        margins: of its values.
        target: whose schedules.
    Raises:
        WorkloadError: see :func:`~mlc.rewrite.workload.read_workload`; or the margins do not fit it, there is nothing
            to choose on the target, or it is an operation of another device than the target's, or of one whose choices
            depend on constants.
    """
    workload = read_workload(document)
    site = workload.site
    knobs = Knobs()
    constants: Mapping[Value, np.ndarray] | None = {} if device_of(workload.node) else None
    try:
        if constants is not None:
            accelerator = _accelerator_of(workload, target)
            assert target.accelerator is not None
            choice = target.accelerator.layouts(workload.node, site, knobs)
            node = surrounded(laid_out(workload.node, site.inputs, choice), margins)
            accelerator.schedule(node, constants, knobs)
        else:
            choice = target.layouts(workload.node, site, knobs)
            node = surrounded(laid_out(workload.node, site.inputs, choice), margins)
            target.schedule(node, knobs)
        if knobs.asked:
            return _task(workload_key(document), node, site, knobs, constants)
    except RULE_ERRORS as error:
        raise WorkloadError(f"a workload that cannot be scheduled: {error}") from error
    raise WorkloadError("a workload that has nothing to choose")


def _accelerator_of(workload: Workload, target: Target) -> Tunable:
    """Whose operation a workload is: what takes whole models schedules by types alone, as documents tell them.

    Raises:
        WorkloadError: it is none of the target's.
    """
    name, accelerator = device_of(workload.node).split(" ", 1)[0], target.accelerator
    if accelerator is None or accelerator.device != name:
        raise WorkloadError(f"an operation of {name!r}, which the target does not have")
    if not isinstance(accelerator, Whole) or not isinstance(accelerator, Tunable):
        raise WorkloadError("an operation of an accelerator, whose choices depend on its constants")
    return accelerator


def schedule_of(task: Task, node: Node, target: Target, knobs: Knobs) -> Schedule | None:
    """The schedule of a task's group; nothing where an accelerator has no one schedule of it.

    Args:
        task: says whose it is.
        node: the group, or it under another configuration.
        target: the machine.
        knobs: are asked.
    Raises:
        ScheduleError: the configuration is refused.
    """
    if task.constants is None:
        return target.schedule(node, knobs)
    assert isinstance(target.accelerator, Tunable)
    return target.accelerator.schedule(node, task.constants, knobs)


def layouts_of(task: Task, node: Node, target: Target, knobs: Knobs) -> LayoutChoice:
    """The layouts that a task's group prefers.

    Args:
        task: says whose it is, and where it stands.
        node: the group, under a configuration.
        target: the machine.
        knobs: are asked.
    Raises:
        ScheduleError: the configuration is refused.
    """
    if task.constants is None:
        return target.layouts(node, task.site, knobs)
    assert target.accelerator is not None
    return target.accelerator.layouts(node, task.site, knobs)


def candidate(task: Task, target: Target, config: Config) -> Node:
    """The task's group under a configuration: what is packed lies as the configuration wants it.

    An accelerator packs its constants itself, and its own layouts are always the same. A configuration of the layout
    space also says how the result lies, or what the group asks of those that make its operands, which is granted.

    Raises:
        ScheduleError: the configuration is refused, or changes the layout that other groups see without naming it.
    """
    if task.constants is not None and LEVELS not in config:
        return configured(task.node, config)
    node = configured(with_types(task.node, task.site.inputs), config)
    choice = layouts_of(task, node, target, Knobs(config))
    outputs = task.node.outputs
    if LEVELS in config:
        outputs = tuple(_laid_out(v, layout) for v, layout in zip(outputs, choice.outputs, strict=True))
    else:
        before = [v.type.layout.core if v.type.layout is not None else None for v in outputs]
        if [None if layout is None else layout.core for layout in choice.outputs] != before:
            raise ScheduleError("configuration refused: it changes the layout of the result")
    inputs = []
    for k, (v, constant) in enumerate(zip(task.node.inputs, task.site.constant, strict=True)):
        if constant or k in choice.packed:
            v = _laid_out(v, choice.packed.get(k))
        elif k in choice.asked:
            v = _laid_out(v, choice.asked[k])
        inputs.append(v)
    return Node(node.op, tuple(inputs), node.attrs, outputs, node.sources)


def _laid_out(v: Value, layout: Layout | None) -> Value:
    wanted = TensorType(v.type.shape, v.type.dtype, layout)
    return v if v.type == wanted else Value(v.name, wanted)


def with_types(node: Node, types: Sequence[TensorType]) -> Node:
    """The node over fresh inputs of some types."""
    inputs = tuple(Value(v.name, t) for v, t in zip(node.inputs, types, strict=True))
    return Node(node.op, inputs, node.attrs, node.outputs, node.sources)

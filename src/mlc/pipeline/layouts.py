"""The parts of a model, one a machine, and layouts for the tensors of each."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from mlc.errors import LowerError, MlcError, ScheduleError
from mlc.ir.graph import Graph, Node, verify
from mlc.ir.site import Site
from mlc.lower.knobs import Knobs
from mlc.ops import get
from mlc.pipeline.configurations import Configurations
from mlc.pipeline.machine import Device, Machine, Processor
from mlc.pipeline.passes import LAYOUT
from mlc.rewrite.group import config_of, identity_of
from mlc.rewrite.layout import assign_layouts
from mlc.rewrite.recurrence import map_bodies
from mlc.rewrite.region import is_region, region_graph
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import LEVELS, LayoutChoice, Target
from mlc.targets.functions import FunctionCache


@dataclass(frozen=True, eq=False)
class Part:
    """What is compiled for one machine.

    Args:
        graph: the host's, regions included; or one region's, with its constants.
        machine: that it is compiled for.
        region: the node that stands for the region in the host's graph.
    """

    graph: Graph
    machine: Machine
    region: Node | None = None


def parts_of(
    graph: Graph,
    target: Target,
    *,
    contract: bool = True,
    on_stage: Callable[[str], None] | None = None,
    updates: bool = False,
    functions: FunctionCache | None = None,
) -> list[Part]:
    """The host's part of a divided graph, and every region.

    Args:
        graph: from :func:`~mlc.pipeline.passes.optimise`.
        target: whose machines they are.
        contract, on_stage, updates, functions: see :class:`~mlc.pipeline.machine.Processor`.
    """
    machine = Processor(target, contract=contract, on_stage=on_stage, updates=updates, functions=functions)
    parts = [Part(graph, machine)]
    if target.accelerator is not None:
        device = Device(target.accelerator)
        parts += [Part(region_graph(n, graph.constants), device, n) for n in graph.nodes if is_region(n)]
    return parts


def lay_out(
    part: Part,
    options: CompileOptions,
    watch: Observer,
    configurations: Configurations | None = None,
    *,
    sparing: bool = False,
) -> Graph:
    """The graph of a part with layouts on values, constants packed, and configurations in groups.

    Args:
        part: from :func:`parts_of`.
        options: how to compile; below the highest level, or where the pass is left out, the host's part stays as it is.
        watch: is told of the pass.
        configurations: gives groups theirs; hears which of them are refused, and for these groups the defaults hold.
        sparing: operands of products stay as they are while the model runs, since packed ones take memory beside them.
    """
    on_host = part.region is None
    if on_host and (options.opt_level < LAYOUT.level or LAYOUT.name in options.disabled_passes):
        return part.graph

    def choose(node: Node, site: Site) -> tuple[Node, LayoutChoice]:
        chosen, layouts = wanted(node, site)
        if sparing and not any(layouts.outputs):
            layouts = replace(layouts, packed={k: v for k, v in layouts.packed.items() if site.constant[k]})
        return chosen, layouts

    def wanted(node: Node, site: Site) -> tuple[Node, LayoutChoice]:
        if configurations is not None:
            tuned = configurations.configure(node, site)
            if config := config_of(tuned):
                try:
                    choice = part.machine.layouts(tuned, site, Knobs(config))
                except (ScheduleError, LowerError) as error:
                    configurations.refuse(identity_of(node), error.message)
                else:
                    # on a device, records of a group whose result is read by others may be found for one whose is not
                    leaves = not on_host and site.row_major and LEVELS in config
                    if not leaves or choice.outputs == untuned(node, site)[1].outputs:
                        return tuned, choice
        return untuned(node, site)

    def untuned(node: Node, site: Site) -> tuple[Node, LayoutChoice]:
        return node, part.machine.layouts(node, site, Knobs())

    def assign(graph: Graph) -> Graph:
        return map_bodies(assign_layouts(graph, choose, get("identity")), assign)

    start = time.perf_counter()
    try:
        graph = assign(part.graph)
        if options.verify:
            verify(graph)
    except MlcError as error:
        error.add_note(f"in pass {LAYOUT.name}")
        raise
    if on_host:
        watch.passed(LAYOUT.name, graph, time.perf_counter() - start)
    return graph

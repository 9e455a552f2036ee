"""A graph to the contents of a package: the compiler as one readable sequence.

graph passes → groups → layouts → one kernel for each distinct group → memory plan → code → manifest. Where the target
has an accelerator, the passes divide the graph between it and the host, and each of its regions becomes a program.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from mlc import __version__
from mlc.errors import ConfigError, LowerError, MlcError, ScheduleError
from mlc.ir import te
from mlc.ir.cost import operations
from mlc.ir.graph import Graph, Node, Value, express
from mlc.ir.loop import Function
from mlc.ir.types import TensorType
from mlc.lower.knobs import Knobs
from mlc.ops import get
from mlc.ops.random import seed_of
from mlc.ops.shape import JOIN
from mlc.records.lookup import Tuned, require_all
from mlc.rewrite.attention import use_attention
from mlc.rewrite.group import body_of, config_of, group_key, identity_of, is_alias, is_group
from mlc.rewrite.inplace import InPlaceOperands
from mlc.rewrite.layout import Configure, assign_layouts
from mlc.rewrite.memory import Location, MemoryPlan, Space, plan_memory
from mlc.rewrite.offload import Decision, offload
from mlc.rewrite.parts import joined, sliced
from mlc.rewrite.pipeline import MAX_LEVEL, GraphPass, passes_for, run_passes
from mlc.rewrite.region import COPY_TO, activations, configure_regions, is_region, on_device, region_graph
from mlc.rewrite.winograd import use_winograd
from mlc.runtime import (
    ALIGNMENT,
    DeviceCall,
    DeviceSpec,
    Manifest,
    MemorySpec,
    ModelSpec,
    Physical,
    PlaceSpec,
    ResultSpec,
    StepSpec,
    TargetSpec,
    TensorSpec,
    c_example,
    c_header,
    header_name,
    plan_params,
)
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import Accelerator, CallSpec, DeviceProgram, JoinSpec, LayoutChoice, Step, Target, Tunable

_SHARED = "lib/model.so"


@dataclass(eq=False)
class _Kernels:
    """Distinct kernels and which node uses which."""

    functions: dict[str, Function]
    of_node: dict[Node, str]
    texts: dict[str, str]


@dataclass(frozen=True, eq=False)
class Built:
    """What becomes a package.

    Args:
        manifest: everything but the list of members.
        params: the parameters, by name.
        members: the other members of the package.
        offloads: for a target with an accelerator, where every operation runs, and why.
        programs: what the accelerator's compiler says of each region, by name.
    """

    manifest: Manifest
    params: dict[str, np.ndarray]
    members: dict[str, bytes]
    offloads: tuple[Decision, ...] = ()
    programs: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


def build_package(
    graph: Graph,
    target: Target,
    options: CompileOptions,
    watch: Observer,
    configure: Configure | None = None,
    on_configured: Callable[[], None] = lambda: None,
) -> Built:
    """Compile a graph.

    Args:
        graph: the model, row-major.
        target: what to compile for.
        options: how.
        watch: is told how it goes on.
        configure: gives groups their tuned configurations.
        on_configured: called when every group has its configuration; if it raises, no kernel is made.
    Raises:
        ConfigError: a configuration is refused.
        MlcError: with a note that names the kernel that was being compiled.
    """
    watch.stage("optimise the graph")
    seed = seed_of(graph)
    offloads: list[Decision] = []
    fused = optimise(graph, target, options, watch, configure, offloads.extend)
    on_configured()
    watch.stage("schedule and lower")
    programs = _compile_regions(fused, target.accelerator, watch)
    kernels = _make_kernels(fused, target, watch)

    params = _params_in_order(fused)
    specs = [TensorSpec(v.name, v.type.dtype.name, v.type.physical_shape) for v in params]
    places = plan_params(specs)
    param_offset = {v: p.offset for v, p in zip(params, places.params, strict=True)}
    planned: list[MemoryPlan] = []

    def steps(scratch: Mapping[str, int]) -> Sequence[Step]:
        start = time.perf_counter()
        needs = {n: scratch[k] for n, k in kernels.of_node.items() if scratch[k]}
        plan = plan_memory(fused, scratch=needs, device_alignment=_device_alignment(target.accelerator))
        planned.append(plan)
        watch.passed("memory", plan, time.perf_counter() - start)
        return _calls(fused, plan, kernels, param_offset)

    watch.stage("generate code")
    stages = _StageTimes(watch)
    artifact = target.codegen(
        kernels.functions,
        steps,
        opt_level=options.opt_level,
        contract=options.fast_math,
        on_stage=stages.begin,
        symbols=options.symbols,
    )
    listing = target.assembly(artifact.sources, opt_level=options.opt_level) if options.keep_assembly else ""
    stages.report({"codegen": "\n".join(artifact.sources.values()), "emit": listing})
    plan = planned[0]

    facts = {**target.describe(), "opt_level": options.opt_level, "fast_math": options.fast_math}
    manifest = Manifest(
        mlc_version=__version__,
        target=TargetSpec.from_facts(facts),
        model=ModelSpec(options.name, options.sha256, options.source),
        inputs=tuple(TensorSpec(v.name, v.type.dtype.name, v.type.shape) for v in fused.inputs),
        outputs=tuple(
            TensorSpec(name, v.type.dtype.name, v.type.shape)
            for name, v in zip(fused.output_names, fused.outputs, strict=True)
        ),
        steps=_step_specs(plan, kernels, fused.constants, programs),
        memory=MemorySpec(plan.workspace_bytes, places.nbytes),
        params=places.params,
        module_so=_SHARED if artifact.shared is not None else None,
        symbols=options.symbols,
        seed=None if seed is None else seed.name,
        device=_device_spec(plan, target.accelerator) if programs else None,
    )
    members = {"graph.txt": f"{fused}\n".encode(), "lib/model.o": artifact.obj}
    for name, text in {**artifact.sources, "kernels.txt": "\n".join(kernels.texts.values())}.items():
        members[f"src/{name}"] = text.encode()
    if artifact.shared is not None:
        members[_SHARED] = artifact.shared
    members[header_name(options.symbols)] = c_header(manifest).encode()
    members["examples/main.c"] = c_example(manifest).encode()
    members.update({p.member: p.program.data for p in programs.values()})
    arrays = {v.name: fused.constants[v] for v in params}
    facts_of = {p.name: p.program.facts for p in programs.values()}
    return Built(manifest, arrays, members, tuple(offloads), facts_of)


def build_tuned(
    graph: Graph,
    target: Target,
    options: CompileOptions,
    watch: Observer,
    tuned: Tuned,
    *,
    require: bool = False,
) -> tuple[Built, Tuned]:
    """Compiles a graph with records; a kernel whose record is refused is compiled without.

    Args:
        graph, target, options, watch: as for :func:`~mlc.build.build_package`.
        tuned: gives configurations.
        require: whether every kernel must have one.
    Returns:
        the contents of the package, and what was found for it.
    Raises:
        UsageError: a kernel has none though it must; before any is compiled.
    """
    while True:
        attempt = tuned

        def require_tuned(attempt: Tuned = attempt) -> None:
            if require:
                require_all(attempt.findings())

        try:
            return build_package(graph, target, options, watch, tuned.configure, require_tuned), tuned
        except ConfigError as error:
            tuned = tuned.without(error)


def optimise(
    graph: Graph,
    target: Target,
    options: CompileOptions,
    watch: Observer,
    configure: Configure | None = None,
    on_offload: Callable[[Sequence[Decision]], None] = lambda decisions: None,
) -> Graph:
    """The graph passes of an optimisation level; the layout pass asks the target, the offload pass its accelerator."""

    def choose(node: Node, types: Sequence[TensorType], constant: Sequence[bool], row_major: bool) -> LayoutChoice:
        with _blaming_config(node):
            return target.layouts(node, types, constant, row_major)

    layout = GraphPass(
        "layout",
        lambda g: assign_layouts(g, choose, get("identity"), configure),
        "lay tensors out as kernels want them, pack constants",
        MAX_LEVEL,
    )
    winograd = GraphPass(
        "winograd",
        lambda g: use_winograd(g, target.winograd_tile),
        "3×3 convolutions with fewer multiplications, where the target is faster that way",
        MAX_LEVEL,
    )
    attention = GraphPass(
        "attention",
        lambda g: use_attention(g, target.fuses_attention),
        "products around a softmax as one kernel, where the target is faster that way",
        MAX_LEVEL,
    )
    passes = list(passes_for(options.opt_level))
    before = next(k for k, p in enumerate(passes) if p.groups)
    if options.opt_level >= MAX_LEVEL:
        passes[before:before] = [winograd, attention]
    accelerator = target.accelerator
    if accelerator is not None:

        def divide(g: Graph) -> Graph:
            parts = offload(g, accelerator)
            on_offload(parts.decisions)
            return parts.graph

        text = "divide the graph between the host and the accelerator"
        passes.insert(before, GraphPass("offload", divide, text, 0))
    passes.append(layout)
    exact = () if options.fast_math else (winograd.name, attention.name)
    off = {*options.disabled_passes, *exact, *((layout.name,) if options.opt_level < layout.level else ())}
    divided = run_passes(graph, passes, disabled=off, check=options.verify, on_pass=watch.passed)
    if configure is None or not isinstance(accelerator, Tunable):
        return divided
    ready = configure_regions(divided, configure)
    for region in (region_graph(n, ready.constants) for n in ready.nodes if is_region(n)):
        for group in (g for g in region.nodes if config_of(g)):
            with _blaming_config(group):
                accelerator.ask(group, region.constants, Knobs(config_of(group)))
    return ready


@contextlib.contextmanager
def _blaming_config(node: Node) -> Iterator[None]:
    """What a group's schedule refuses is its configuration's fault where it has one."""
    try:
        yield
    except (ScheduleError, LowerError) as error:
        if not config_of(node):
            raise
        raise ConfigError(error.message, identity_of(node)) from error


class _StageTimes:
    """Times the code generator's stages, and reports them as passes once their programs are known."""

    def __init__(self, watch: Observer) -> None:
        self.watch = watch
        self.begun: list[tuple[str, float]] = []

    def begin(self, name: str) -> None:
        self.begun.append((name, time.perf_counter()))

    def report(self, programs: Mapping[str, str]) -> None:
        """Tell the observer; ``programs`` are the texts after those stages that have one."""
        ends = [start for _, start in self.begun[1:]] + [time.perf_counter()]
        for (name, start), end in zip(self.begun, ends, strict=True):
            self.watch.passed(f"llvm-{name}", programs.get(name, ""), end - start)


def _make_kernels(graph: Graph, target: Target, watch: Observer) -> _Kernels:
    """One kernel for every distinct group."""
    by_key: dict[object, str] = {}
    kernels = _Kernels({}, {}, {})
    start = time.perf_counter()
    work: dict[str, Node] = {}
    in_place = InPlaceOperands()
    made_in_place = {*joined(graph), *sliced(graph)}
    for node in graph.nodes:
        if is_alias(node) or node in made_in_place or on_device(node) or node.op is JOIN:
            continue
        key = group_key(node)
        if key not in by_key:
            by_key[key] = f"k{len(by_key)}_{_identifier(node)}"
            work[by_key[key]] = node
        kernels.of_node[node] = by_key[key]
    for done, (name, node) in enumerate(work.items()):
        stages: list[str] = []

        def note(stage: str, text: str, stages: list[str] = stages) -> None:
            stages.append(f"# {stage}\n{text}")

        try:
            with _blaming_config(node):
                fn = make_kernel(node, name, target, in_place, note)
        except MlcError as error:
            error.add_note(f"while compiling {name} for {', '.join(node.sources[:8]) or node!r}")
            raise
        kernels.functions[name] = fn
        kernels.texts[name] = f"### {name}\n\n" + "\n".join(stages) + "\n"
        watch.kernel(done + 1, len(work))
    watch.passed("lower", "\n".join(kernels.texts.values()), time.perf_counter() - start)
    return kernels


def make_kernel(
    node: Node,
    name: str,
    target: Target,
    in_place: InPlaceOperands,
    watch: Callable[[str, str], None] | None = None,
) -> Function:
    """The function of one kernel, as it stands in a package."""
    fn = target.kernel(node, name, watch)
    # whether a result really takes an operand's place is decided later, node by node; the kernel must bear it
    shared = sorted(in_place(node)) if is_group(node) else []
    fn.attrs["aliased"] = (*shared, len(node.inputs)) if shared else ()
    return fn


def _identifier(node: Node) -> str:
    """A short symbol-like name for a group."""
    words = [n.op.name for n in body_of(node).nodes] if is_group(node) else [node.op.name]
    return re.sub(r"[^a-z0-9_]", "_", "_".join(dict.fromkeys(words)).lower())[:40]


def _params_in_order(graph: Graph) -> list[Value]:
    """Constants that the host reads at run time, in order of first use; those of regions are in their programs."""
    used: dict[Value, None] = {}
    for v in [*(v for n in graph.nodes if not is_region(n) for v in n.inputs), *graph.outputs]:
        if v in graph.constants:
            used[v] = None
    return list(used)


def _calls(graph: Graph, plan: MemoryPlan, kernels: _Kernels, param_offset: Mapping[Value, int]) -> list[Step]:
    """Every step of the model as a call, copies included."""

    constants = list(graph.constants)

    def place(at: Location) -> tuple[str, int]:
        return (at.space, param_offset[constants[at.at]]) if at.space is Space.PARAM else (at.space, at.at)

    def call(n: Node) -> Step:
        if on_device(n):
            return CallSpec("", (), device=True)
        places = [place(plan.locations[v]) for v in (*n.inputs, *n.outputs)]
        if n.op is not JOIN:
            return CallSpec(kernels.of_node[n], tuple(places), plan.scratch.get(n, 0))
        rows = prod(n.outputs[0].type.shape[: n.attrs["axis"]])
        sizes = [v.type.nbytes // max(1, rows) for v in n.inputs]
        return JoinSpec(tuple(zip(places[:-1], sizes, strict=True)), places[-1], rows)

    calls = [call(n) for n in plan.steps]
    calls += [CallSpec("", (place(c.source), ("output", c.output)), nbytes=c.nbytes) for c in plan.copies]
    return calls


@dataclass(frozen=True, eq=False)
class _Program:
    """A compiled region, its name, and that of the member of the package that holds it."""

    name: str
    member: str
    program: DeviceProgram


def _compile_regions(graph: Graph, accelerator: Accelerator | None, watch: Observer) -> dict[Node, _Program]:
    """A program for every region."""
    if accelerator is None:
        return {}
    found: dict[Node, _Program] = {}
    start = time.perf_counter()
    for node in (n for n in graph.nodes if is_region(n)):
        name = node.attrs["name"]
        try:
            program = accelerator.compile(region_graph(node, graph.constants), name)
        except MlcError as error:
            error.add_note(f"while compiling {name} for {accelerator.device}")
            raise
        found[node] = _Program(name, f"device/{name}{program.suffix}", program)
    if found:
        watch.passed(accelerator.device, "", time.perf_counter() - start)
    return found


def _device_alignment(accelerator: Accelerator | None) -> int:
    return ALIGNMENT if accelerator is None else accelerator.alignment


def _device_spec(plan: MemoryPlan, accelerator: Accelerator | None) -> DeviceSpec:
    assert accelerator is not None
    return DeviceSpec(accelerator.device, plan.device_bytes, dict(accelerator.options()))


def _device_step(
    n: Node, plan: MemoryPlan, constants: Mapping[Value, np.ndarray], programs: Mapping[Node, _Program]
) -> StepSpec:
    """A step of the device's driver."""
    values = [*(activations(n, constants) if is_region(n) else n.inputs), *n.outputs]
    places = []
    for v in values:
        at = plan.locations[v]
        index, offset = (at.at, 0) if at.space in (Space.INPUT, Space.OUTPUT) else (0, at.at)
        places.append(PlaceSpec(str(at.space), offset, v.type.nbytes, index))
    if is_region(n):
        call = DeviceCall("run", tuple(places), programs[n].member)
        nbytes = sum(v.type.nbytes for v in {*n.inputs, *n.outputs})
        return StepSpec(n.attrs["name"], n.sources, _flops(n), nbytes, (), call)
    (v,) = n.outputs
    results = () if n.op is COPY_TO else (_result_spec(v, plan),)
    return StepSpec(n.op.name, n.sources, 0, 2 * v.type.nbytes, results, DeviceCall(n.op.name, tuple(places)))


def _step_specs(
    plan: MemoryPlan, kernels: _Kernels, constants: Mapping[Value, np.ndarray], programs: Mapping[Node, _Program]
) -> tuple[StepSpec, ...]:
    specs = []
    for n in plan.steps:
        if on_device(n):
            specs.append(_device_step(n, plan, constants, programs))
            continue
        results = tuple(_result_spec(v, plan) for v in n.outputs)
        nbytes = sum(v.type.nbytes for v in {*n.inputs, *n.outputs})
        specs.append(StepSpec(kernels.of_node.get(n, n.op.name), n.sources, _flops(n), nbytes, results))
    specs += [StepSpec("copy", (), 0, 2 * c.nbytes, ()) for c in plan.copies]
    return tuple(specs)


def _result_spec(v: Value, plan: MemoryPlan) -> ResultSpec:
    at = plan.locations[v]
    physical = None
    if v.type.layout is not None:
        steps = tuple((kind, _frozen(arg)) for kind, arg in v.type.layout.unpack_recipe())
        physical = Physical(str(v.type.layout), v.type.physical_shape, steps)
    index, offset = (at.at, 0) if at.space is Space.OUTPUT else (0, at.at)
    return ResultSpec(v.name, v.type.dtype.name, v.type.shape, str(at.space), offset, index, physical)


def _frozen(arg: Sequence[object]) -> tuple[object, ...]:
    return tuple(tuple(a) if isinstance(a, list) else a for a in arg)


def _flops(node: Node) -> int:
    if node.op.express is None:
        return 0
    inputs = [te.placeholder(v.type.shape, v.type.dtype, v.name) for v in node.inputs]
    return operations(list(express(node, inputs)))

"""A graph to the contents of a package: the compiler as one readable sequence.

graph passes → groups → layouts → one kernel for each distinct group → memory plan → code → manifest. Where the target
has an accelerator, the passes divide the graph between it and the host; each of its regions goes through the same from
layouts to memory plan, and becomes a program.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mlc import __version__
from mlc.errors import MemoryLimitError, MlcError, UsageError
from mlc.fields import MAX_INT
from mlc.ir.graph import Graph, Node, Value
from mlc.ir.types import dtype_of, i32
from mlc.ops import get
from mlc.ops.random import seed_of
from mlc.pipeline.check import check_region
from mlc.pipeline.configurations import Configurations
from mlc.pipeline.garbage import rare_collections
from mlc.pipeline.graph import Compiled, Refused, compile_graph, compiled_region, require_few_kernels
from mlc.pipeline.layouts import Part, lay_out, parts_of
from mlc.pipeline.machine import operations_of, traffic_of
from mlc.pipeline.passes import optimise
from mlc.pipeline.placements import Placements, placements_of
from mlc.rewrite.group import body_of, is_group
from mlc.rewrite.memory import MemoryPlan, Space
from mlc.rewrite.offload import Decision
from mlc.rewrite.precision import precisions
from mlc.rewrite.recurrence import body_of_scan, graphs, is_scan
from mlc.rewrite.region import COPY_TO, activations, is_region, on_device
from mlc.rewrite.slices import in_slices
from mlc.runtime import (
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
    python_example,
)
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import Accelerator, DeviceProgram, Target
from mlc.targets.functions import FunctionCache

_SHARED = "lib/model.so"
NAMED = 4  # operations that a notice names


@dataclass(frozen=True, eq=False)
class Built:
    """What becomes a package.

    Args:
        manifest: everything but the list of members.
        params: the parameters, by name.
        members: the other members of the package.
        offloads: for a target with an accelerator, where every operation runs, and why.
        programs: what the accelerator's compiler says of each region, by name.
        notices: what whoever compiles should know.
        placements: how tensors lie in memory, if asked for.
        functions: how many kernels were ``found`` in a folder of functions, and how many ``made``.
    """

    manifest: Manifest
    params: dict[str, np.ndarray]
    members: dict[str, bytes]
    offloads: tuple[Decision, ...] = ()
    programs: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    placements: Placements | None = None
    functions: Mapping[str, int] = field(default_factory=dict)


@rare_collections()
def build_package(
    graph: Graph,
    target: Target,
    options: CompileOptions,
    watch: Observer,
    configurations: Configurations | None = None,
    on_configured: Callable[[], None] = lambda: None,
) -> Built:
    """Compile a graph.

    Args:
        graph: the model, row-major.
        target: what to compile for.
        options: how.
        watch: is told how it goes on.
        configurations: gives groups their tuned configurations; hears which are refused, and those groups get their
            defaults.
        on_configured: called when every group has its configuration, again when some are refused; if it raises, no
            kernel is made.
    Raises:
        UnsupportedError: the model needs more distinct kernels than allowed.
        MemoryLimitError: a run takes more memory than ``options`` allow.
        CheckFailedError: a region's program gives other results than the interpreter, if asked for.
        MlcError: with a note that names the kernel that was being compiled.
    """
    watch.stage("optimise the graph")
    seed = seed_of(graph)
    offloads: list[Decision] = []
    fused = optimise(graph, target, options, watch, offloads.extend, configurations)
    stages = _StageTimes(watch)
    updates = bool(options.updates)
    functions = _functions(target, options)
    parts = parts_of(
        fused, target, contract=options.fast_math, on_stage=stages.begin, updates=updates, functions=functions
    )
    if options.max_kernels is not None:
        for part in parts:
            require_few_kernels(part.graph, part.machine, options.max_kernels)
    laid_out = [lay_out(part, options, watch, configurations) for part in parts]
    on_configured()

    watch.stage("schedule and lower")

    def compiled(
        part: Part,
        graph: Graph,
        params: Callable[[Graph], Mapping[Value, int]] | None = None,
        within: Callable[[Graph], int] | None = None,
        over: Mapping[int, int] | None = None,
        sparing: bool = False,
    ) -> Compiled:
        def again(refused: Refused) -> Graph:
            assert configurations is not None  # without any, nothing is refused
            for group, error in refused.items():
                configurations.refuse(group, error.message)
            graph = lay_out(part, options, watch, configurations, sparing=sparing)
            on_configured()
            return graph

        return compile_graph(
            graph, part.machine, watch, params=params, again=again, verify=options.verify, within=within, over=over
        )

    programs: dict[str, _Program] = {}
    regions: list[Graph] = []
    for part, region in zip(parts[1:], laid_out[1:], strict=True):
        assert target.accelerator is not None
        made = compiled(part, region)
        regions.append(made.graph)
        program = _program(made, target.accelerator, watch)
        programs[program.name] = program
        if options.check_regions:
            start = time.perf_counter()
            check_region(part.graph, program.program, target.accelerator)
            watch.passed("check-regions", "", time.perf_counter() - start)
    limit = options.memory
    over = _over(laid_out[0], options.updates)
    within = None if limit is None else lambda g: limit - _around(g, over)
    host = compiled(parts[0], laid_out[0], lambda g: _Params(g).offsets, within, over)
    if limit is not None and _taken(host, over) > limit:
        spared = lay_out(parts[0], options, watch, configurations, sparing=True)
        other = compiled(parts[0], spared, lambda g: _Params(g).offsets, within, over, sparing=True)
        host = min(host, other, key=lambda made: _taken(made, over))
        _require_within(limit, host, over)
    params = _Params(host.graph)
    _require_at_most(options.max_memory, host, params.plan.nbytes)

    watch.stage("generate code")
    artifact = target.codegen(
        host.code, host.calls, opt_level=options.opt_level, on_stage=stages.begin, symbols=options.symbols
    )
    listing = target.assembly(artifact.sources, opt_level=options.opt_level) if options.keep_assembly else ""
    stages.report({"codegen": "\n".join(artifact.sources.values()), "emit": listing})

    tf32 = bool(target.describe().get("tf32"))
    facts = {**target.describe(), "opt_level": options.opt_level, "fast_math": options.fast_math}
    manifest = Manifest(
        mlc_version=__version__,
        target=TargetSpec.from_facts(facts),
        model=ModelSpec(options.name, options.sha256, options.source),
        inputs=tuple(TensorSpec(v.name, v.type.dtype.name, v.type.shape) for v in host.graph.inputs),
        outputs=tuple(
            TensorSpec(name, v.type.dtype.name, v.type.shape)
            for name, v in zip(host.graph.output_names, host.graph.outputs, strict=True)
        ),
        steps=_step_specs(host, programs),
        memory=MemorySpec(host.plan.workspace_bytes, params.plan.nbytes),
        params=params.plan.params,
        module_so=_SHARED if artifact.shared is not None else None,
        symbols=options.symbols,
        seed=None if seed is None else seed.name,
        updates=dict(options.updates),
        precision={name: str(p) for name, p in precisions(host.graph, options.quantised, tf32=tf32).items()},
        device=_device_spec(host.plan, target.accelerator) if programs else None,
    )
    members = {"graph.txt": f"{host.graph}\n".encode(), "lib/model.o": artifact.obj}
    for name, text in {**artifact.sources, "kernels.txt": "\n".join(host.texts.values())}.items():
        members[f"src/{name}"] = text.encode()
    if artifact.shared is not None:
        members[_SHARED] = artifact.shared
    members[header_name(options.symbols)] = c_header(manifest).encode()
    if not programs:  # without the device, which Python drives, a program in C can do nothing
        members["examples/main.c"] = c_example(manifest).encode()
        members["examples/main.py"] = python_example().encode()
    members.update({p.member: p.program.data for p in programs.values()})
    facts_of = {p.name: p.program.facts for p in programs.values()}
    notices = _notices(host.graph, target)
    placements = placements_of(host.graph, target, regions) if options.list_layouts else None
    counted = {} if functions is None else {"found": functions.found, "made": functions.made}
    return Built(manifest, params.arrays, members, tuple(offloads), facts_of, notices, placements, counted)


def _functions(target: Target, options: CompileOptions) -> FunctionCache | None:
    if options.functions is None:
        return None
    return FunctionCache(
        options.functions,
        target.describe(),
        updates=bool(options.updates),
        contract=options.fast_math,
        opt_level=options.opt_level,
        symbols=options.symbols,
    )


def _over(graph: Graph, updates: Mapping[str, str]) -> dict[int, int]:
    """Outputs by position, and the input that each may lie over.

    Args:
        updates: the same by name.
    Raises:
        UsageError: there are none of that name, or they have other types.
    """
    outputs = {name: k for k, name in enumerate(graph.output_names)}
    inputs = {v.name: j for j, v in enumerate(graph.inputs)}
    found: dict[int, int] = {}
    for new, old in updates.items():
        if new not in outputs or old not in inputs or inputs[old] in found.values():
            raise UsageError(f"no output {new!r} can be the next value of an input {old!r}")
        k, j = outputs[new], inputs[old]
        if graph.outputs[k].type != graph.inputs[j].type:
            raise UsageError(f"the output {new!r} has another type than the input {old!r}, whose next value it is")
        found[k] = j
    return found


def _around(graph: Graph, over: Mapping[int, int]) -> int:
    """Bytes of all that a run has beside its arena: what is given to it, what it gives back elsewhere, constants."""
    given = [*graph.inputs, *(v for k, v in enumerate(graph.outputs) if k not in over)]
    return sum(v.type.nbytes for v in given) + _Params(graph).plan.nbytes


def _taken(host: Compiled, over: Mapping[int, int]) -> int:
    """The bytes that a run takes."""
    return _around(host.graph, over) + host.plan.workspace_bytes


def _require_within(limit: int, host: Compiled, over: Mapping[int, int]) -> None:
    """Raises MemoryLimitError where a run takes more memory than allowed, however much is computed again."""
    around, taken = _around(host.graph, over), _taken(host, over)
    if taken > limit:
        raise MemoryLimitError(
            f"a run takes at least {taken} bytes ({around} of them inputs, results and parameters), the limit is "
            f"{limit}",
            hint=f"raise it to {taken}, or give the model a smaller batch",
            needed=taken,
            slices=in_slices(host.graph),
        )


def _require_at_most(limit: int | None, host: Compiled, params: int) -> None:
    """Raises MemoryLimitError where parameters, of so many bytes, and the arena are more than allowed."""
    arena = host.plan.workspace_bytes
    if limit is not None and params + arena > limit:
        raise MemoryLimitError(
            f"the model needs {params + arena} bytes to run ({params} of parameters and {arena} of working memory), "
            f"more than the limit of {limit}",
            hint=f"raise it with --max-memory {params + arena}, or give the model a smaller batch",
            needed=params + arena,
            slices=in_slices(host.graph),
        )


def _notices(graph: Graph, target: Target) -> tuple[str, ...]:
    """Says which products of quantised numbers are not worth it, as far as the target's cost model knows."""
    groups = [body_of(n) for g, _ in graphs(graph) for n in g.nodes if is_group(n)]
    products = [n for body in groups for n in body.nodes if n.op in (get("conv"), get("matmul"))]
    quantised = [n for n in products if n.outputs[0].type.dtype is i32]
    slow = [n for n in quantised if target.bytes_gain(n) <= 1]
    if not slow:
        return ()
    names = [n.sources[0] if n.sources else n.outputs[0].name for n in slow]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return (
        f"{len(slow)} of {len(quantised)} products of 8-bit integers may be slower than in floats on "
        f"{target.describe()['cpu']}: {', '.join(names[:NAMED])}{more}",
    )


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


class _Params:
    """Constants that the host reads at run time, in order of first use; those of regions are in their programs."""

    def __init__(self, graph: Graph) -> None:
        self.values: dict[Value, np.ndarray] = {}
        for g, _ in graphs(graph):
            for v in [*(v for n in g.nodes if not is_region(n) for v in n.inputs), *g.outputs]:
                if v in g.constants:
                    self.values[v] = g.constants[v]
        self.plan = plan_params(
            TensorSpec(name, dtype_of(v.type.dtype.numpy).name, v.type.physical_shape)
            for name, v in zip(_names(self.values), self.values, strict=True)
        )

    @property
    def offsets(self) -> dict[Value, int]:
        """Bytes from the begin of them all."""
        return {v: p.offset for v, p in zip(self.values, self.plan.params, strict=True)}

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """What they hold, by the names that they have in the package."""
        return {p.name: array for p, array in zip(self.plan.params, self.values.values(), strict=True)}


def _names(values: Iterable[Value]) -> Iterator[str]:
    """Names of values, made unique: the bodies of several recurrences may have a constant of one name each."""
    taken: set[str] = set()
    for v in values:
        name, k = v.name, 0
        while name in taken:
            k += 1
            name = f"{v.name}.{k}"
        taken.add(name)
        yield name


@dataclass(frozen=True, eq=False)
class _Program:
    """A compiled region, its name, and that of the member of the package that holds it."""

    name: str
    member: str
    program: DeviceProgram


def _program(compiled: Compiled, accelerator: Accelerator, watch: Observer) -> _Program:
    """What an accelerator makes of a region that has been compiled for it."""
    name = compiled.graph.name
    start = time.perf_counter()
    try:
        program = accelerator.codegen(compiled_region(compiled), name)
    except MlcError as error:
        error.add_note(f"while compiling {name} for {accelerator.device}")
        raise
    watch.passed(accelerator.device, "", time.perf_counter() - start)
    return _Program(name, f"device/{name}{program.suffix}", program)


def _device_spec(plan: MemoryPlan, accelerator: Accelerator | None) -> DeviceSpec:
    assert accelerator is not None
    return DeviceSpec(accelerator.device, plan.device_bytes, dict(accelerator.options()))


def _device_step(n: Node, host: Compiled, programs: Mapping[str, _Program]) -> StepSpec:
    """A step of the device's driver."""
    plan, constants = host.plan, host.graph.constants
    values = [*(activations(n, constants) if is_region(n) else n.inputs), *n.outputs]
    places = []
    for v in values:
        at = plan.locations[v]
        index, offset = (at.at, 0) if at.space in (Space.INPUT, Space.OUTPUT) else (0, at.at)
        places.append(PlaceSpec(str(at.space), offset, v.type.nbytes, index))
    if is_region(n):
        call = DeviceCall("run", tuple(places), programs[n.attrs["name"]].member)
        nbytes = sum(v.type.nbytes for v in {*n.inputs, *n.outputs})
        return StepSpec(n.attrs["name"], n.sources, min(operations_of(n), MAX_INT), nbytes, (), call)
    (v,) = n.outputs
    results = () if n.op is COPY_TO else (_result_spec(v, plan),)
    return StepSpec(n.op.name, n.sources, 0, 2 * v.type.nbytes, results, DeviceCall(n.op.name, tuple(places)))


def _step_specs(host: Compiled, programs: Mapping[str, _Program]) -> tuple[StepSpec, ...]:
    specs, plan = [], host.plan
    known: dict[str, tuple[int, int]] = {}  # operations and bytes of each kernel

    def spec(n: Node, results: tuple[ResultSpec, ...], rounds: int = 1) -> StepSpec:
        kernel = host.of_node.get(n)  # copies and loops have none
        found = known[kernel] if kernel in known else (operations_of(n), traffic_of(n))
        if kernel is not None:
            known[kernel] = found
        work, traffic = (min(rounds * count, MAX_INT) for count in found)  # loops within loops may take any number
        return StepSpec(kernel or n.op.name, n.sources, work, traffic, results)

    def parts_of_loop(n: Node) -> tuple[StepSpec, ...]:
        inner, rounds = host.plans[body_of_scan(n)], n.attrs["rounds"]
        steps = [spec(m, (), rounds=rounds) for m in inner.steps]
        return (*steps, *(StepSpec("copy", (), 0, min(2 * rounds * c.nbytes, MAX_INT), ()) for c in inner.copies))

    for n in plan.steps:
        if on_device(n):
            specs.append(_device_step(n, host, programs))
            continue
        results = tuple(_result_spec(v, plan) for v in n.outputs)
        step = spec(n, results)
        specs.append(replace(step, parts=parts_of_loop(n), rounds=n.attrs["rounds"]) if is_scan(n) else step)
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

"""What a target is, and the table of targets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Protocol, runtime_checkable

import numpy as np

from mlc.errors import UsageError
from mlc.ir.cost import Peaks
from mlc.ir.graph import Graph, Node, Value
from mlc.ir.layout import Layout
from mlc.ir.loop import Function
from mlc.ir.site import Site
from mlc.ir.types import DType, TensorType
from mlc.lower.knobs import Config, Knobs
from mlc.lower.schedule import Schedule
from mlc.ops.algorithms import Algorithm
from mlc.targets.bench import Bench

Margins = tuple[tuple[int, int], ...]

LEVELS = "layout"
"""The knob of a group whose layouts are searched: how many levels of tiles they have. The names of the other knobs of
layouts begin with it. A target whose schedules follow such layouts asks for it where a configuration names it, and one
that does not refuses the configuration; without it, layouts are those that the target's own templates want."""


def is_layout_knob(name: str) -> bool:
    """Whether a knob is one of the layout space."""
    return name == LEVELS or name.startswith(f"{LEVELS}.")


@dataclass(frozen=True)
class LayoutChoice:
    """How a group wants its operands and results to lie in memory.

    Args:
        outputs: a layout for each output; ``None`` is row-major.
        packed: layouts that some inputs shall have, by position: constants are packed at compile time, others by a
            step of their own while the model runs.
        margins: zeros wanted around other inputs, by position: (before, after) for each logical dimension. They are
            granted where the input is blocked and a kernel makes it.
        inside: layouts of other inputs, by position, as the group has them while it runs: where they lie otherwise, it
            converts them itself.
        asked: layouts that other inputs shall be made in, by position. They are granted where the same machine makes
            the input, nothing else says how it lies, and no reader before has asked for another one; where they are
            not, the group reads what there is.
    """

    outputs: tuple[Layout | None, ...]
    packed: Mapping[int, Layout] = field(default_factory=dict)
    margins: Mapping[int, Margins] = field(default_factory=dict)
    inside: Mapping[int, Layout] = field(default_factory=dict)
    asked: Mapping[int, Layout] = field(default_factory=dict)


@dataclass(frozen=True)
class CallSpec:
    """One step of a model: a kernel applied to places in memory.

    Args:
        kernel: symbol of the kernel, or ``""`` for a plain copy from the first argument to the second.
        args: (space, index or byte offset) of each parameter; spaces: ``input``, ``output``, ``param``, ``workspace``.
        scratch: byte offset in the workspace of the kernel's own scratch memory.
        nbytes: size of a plain copy.
        device: whether the step is an accelerator's: the native code has nothing to do there, and no part of it may
            run the whole model.
    """

    kernel: str
    args: tuple[tuple[str, int], ...]
    scratch: int = 0
    nbytes: int = 0
    device: bool = False


class Code(Protocol):
    """Kernels in the target's own form, before anything calls them.

    Attributes:
        scratch: bytes of working memory that each kernel needs of its caller, by name.
    """

    @property
    def scratch(self) -> Mapping[str, int]: ...


@dataclass(frozen=True)
class JoinSpec:
    """One step of a model that copies tensors next to each other: rows of all of them, in turn, ``rows`` times.

    Args:
        parts: the place of each operand, as in ``CallSpec.args``, and the bytes of one of its rows.
        result: where the result goes.
        rows: how many rows each operand has.
    """

    parts: tuple[tuple[tuple[str, int], int], ...]
    result: tuple[str, int]
    rows: int


@dataclass(frozen=True)
class RowSpec:
    """Memory with a row for each round of a loop, at ``place``; ``backward``: the first round's row is the last."""

    place: tuple[str, int]
    nbytes: int
    backward: bool


@dataclass(frozen=True)
class LoopSpec:
    """One step of a model that repeats steps of its own.

    To these, inputs are what is carried, the rows of this round, and what is captured; outputs are what is carried and
    the rows that this round gives; parameters are the model's. Places are as in ``CallSpec.args``.

    Args:
        rounds: how often, 1 or more.
        steps: of one round, in order.
        carried: for each value that goes from round to round: where it is at first, where it goes at last, and two byte
            offsets in the workspace where it lies by turns in between.
        scanned: what has a row for every round.
        captured: what all rounds read.
        gathered: where every round leaves a row.
        workspace: byte offset in the workspace of the inner steps' own workspace.
    """

    rounds: int
    steps: tuple[Step, ...]
    carried: tuple[tuple[tuple[str, int], tuple[str, int], int, int], ...]
    scanned: tuple[RowSpec, ...]
    captured: tuple[tuple[str, int], ...]
    gathered: tuple[RowSpec, ...]
    workspace: int


Step = CallSpec | JoinSpec | LoopSpec


@dataclass(frozen=True)
class Artifact:
    """What code generation gives.

    Args:
        obj: a relocatable object with the model's entry points.
        sources: readable texts by file name (LLVM IR, CUDA …).
        shared: the same as a shared library, where this machine has a linker for the target.
    """

    obj: bytes
    sources: Mapping[str, str]
    shared: bytes | None = None


@dataclass(frozen=True, eq=False)
class CompiledRegion:
    """A region of a model in terms of an accelerator's kernels.

    Args:
        graph: its groups; all values have their layouts, constants are packed.
        kernels: distinct ones, by name, as the accelerator made them.
        calls: one for each node, in the same order: which kernel, and where its operands and results lie. Spaces are
            ``input`` and ``output`` (positions among the graph's), ``param`` (positions among ``constants``) and
            ``workspace`` (bytes from the begin of the region's own working memory).
        constants: those of the graph and of the bodies of recurrences in it, as calls count them.
        nodes: of each call, in the same order, for the graph and for each body in it; calls after those only copy.
        workspace_bytes: of that memory, which values share by their lifetimes; offsets are multiples of the device's
            alignment.
    """

    graph: Graph
    kernels: Mapping[str, Any]
    calls: Sequence[Step]
    constants: Mapping[Value, np.ndarray]
    nodes: Mapping[Graph, Sequence[Node]]
    workspace_bytes: int


@dataclass(frozen=True)
class DeviceProgram:
    """One region of a model, compiled for an accelerator.

    Args:
        data: the file that the accelerator's driver loads.
        suffix: of the file's name, with its dot.
        facts: what is worth knowing about it, JSON-able, by name.
    """

    data: bytes
    suffix: str = ".bin"
    facts: Mapping[str, object] = field(default_factory=dict)


class Accelerator(Protocol):
    """A device beside the host processor, which takes over those parts of a model that it can and should run.

    Attributes:
        device: name of its driver among the entry points ``mlc.devices``.
        alignment: bytes to which its buffers in device memory are aligned; a power of two, 64 or more.
    """

    device: str
    alignment: int

    def options(self) -> Mapping[str, str]:
        """What the driver must be opened with; written into the package."""
        ...

    def refusal(self, group: Node, constants: Mapping[Value, np.ndarray]) -> str:
        """Why the device cannot run a group as one operation, in a few words; empty where it can.

        Asked for everything that starts with one operator and goes on along its only reader, in growing steps: the
        longest group that is not refused is taken.

        Args:
            group: operators as one node; its body says all.
            constants: values of those inputs that are constants.
        """
        ...

    def layout(self, type: TensorType) -> Layout | None:
        """How the device wants a row-major tensor to lie in its memory; ``None``: as it is."""
        ...

    def estimate(self, group: Node) -> tuple[float, float]:
        """Seconds that a group is expected to take on the device, and on the host."""
        ...

    def copy_seconds(self, nbytes: int) -> float:
        """Seconds that a copy between the host's memory and the device's is expected to take."""
        ...

    def layouts(self, group: Node, site: Site, knobs: Knobs) -> LayoutChoice:
        """Layouts for the operands and results of a group inside of a region, given those of its inputs.

        What crosses the region's border keeps what ``layout`` says, and values that were agreed on
        (:class:`~mlc.rewrite.offload.Agreeing`) what was agreed.

        Args:
            group: one that was not refused.
            site: where it stands.
            knobs: is asked for what layouts leave open.
        Raises:
            ScheduleError: the configuration is refused.
        """
        ...

    def depends_on(self, group: Node, constants: Mapping[Value, np.ndarray]) -> str:
        """What the kernel of a group depends on, of the values of its constants; empty where on nothing.

        Groups whose operators, types and configurations are equal share a kernel where this text is equal, too.
        """
        ...

    def kernel(
        self,
        group: Node,
        name: str,
        constants: Mapping[Value, np.ndarray],
        watch: Callable[[str, str], None] | None = None,
    ) -> Any:
        """What the device runs for a group, with the configuration in its attributes; made once for equal groups.

        Args:
            group: its values have their layouts.
            name: for messages.
            constants: those of its inputs that are constants, packed.
            watch: is told what every stage makes of it.
        Raises:
            ScheduleError, LowerError: the configuration is refused.
        """
        ...

    def codegen(self, region: CompiledRegion, name: str) -> DeviceProgram:
        """The program of a region.

        Args:
            region: its kernels, and calls of them.
            name: unique in the package.
        """
        ...


@runtime_checkable
class Whole(Protocol):
    """What an accelerator is, too, if as much of a model as it can run is to run there, whatever the host could do.

    Its ``refusal`` is asked of groups as fusion made them, of routines, and of joins; all others are its, in as few
    regions as there can be.

    Attributes:
        whole: that it is one.
        bytes: whether it multiplies unsigned by signed bytes as one, so that such products are wanted.
        processor: whose times those of its operations are, as records name it: ``opencl-mali``.
    """

    whole: bool
    bytes: bool
    processor: str


@runtime_checkable
class Shifting(Protocol):
    """What an accelerator is, too, if its arithmetic rescales sums by shifts: models are quantised with scales that are
    powers of two.

    Attributes:
        shifts: that it does.
    """

    shifts: bool


@runtime_checkable
class Tunable(Protocol):
    """What an accelerator is, too, if its operations can be tuned."""

    def schedule(self, group: Node, constants: Mapping[Value, np.ndarray], knobs: Knobs) -> Schedule | None:
        """Ask for everything that the schedule of a group leaves open; asks nothing where it leaves nothing open.

        Returns:
            the schedule, whose loops describe the configuration to a cost model; nothing where there is no single one.
        Raises:
            ScheduleError: the configuration is refused.
        """
        ...

    def likely(self, group: Node, constants: Mapping[Value, np.ndarray]) -> Sequence[Config]:
        """Configurations that are expected to be fast, the most likely one first; none where nothing is expected.

        They are tried in the whole region, where what is fastest alone need not be.
        """
        ...

    def region_seconds(self, region: CompiledRegion) -> float | None:
        """Seconds that the program of a region takes, where they can be told without running it; else ``None``.

        A search over regions asks for thousands; what it finds is run, and its results are compared.

        Raises:
            ScheduleError: there is no such program.
        """
        ...

    def bench(self) -> Bench:
        """What candidates of its operations are run on: programs that :meth:`Accelerator.codegen` makes of one group.

        Its driver will do, most often: see :class:`~mlc.targets.driver_bench.DriverBench`.
        """
        ...


@runtime_checkable
class Tooled(Protocol):
    """What an accelerator is, too, if compiling for it takes tools that need not be installed."""

    def require_tools(self) -> None:
        """Looks for them.

        Raises:
            MissingDependencyError: one is missing.
        """
        ...


class Target(Protocol):
    """A machine to compile for.

    Attributes:
        name: as in its string form.
        accelerator: the device beside it, if there is one.
    """

    name: str
    accelerator: Accelerator | None

    def describe(self) -> dict[str, object]:
        """Facts for the manifest: ``string``, ``triple``, ``cpu``, ``features`` …"""
        ...

    def peaks(self) -> Peaks:
        """The most that one core of the processor does, in cycles."""
        ...

    def algorithms(self, node: Node) -> Sequence[Algorithm]:
        """By what algorithms the target can compute what an operator means; the one that it would take comes first.

        Asked for convolutions with constant weights, stride 1 and 3×3 taps (``conv``), and for products around a
        softmax (as an ``attention`` of ``q[…, m, e]``, ``k[…, n, e]``, ``v[…, n, d]``). Others have one.
        """
        ...

    def bytes_gain(self, node: Node) -> float:
        """How many times as fast a product of integers (``conv`` or ``matmul``) may be as the same in floats."""
        ...

    def most_products(self, terms: int) -> float:
        """How many products a lane adds up in the time of one of floats at most, of which so many have 32 bits."""
        ...

    def multiplied_bytes(self) -> DType:
        """What data its instructions multiply by signed bytes: u8 or i8."""
        ...

    def multiplies_bf16(self) -> bool:
        """Whether it has an instruction for products of bf16."""
        ...

    def convolves_bf16(self, node: Node) -> bool:
        """Whether a convolution (``conv``) of f32 is faster with operands in bf16."""
        ...

    def sums_in_half(self) -> bool:
        """Whether sums of products of f16 are kept in f16, since it was asked to."""
        ...

    def bits_gain(self, node: Node, of_x: int, of_w: int) -> float:
        """How many times as fast a product of bytes (``conv`` or ``matmul``) may be by logic and counts of bits.

        Args:
            node: the product, of bytes by i8.
            of_x, of_w: bits of an element of data and of weights, 1 or 2.
        """
        ...

    def weight_types(self) -> Collection[DType]:
        """Types in which constant i8 are multiplied by bytes faster than as they are.

        ``i16`` is with both operands widened beforehand, ``i7`` for those that it can hold.
        """
        ...

    def channel_block(self) -> int:
        """Channels of bytes that grouped convolutions want next to each other; 0 where channels lie apart."""
        ...

    def layouts(self, node: Node, site: Site, knobs: Knobs) -> LayoutChoice:
        """Layouts that the group prefers, given those of its inputs.

        Args:
            node: the group.
            site: where it stands.
            knobs: is asked for what layouts leave open; what the schedule asks, too, it asks alike.
        Raises:
            ScheduleError: the configuration is refused.
        """
        ...

    def schedule(self, node: Node, knobs: Knobs) -> Schedule | None:
        """The group's schedule, whose template asks ``knobs``; nothing for what is not scheduled (routines)."""
        ...

    def kernel(self, node: Node, name: str, watch: Callable[[str, str], None] | None = None) -> Function:
        """The group's loop AST under the target's schedule, with the configuration in the node's attributes.

        Parameters are the node's inputs, then its outputs.
        """
        ...

    def emit(
        self, kernels: Mapping[str, Any], *, contract: bool = True, on_stage: Callable[[str], None] | None = None
    ) -> Code:
        """Code of all kernels; memory is planned with what it says of scratch.

        Args:
            kernels: by name, from :meth:`kernel` or compiled on their own (:mod:`mlc.targets.functions`).
            contract: whether ``a*b + c`` may be rounded once.
            on_stage: is told as the stage begins.
        Raises:
            CodegenError: something that the target cannot express.
        """
        ...

    def codegen(
        self,
        code: Code,
        calls: Sequence[Step],
        *,
        opt_level: int,
        whole: bool = True,
        on_stage: Callable[[str], None] | None = None,
        symbols: str = "mlc",
    ) -> Artifact:
        """Machine code for kernels and entry points.

        Args:
            code: from :meth:`emit`; it goes into one object only.
            calls: the steps of the model.
            opt_level: 0 leaves the code as it was written.
            whole: an object that is not exports ``mlc_run`` alone and lacks the thread pool, and there is no shared
                library: it is to be linked beside an object that has them. Kernels are the same.
            on_stage: is told as each stage begins.
            symbols: what every exported name begins with: ``mlc_run``.
        """
        ...

    def assembly(
        self, sources: Mapping[str, str], *, opt_level: int = 3, details: Mapping[str, str] | None = None
    ) -> str:
        """Readable assembly of the object that ``codegen`` gave together with ``sources``.

        Args:
            details: what ``describe`` said when that was, where it was perhaps on another machine.
        """
        ...

    def bench(self, flush: bool = False) -> Bench:
        """What candidates are run on: objects that ``codegen`` makes of one kernel, not ``whole``.

        Args:
            flush: whether :meth:`~mlc.targets.bench.Loaded.cold_sample` will be asked for.
        Raises:
            DeviceError: this machine cannot run the target's code, or empty its caches.
        """
        ...


@runtime_checkable
class Foreseeing(Protocol):
    """A target that tells what a kernel is expected to take, from its loops and without running it."""

    def expected_cycles(self, group: Node) -> float:
        """Of a call of a group's kernel, on one core.

        Raises:
            ScheduleError, LowerError: as :meth:`Target.kernel`.
        """
        ...


@runtime_checkable
class Emulated(Protocol):
    """What a target is, too, if something else can have its machine's place."""

    def emulated_bench(self) -> Bench:
        """What candidates are run on without the machine: results are those of the machine, times say nothing.

        Raises:
            DeviceError: this machine can run them itself.
            MissingDependencyError: there is no emulator, or nothing that links for it.
        """
        ...


BUILTIN = {
    "arm": "mlc.targets.arm.target:ArmTarget",
    "cuda": "mlc.targets.cuda.target:CudaTarget",
    "opencl": "mlc.targets.opencl.target:OpenClTarget",
    "vdla": "mlc.vdla.target:VdlaTarget",
    "x86": "mlc.targets.x86.target:X86Target",
}
_GROUP = "mlc.targets"


def target_names() -> list[str]:
    """Names of every target that is installed."""
    return sorted({*BUILTIN, *(e.name for e in entry_points(group=_GROUP))})


def get_target(text: str) -> Target:
    """The target for a string such as ``x86`` or ``x86 -mcpu=haswell``.

    Raises:
        UsageError: no such target or option.
    """
    words = text.split()
    if not words:
        raise UsageError("empty target", hint=f"known targets: {', '.join(target_names())}")
    name, options = words[0], words[1:]
    found = BUILTIN.get(name)
    if found is None:
        match = [e for e in entry_points(group=_GROUP) if e.name == name]
        if not match:
            near = get_close_matches(name, target_names(), n=1)
            hint = f"did you mean {near[0]}?" if near else f"known targets: {', '.join(target_names())}"
            raise UsageError(f"unknown target {name!r}", hint=hint)
        factory = match[0].load()
    else:
        module, _, attr = found.partition(":")
        factory = getattr(import_module(module), attr)
    parsed: dict[str, str] = {}
    for word in options:
        key, eq, value = word.partition("=")
        if not word.startswith("-") or not eq or not value:
            raise UsageError(f"target option {word!r} is not of the form -name=value", hint=f"in target {text!r}")
        parsed[key.lstrip("-")] = value
    target: Target = factory.from_options(parsed)
    return target

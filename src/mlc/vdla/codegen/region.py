"""A region of a graph as one program: its layers one after the other in one stream.

Tokens are set over the whole stream, so a layer's first loads of weights run while the layer before computes, and its
loads of activations wait for just those stores that make them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mlc.errors import VerifyError
from mlc.ir.graph import Graph, Value
from mlc.ir.loop import For, ForKind, Function, Stmt, walk
from mlc.lower.pipeline import lower
from mlc.lower.tensorize import tensorize
from mlc.lower.vthread import vthread
from mlc.vdla.check import check, describe
from mlc.vdla.codegen.assemble import Dram, Task, assemble
from mlc.vdla.codegen.constants import Constants
from mlc.vdla.codegen.emit import Emitter
from mlc.vdla.codegen.statements import Statements
from mlc.vdla.codegen.structural import UNITS
from mlc.vdla.config import VdlaConfig
from mlc.vdla.isa.instruction import Load, Mem, Unit
from mlc.vdla.layer import Layer, read_layer
from mlc.vdla.program import Program
from mlc.vdla.schedules.conv import LayerPlan, Segment
from mlc.vdla.sim import Device


@dataclass(frozen=True, eq=False)
class LoweredPart:
    """A part of a layer as loop nests.

    Args:
        statements: the nests, with the accelerator's product in them.
        params: what each parameter is: ``x``, ``residual``, ``out``, or a name among the layer's arrays.
    """

    statements: Statements
    params: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class LayerKernel:
    """A layer as it is emitted, wherever its operands lie.

    Args:
        parts: one after the other.
        arrays: the values of every parameter that is constant, by name.
        structural: whether its loops have tokens of their own.
    """

    parts: tuple[LoweredPart, ...]
    arrays: Mapping[str, np.ndarray]
    structural: bool = False


def layer_kernel(plan: LayerPlan, name: str, config: VdlaConfig) -> LayerKernel:
    """The loops of a scheduled layer.

    Args:
        plan: its parts, with parameters ``x``, ``residual``, ``out``, and those in its arrays.
        name: for messages.
        config: the accelerator.
    Raises:
        ScheduleError: a schedule cannot be built, or the accelerator cannot do what it says.
    """
    parts = []
    for k, s in enumerate(plan.segments):
        fn = lowered(s, f"{name}.{k}", structural=plan.structural)
        params = tuple(t.name for t in s.params)
        arrays = {b: plan.arrays[p] for b, p in zip(fn.params, params, strict=True) if p in plan.arrays}
        parts.append(LoweredPart(Statements(fn, config, arrays, s.slots), params))
    return LayerKernel(tuple(parts), plan.arrays, plan.structural)


def compile_region(region: Graph, kernels: Sequence[LayerKernel], config: VdlaConfig) -> Program:
    """The program of a region.

    Its buffers of kind ``in`` and ``out`` are the region's inputs and outputs, in their order and under their names.

    Args:
        region: its nodes are groups, one layer each, with values in the accelerator's layouts.
        kernels: one for each node.
        config: the accelerator.
    Raises:
        UnsupportedError: a group is no layer.
        ScheduleError: the kernels need more than there is.
        VerifyError: the stream that came out is not valid: a bug of code generation.
    """
    program = _written(region, kernels, config)
    _prove(program)
    return program


def region_seconds(region: Graph, kernels: Sequence[LayerKernel], config: VdlaConfig) -> float:
    """Seconds that the program of a region takes; arguments and errors as for :func:`compile_region`."""
    cycles = Device(config).run(_written(region, kernels, config), exec=False).cycles
    return cycles / (config.freq_mhz * 1e6)


def _written(region: Graph, kernels: Sequence[LayerKernel], config: VdlaConfig) -> Program:
    # one stream has one kind of tokens
    structural = all(kernel.structural for kernel in kernels)
    parts = Parts(config, region.inputs, region.outputs, structural)
    for node, kernel in zip(region.nodes, kernels, strict=True):
        parts.layer(node.outputs[0].name, read_layer(node, region.constants), kernel)
    return parts.program()


def _prove(program: Program) -> None:
    """Nothing leaves the compiler that could give other results, or none, when the units run side by side.

    Raises:
        VerifyError: the stream is not valid, with both instructions: a bug of code generation.
    """
    if found := check(program, limit=1):
        raise VerifyError(f"the accelerator's stream is not valid: {describe(program, found[0])}")


def compile_layer(layer: Layer, config: VdlaConfig, plan: LayerPlan) -> Program:
    """The program of one scheduled layer; its buffers are named as its values are.

    Raises:
        ScheduleError: the schedule needs more than there is.
    """
    ins = [layer.x] if layer.residual in (None, layer.x) else [layer.x, layer.residual]
    parts = Parts(config, [v for v in ins if v is not None], [layer.out], plan.structural)
    parts.layer(layer.out.name, layer, layer_kernel(plan, layer.out.name, config))
    return parts.program()


@dataclass(eq=False)
class Parts:
    """A program while layers are added to it.

    Args:
        config: the accelerator.
        inputs, outputs: values of the region.
        structural: whether tokens are those that kernels bring, with barriers between them.
    """

    config: VdlaConfig
    inputs: Sequence[Value]
    outputs: Sequence[Value]
    structural: bool = False
    buffers: list[Dram] = field(default_factory=list, init=False)
    layers: list[Task] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.constants = Constants()
        self.emitter = Emitter(self.config, self.constants, structural=self.structural)
        self.at: dict[Value, int] = {}
        for v in self.inputs:
            self._place(v, "in")
        for v in self.outputs:
            self._place(v, "out")

    def _place(self, v: Value, kind: str) -> int:
        if v not in self.at:
            shape = v.type.physical_shape
            self.at[v] = len(self.buffers)
            nbytes = int(np.prod(shape)) * v.type.dtype.itemsize
            self.buffers.append(Dram(v.name, kind, nbytes))  # type: ignore[arg-type]
        return self.at[v]

    def layer(self, name: str, layer: Layer, kernel: LayerKernel) -> None:
        """Append a layer.

        Args:
            name: for reports.
            layer: which values it reads and makes.
            kernel: its loops and its constants.
        """
        bound = {"x": self._place(layer.x, "temp"), "out": self._place(layer.out, "temp")}
        if layer.residual is not None:
            bound["residual"] = self._place(layer.residual, "temp")
        for key in kernel.arrays:
            bound[key] = len(self.buffers)
            self.buffers.append(Dram(f"{name}.{key}", "const"))
        self.emitter.layer = len(self.layers)
        self.layers.append(Task(name, layer.macs, layer.nbytes))
        begin = len(self.emitter.steps)
        for part in kernel.parts:
            if self.emitter.given is not None and self.emitter.steps:
                self.emitter.given.barrier()
            part.statements.emit(self.emitter, [bound[p] for p in part.params])
        if begin and not self.structural:
            self._weights_first(begin)

    def _weights_first(self, begin: int) -> None:
        """Let the first loads of weights not wait behind loads of what the layer before has yet to store."""
        steps = self.emitter.steps
        end = begin
        while end < len(steps) and steps[end].insn.unit is Unit.LD:
            end += 1
        steps[begin:end] = sorted(
            steps[begin:end], key=lambda s: isinstance(s.insn, Load) and s.insn.mem is not Mem.WGT
        )

    def program(self) -> Program:
        """All layers with tokens and micro-ops."""
        return assemble(self.config, self.emitter.steps, self.buffers, self.constants, self.layers, self.emitter.given)


def lowered(segment: Segment, name: str, *, structural: bool = False) -> Function:
    """The loop nests of a part of a layer, with the accelerator's product in them.

    Args:
        segment: the part.
        name: of the function.
        structural: whether its units are to be ordered by tokens in the loops.
    Raises:
        ScheduleError: the schedule cannot be built.
    """

    def threads(s: Stmt) -> Stmt:
        # threads are interleaved instruction by instruction, which takes knowledge of units, with tokens or without
        threaded = any(type(x) is For and x.kind is ForKind.VTHREAD for x in walk(s))
        return vthread(s, UNITS) if structural or threaded else s

    return lower(segment.schedule, segment.params, name, passes=(("tensorize", tensorize), ("vthread", threads)))

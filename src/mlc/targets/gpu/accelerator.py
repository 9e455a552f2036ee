"""A device that runs grids of threads as the compiler sees it: it takes over all for which it has kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf

import numpy as np

from mlc.ir import te
from mlc.ir.cost import operations
from mlc.ir.expr import walk
from mlc.ir.graph import Node, Value, express
from mlc.ir.layout import Layout
from mlc.ir.loop import Allocate, Buffer, Function, Store
from mlc.ir.loop import walk as walk_stmts
from mlc.ir.types import DType, TensorType
from mlc.lower.knobs import Config, Knobs
from mlc.lower.schedule import Schedule
from mlc.ops.shape import JOIN
from mlc.targets.base import CompiledRegion, DeviceProgram, LayoutChoice
from mlc.targets.driver_bench import DriverBench
from mlc.targets.gpu.dialect import Dialect
from mlc.targets.gpu.emit import Emitted, emit, source_of
from mlc.targets.gpu.kernel import kernel
from mlc.targets.gpu.program import Command, GpuProgram, Image, Operand, Step
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.scalars import Scalars
from mlc.targets.gpu.schedules import schedule_group

ALIGNMENT = 512  # bytes: what any device wants of the begin of a buffer within another


class GpuAccelerator:
    """Implements ``Accelerator``, ``Whole`` and ``Tunable``.

    Args:
        device: name of the driver.
        record: the device's limits and speeds.
        dialect: its language.
        options: what the driver is opened with.
    """

    alignment = ALIGNMENT
    whole = True

    def __init__(self, device: str, record: Gpu, dialect: Dialect, options: Mapping[str, str]) -> None:
        self.device = device
        self.processor = f"{device}-{record.name}"
        self.record = record
        self.bytes = "mma_u8_i8" in record.tensor
        self.dialect = dialect
        self._options = dict(options)

    def options(self) -> Mapping[str, str]:
        return self._options

    def refusal(self, group: Node, constants: Mapping[Value, np.ndarray]) -> str:
        op = group.op
        if op.express is None and op.routine is None and op is not JOIN:
            return f"{op.name} is made of steps of its own, which the host makes"
        types = {"f64"} if not self.record.double else set()
        for t in _dtypes(group):
            if t.name not in self.dialect.types or t.name in types:
                return f"works on {t}, of which the device knows nothing"
        return ""

    def layout(self, type: TensorType) -> Layout | None:
        return None

    def estimate(self, group: Node) -> tuple[float, float]:
        """The roofline on the device; what it can do, it does."""
        work, moved = _work(group)
        record = self.record
        return max(work / record.gflops, moved / record.gbytes) * 1e-9 + record.launch_us * 1e-6, inf

    def copy_seconds(self, nbytes: int) -> float:
        return nbytes / (self.record.gbytes * 1e9)

    def layouts(
        self, group: Node, inputs: Sequence[TensorType], constant: Sequence[bool], knobs: Knobs
    ) -> LayoutChoice:
        return LayoutChoice(tuple(None for _ in group.outputs))

    def depends_on(self, group: Node, constants: Mapping[Value, np.ndarray]) -> str:
        return ""

    def schedule(self, group: Node, constants: Mapping[Value, np.ndarray], knobs: Knobs) -> Schedule | None:
        if group.op is JOIN or group.op.routine is not None:
            return None
        return schedule_group(group, self.record, knobs)[0]

    def likely(self, group: Node, constants: Mapping[Value, np.ndarray]) -> Sequence[Config]:
        return []

    def region_seconds(self, region: CompiledRegion) -> float | None:
        return None  # it has to be run

    def bench(self) -> DriverBench:
        return DriverBench(self, exact=False)

    def kernel(
        self,
        group: Node,
        name: str,
        constants: Mapping[Value, np.ndarray],
        watch: Callable[[str, str], None] | None = None,
    ) -> Function:
        fn = kernel(group, name, self.record, watch)
        if watch is not None:
            scalars = Scalars(self.dialect)
            watch("source", source_of(scalars, [emit(fn, scalars).text]))
        return fn

    def images(self, source: str) -> tuple[Image, ...]:
        """Machine code of a text; none where the driver compiles it."""
        return ()

    def codegen(self, region: CompiledRegion, name: str) -> DeviceProgram:
        scalars = Scalars(self.dialect)
        emitted = {k: emit(fn, scalars) for k, fn in region.kernels.items()}
        source = source_of(scalars, [e.text for e in emitted.values()])
        graph = region.graph
        params = list(graph.constants)
        size = {
            **{("input", k): v.type.nbytes for k, v in enumerate(graph.inputs)},
            **{("output", k): v.type.nbytes for k, v in enumerate(graph.outputs)},
            **{("param", k): v.type.nbytes for k, v in enumerate(params)},
        }
        steps: list[Step] = []
        commands: list[Command] = []
        for k, call in enumerate(region.calls):
            if not call.kernel and not call.nbytes:
                continue
            number = len(steps)
            if not call.kernel:
                copied = tuple(Operand(str(space), at, call.nbytes) for space, at in call.args)
                steps.append(Step("copy", (), 0, 2 * call.nbytes))
                commands.append(Command(number, "", copied))
                continue
            steps.append(Step(call.kernel, tuple(region.nodes[k].sources), *_work(region.nodes[k])))
            fn = region.kernels[call.kernel]
            places = [
                Operand(str(space), at, size.get((str(space), at), b.nbytes))
                for (space, at), b in zip(call.args, fn.params, strict=True)
            ]
            places += _scratch(emitted[call.kernel])
            commands += [
                Command(number, launch.name, tuple(places[k] for k in launch.operands), launch.grid, launch.block)
                for launch in emitted[call.kernel].launches
            ]
        scratch = max((_end(e) for e in emitted.values()), default=0)
        program = GpuProgram(
            source,
            tuple(steps),
            tuple(commands),
            [_bytes(graph.constants[v]) for v in params],
            len(graph.inputs),
            len(graph.outputs),
            region.workspace_bytes,
            scratch,
            self.images(source),
        )
        facts = {"launches": len(commands), "kernels": len(emitted), "workspace_bytes": region.workspace_bytes}
        return DeviceProgram(program.to_bytes(), f".{self.device}", facts)


def _scratch(kernel: Emitted) -> Iterator[Operand]:
    """Where the buffers of a kernel lie that live from launch to launch."""
    at = 0
    for nbytes in kernel.buffers:
        yield Operand("scratch", at, nbytes)
        at += -(-nbytes // ALIGNMENT) * ALIGNMENT


def _end(kernel: Emitted) -> int:
    return sum(-(-n // ALIGNMENT) * ALIGNMENT for n in kernel.buffers)


def _work(node: Node) -> tuple[int, int]:
    """Operations of a node, and bytes that it must read and write."""
    work = 0
    if node.op.express is not None:
        inputs = [te.placeholder(v.type.shape, v.type.dtype, v.name) for v in node.inputs]
        work = operations(list(express(node, inputs)))
    return work, sum(v.type.nbytes for v in {*node.inputs, *node.outputs})


def _bytes(a: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(a).reshape(-1).view(np.uint8)


def _dtypes(node: Node) -> Iterator[DType]:
    """Types of all that a node computes with."""
    yield from (v.type.dtype for v in (*node.inputs, *node.outputs))
    if node.op.express is not None:
        inputs = [te.placeholder(v.type.shape, v.type.dtype, v.name) for v in node.inputs]
        for op in te.topological(list(express(node, inputs))):
            yield from (n.dtype for body in op.bodies for n in walk(body))
    elif node.op.routine is not None:
        ins, outs = (
            tuple(Buffer(f"{what}{k}", v.type.physical_shape, v.type.dtype) for k, v in enumerate(values))
            for what, values in (("p", node.inputs), ("out", node.outputs))
        )
        for s in walk_stmts(node.op.routine(ins, outs, node.attrs)):
            if isinstance(s, Allocate):
                yield s.buffer.dtype
            elif isinstance(s, Store):
                yield from (n.dtype for n in walk(s.value))

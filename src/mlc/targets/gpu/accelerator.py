"""A device that runs grids of threads as the compiler sees it: it takes over all for which it has kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from mlc.ir import te
from mlc.ir.expr import walk
from mlc.ir.graph import Node, Value, express
from mlc.ir.layout import Layout
from mlc.ir.loop import Allocate, Buffer, Function, Store
from mlc.ir.loop import walk as walk_stmts
from mlc.ir.site import Site
from mlc.ir.types import DType, TensorType
from mlc.lower.knobs import Config, Knobs
from mlc.lower.schedule import Schedule
from mlc.ops.scan import SCAN
from mlc.ops.shape import JOIN
from mlc.targets.base import CompiledRegion, DeviceProgram, LayoutChoice
from mlc.targets.driver_bench import DriverBench
from mlc.targets.gpu.commands import Commands, launches_of, work
from mlc.targets.gpu.dialect import Dialect
from mlc.targets.gpu.emit import emit, source_of
from mlc.targets.gpu.kernel import kernel
from mlc.targets.gpu.program import GpuProgram, Image, pack
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.scalars import Scalars
from mlc.targets.gpu.schedules import choose_layouts, schedule_group
from mlc.targets.groups.group import with_untuned_loops

ALIGNMENT = 512  # bytes: what any device wants of the begin of a buffer within another
MOST_LAUNCHES = 1 << 14  # that a recurrence may come to, each of which a program holds


class GpuAccelerator:
    """Implements ``Accelerator``, ``Whole`` and ``Tunable``.

    Every device that it is for gets schedules of its own, and a kernel is the loops of all of them.

    Args:
        device: name of the driver.
        records: limits and speeds of the devices. The graph is made for the first one, whose configurations are the
            tuned ones.
        dialect: their language.
        options: what the driver is opened with.
    """

    alignment = operand_alignment = ALIGNMENT
    anywhere = False  # whether operands that are accessed by single elements may begin at any of these
    whole = True

    def __init__(self, device: str, records: Sequence[Gpu], dialect: Dialect, options: Mapping[str, str]) -> None:
        self.device = device
        self.records = tuple(records)
        self.record = self.records[0]
        self.processor = f"{device}-{self.record.name}"
        self.bytes = all("mma_u8_i8" in r.tensor for r in self.records)
        self.dialect = dialect
        self._options = dict(options)

    def options(self) -> Mapping[str, str]:
        return self._options

    def refusal(self, group: Node, constants: Mapping[Value, np.ndarray]) -> str:
        op = group.op
        if op is SCAN:
            return self._refusal_of_rounds(group)
        if op.express is None and op.routine is None and op is not JOIN:
            return f"{op.name} is made of steps of its own, which the host makes"
        types = {"f64"} if not self.record.double else set()
        for t in _dtypes(group):
            if t.name not in self.dialect.types or t.name in types:
                return f"works on {t}, of which the device knows nothing"
        return ""

    def _refusal_of_rounds(self, scan: Node) -> str:
        """Why a recurrence stays on the host."""
        if (count := launches_of(scan)) > MOST_LAUNCHES:
            return f"its rounds come to {count} launches, {MOST_LAUNCHES} are the most"
        body = scan.attrs["body"]
        reasons = (self.refusal(n, body.constants) for n in body.nodes)
        return next((f"in each round: {reason}" for reason in reasons if reason), "")

    def layout(self, type: TensorType) -> Layout | None:
        return None

    def estimate(self, group: Node) -> tuple[float, float]:
        """The roofline on the device; what it can do, it does."""
        count, moved = work(group)
        record = self.record
        return max(count / record.gflops, moved / record.gbytes) * 1e-9 + record.launch_us * 1e-6, inf

    def copy_seconds(self, nbytes: int) -> float:
        return nbytes / (self.record.gbytes * 1e9)

    def layouts(self, group: Node, site: Site, knobs: Knobs) -> LayoutChoice:
        return choose_layouts(group, replace(site, row_major=False), self.record, knobs)

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
    ) -> tuple[Function, ...]:
        """The loops of a group on each device."""
        found = []
        for record in self.records:
            first = record is self.record

            def tell(stage: str, text: str, of: str = "" if first else f" {record.name}") -> None:
                if watch is not None:
                    watch(f"{stage}{of}", text)

            fn = kernel(group if first else with_untuned_loops(group), name, record, None if watch is None else tell)
            if watch is not None:
                scalars = Scalars(self.dialect)
                tell("source", source_of(scalars, [emit(fn, scalars).text]))
            found.append(fn)
        return tuple(found)

    def images(self, texts: Mapping[Gpu, str]) -> Mapping[Gpu, tuple[Image, ...]]:
        """Machine code of the text of each device; none where the driver compiles it."""
        return {}

    def record_of(self, program: GpuProgram) -> Gpu:
        """The device that a program is for."""
        return self.record

    def codegen(self, region: CompiledRegion, name: str) -> DeviceProgram:
        parts: dict[Gpu, tuple[str, Commands]] = {}
        for k, record in enumerate(self.records):
            scalars = Scalars(self.dialect)
            emitted = {name: emit(fns[k], scalars) for name, fns in region.kernels.items()}
            source = source_of(scalars, [e.text for e in emitted.values()])
            parts[record] = source, Commands(region, emitted, self.operand_alignment, self.anywhere)
        images = self.images({record: source for record, (source, _) in parts.items()})
        params = [_bytes(array) for array in region.constants.values()]
        programs = [
            GpuProgram(
                source,
                tuple(made.steps),
                tuple(made.commands),
                params,
                len(region.graph.inputs),
                len(region.graph.outputs),
                region.workspace_bytes,
                made.scratch,
                images.get(record, ()),
            )
            for record, (source, made) in parts.items()
        ]
        facts = {
            "launches": len(programs[0].commands),
            "kernels": len(region.kernels),
            "workspace_bytes": region.workspace_bytes,
        }
        return DeviceProgram(pack(programs), f".{self.device}", facts)


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

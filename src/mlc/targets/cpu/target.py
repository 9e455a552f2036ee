"""What the targets of all processors with vectors share: schedules, and code generation by LLVM."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from mlc.errors import DeviceError
from mlc.ir.cost import Peaks
from mlc.ir.graph import Node
from mlc.ir.loop import Buffer, Function, Stmt
from mlc.ir.site import Site
from mlc.ir.types import DType, bf16, i7, i16, i32, u8
from mlc.lower import lower
from mlc.lower.knobs import Knobs
from mlc.lower.private import spare_stack
from mlc.lower.schedule import Schedule
from mlc.ops import get
from mlc.ops.algorithms import Algorithm
from mlc.runtime.manifest import TargetSpec
from mlc.runtime.native import check_device
from mlc.targets.base import Artifact, Code, LayoutChoice, Step
from mlc.targets.bench import Bench
from mlc.targets.cpu.cost import SHARED, USABLE
from mlc.targets.cpu.dot import NEIGHBOURS
from mlc.targets.cpu.record import Cpu
from mlc.targets.functions import CompiledFunction
from mlc.targets.llvm.module import Machine, ModuleText

if TYPE_CHECKING:
    from mlc.targets.cpu.estimate import Estimate

ESTIMATES = "estimate.json"
"""The file of a package, among its sources, that holds what kernels are expected to take."""

PARALLEL = "declare void @mlc_parallel(ptr, ptr, ptr, i64)"


@dataclass(frozen=True, eq=False)
class EmittedKernels:
    """Kernels as LLVM IR.

    Args:
        text: the module that they stand in.
        scratch: bytes of working memory that each needs, by name.
        estimates: what each is expected to take, by name; nothing for this machine, where times can be taken.
        objects: of kernels that were compiled on their own, by name.
    """

    text: ModuleText
    scratch: Mapping[str, int]
    estimates: Mapping[str, Estimate]
    objects: Mapping[str, bytes] = field(default_factory=dict)


class CpuTarget:
    """Compiles for a processor. A family of processors fills in its name, its triple and its records.

    Args:
        record: vectors, registers and caches.
        native: whether the processor is this machine's.
        loadable: features that a machine must have to run the code, by LLVM's names.

    Attributes:
        name: as in the target's string form.
        triple: LLVM's name of the platform.
        keeps_nan: whether the least and the greatest of two numbers keep NaN, and conversions take it to 0.
        fixed_product: LLVM's function for products of fixed-point numbers, if there is an instruction for them.
        evict: LLVM IR that defines ``void @evict(ptr)``, which takes a line of memory out of all caches, and
            ``void @evicted()``, which waits until all are out; empty where a program cannot.
    """

    name: ClassVar[str]
    triple: str
    keeps_nan: ClassVar[bool] = False
    fixed_product: ClassVar[str] = ""
    evict: ClassVar[str] = ""
    accelerator = None

    def __init__(self, record: Cpu, *, native: bool, loadable: Sequence[str] = ()) -> None:
        self.record = record
        self.native = native
        self._loadable = tuple(loadable)

    @property
    def packed_lanes(self) -> int:
        """Lanes of vectors of words that become bytes four at once; 0 where no instructions do that."""
        return 0

    @property
    def masks(self) -> bool:
        """Whether a mask chooses the lanes that a vector access reads, at no cost."""
        return False

    def describe(self) -> dict[str, object]:
        return {
            "string": f"{self.name} -mcpu={self.record.cpu}",
            "triple": self.triple,
            "cpu": self.record.cpu,
            "features": list(self._loadable),
            "vector_bits": self.record.vector_bits,
            "multiply_adds": self.record.fmas,
            "mattr": ",".join(self.record.features),
        }

    def peaks(self) -> Peaks:
        record = self.record
        products = record.fmas * record.lanes / record.fma_operations
        caches = (record.l2 * USABLE, record.l2_bandwidth), (record.l3 * SHARED, record.l3_bandwidth)
        return Peaks(record.memory_bandwidth, 2 * products, record.launch, caches)

    def algorithms(self, node: Node) -> Sequence[Algorithm]:
        from mlc.targets.cpu.schedules.attention import attention_algorithms
        from mlc.targets.cpu.schedules.conv import dense_algorithm
        from mlc.targets.cpu.schedules.winograd import winograd_algorithms

        types = [v.type for v in node.inputs]
        if node.op is get("conv"):
            if node.outputs[0].type.dtype is i32 and node.attrs["groups"] > 1:
                return (dense_algorithm(types[0].shape, types[1].shape, node.attrs["groups"], self.record),)
            words = self.record.word_dot if types[0].dtype is u8 else None
            direct = self.record.narrow_dot if types[1].dtype is i7 else words
            return winograd_algorithms(types[0].shape, types[1].shape, node.attrs["pads"], self.record, direct, words)
        if node.op is get("attention"):
            return attention_algorithms(types[0].shape, types[2].shape, self.record)
        return (Algorithm.DIRECT,)

    def bytes_gain(self, node: Node) -> float:
        from mlc.targets.cpu.schedules.gain import bytes_gain_of

        return bytes_gain_of(node, self.record)

    def most_products(self, terms: int) -> float:
        units = [unit for unit in self.record.matrices if unit.types[0].itemsize * terms == NEIGHBOURS]
        floats = self.record.lanes * self.record.fmas
        return max([terms, *(unit.products_per_cycle / floats for unit in units)])

    def multiplied_bytes(self) -> DType:
        return u8 if self.record.dot is None else self.record.dot.types[0]

    def multiplies_bf16(self) -> bool:
        return self.record.bf16_dot is not None

    def convolves_bf16(self, node: Node) -> bool:
        (_, channels, *_), (filters, *_) = (v.type.shape for v in node.inputs)
        whole = node.attrs["groups"] == 1 and node.inputs[0].type.rank == 4 and channels % 2 == 0
        deep = min(channels, filters) >= self.record.lanes  # others would be mostly padding
        return self.record.matrices_of(bf16, bf16) is not None and whole and deep

    def sums_in_half(self) -> bool:
        return self.record.half_sums

    def bits_gain(self, node: Node, of_x: int, of_w: int) -> float:
        from mlc.targets.cpu.schedules.gain import bits_gain_of

        return bits_gain_of(node, of_x, of_w, self.record)

    def weight_types(self) -> Collection[DType]:
        dots = {i16: self.record.word_dot, i7: self.record.narrow_dot}
        return [dtype for dtype, dot in dots.items() if dot is not None]

    def channel_block(self) -> int:
        return 0 if self.record.dot is None else self.record.lanes

    def layouts(self, node: Node, site: Site, knobs: Knobs) -> LayoutChoice:
        from mlc.targets.cpu.schedules import choose_layouts

        return choose_layouts(node, site, self.record, knobs)

    def schedule(self, node: Node, knobs: Knobs) -> Schedule | None:
        from mlc.targets.cpu.schedules import schedule_group

        return None if node.op.routine is not None else schedule_group(node, self.record, knobs)[0]

    def expected_cycles(self, group: Node) -> float:
        from mlc.targets.cpu.estimate import estimate

        return estimate(self.kernel(group, "expected"), self.record).cycles

    def kernel(self, node: Node, name: str, watch: Callable[[str, str], None] | None = None) -> Function:
        from mlc.targets.cpu.schedules import schedule_group
        from mlc.targets.groups.group import knobs_of

        if node.op.routine is not None:
            ins = tuple(Buffer(f"p{k}", v.type.physical_shape, v.type.dtype) for k, v in enumerate(node.inputs))
            outs = tuple(Buffer(f"out{k}", v.type.physical_shape, v.type.dtype) for k, v in enumerate(node.outputs))
            return Function(name, ins + outs, len(outs), node.op.routine(ins, outs, node.attrs))
        knobs = knobs_of(node)
        schedule, params = schedule_group(node, self.record, knobs)
        knobs.require_all_asked()
        if watch is not None:
            watch("te", "\n".join(repr(s.op) for s in schedule.stages) + "\n")
            watch("schedule", "\n".join(schedule.history) + "\n")
            printed: tuple[Stmt | None, str] = (None, "")

            def note(stage: str, fn: Function) -> None:
                nonlocal printed
                if fn.body is not printed[0]:  # most kernels have nothing to do for most passes
                    printed = (fn.body, repr(fn))
                watch(stage, printed[1])

            lowered = lower(schedule, params, name, watch=note)
            fn = spare_stack(lowered)
            if fn is not lowered:
                note("spare stack", fn)
            return fn
        return spare_stack(lower(schedule, params, name))

    def emit(
        self,
        kernels: Mapping[str, Function | CompiledFunction],
        *,
        contract: bool = True,
        on_stage: Callable[[str], None] | None = None,
    ) -> EmittedKernels:
        from mlc.targets.cpu.estimate import estimate
        from mlc.targets.llvm.function import emit_function

        if on_stage is not None:
            on_stage("codegen")
        text, scratch = self._module(), {}
        objects: dict[str, bytes] = {}
        estimates: dict[str, Estimate] = {}
        for name, fn in kernels.items():
            if isinstance(fn, CompiledFunction):
                text.take(fn.parts)
                scratch[name], objects[name] = fn.scratch, fn.obj
                continue
            scratch[name] = emit_function(fn, text, contract=contract)
            if not self.native:
                estimates[name] = estimate(fn, self.record)
        return EmittedKernels(text, scratch, estimates, objects)

    def alone(self, fn: Function, *, contract: bool, opt_level: int, symbols: str) -> CompiledFunction | None:
        from mlc.targets.llvm.function import emit_function
        from mlc.targets.llvm.link import can_join
        from mlc.targets.llvm.module import compile_text

        if not self.native:  # for others it is estimated what kernels take, from their loops
            return None
        text = self._module()
        scratch = emit_function(fn, text, contract=contract)
        parts = text.parts()
        if not can_join(self.triple):
            return CompiledFunction(scratch, parts, b"")
        text.export(fn.name)
        text.declare(PARALLEL)
        return CompiledFunction(
            scratch, parts, compile_text(text.text(self._machine(), symbols), self._machine(), opt_level=opt_level)
        )

    def _module(self) -> ModuleText:
        return ModuleText(
            keeps_nan=self.keeps_nan, fixed_product=self.fixed_product, packed_lanes=self.packed_lanes, masks=self.masks
        )

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
        from mlc.targets.llvm.entry import entry_points
        from mlc.targets.llvm.link import joined, shared_library
        from mlc.targets.llvm.module import compile_text
        from mlc.targets.llvm.runtime import pool_ir

        assert isinstance(code, EmittedKernels)
        text, around = code.text, self._module()
        for part in (text, around):
            part.define(entry_points(calls, whole=whole))
            if whole:
                part.define(pool_ir(self.triple))
            else:
                part.declare(PARALLEL)
        ir = text.text(self._machine(), symbols)
        obj = None
        if code.objects and all(code.objects.get(name) for name in code.scratch):
            for name in code.objects:
                around.declare(text.head(name))
            rest = compile_text(around.text(self._machine(), symbols), self._machine(), opt_level=opt_level)
            obj = joined([rest, *code.objects.values()], self.triple)
        if obj is None:
            obj = compile_text(ir, self._machine(), opt_level=opt_level, on_stage=on_stage)
        if not whole:
            return Artifact(obj, {"model.ll": ir})
        if on_stage is not None:
            on_stage("link")
        sources = {"model.ll": ir}
        if code.estimates:
            sources[ESTIMATES] = json.dumps({name: e.to_json() for name, e in code.estimates.items()}, indent=1)
        return Artifact(obj, sources, shared_library(obj, self.triple))

    def assembly(
        self, sources: Mapping[str, str], *, opt_level: int = 3, details: Mapping[str, str] | None = None
    ) -> str:
        from mlc.targets.llvm.module import assembly_of

        machine = self._machine()
        if details is not None:
            machine = Machine(self.triple, self.record.cpu, details["mattr"], int(details["vector_bits"]))
        return assembly_of(sources["model.ll"], machine, opt_level=opt_level)

    def bench(self, flush: bool = False) -> Bench:
        from mlc.targets.cpu.bench import CpuBench

        check_device(TargetSpec.from_facts({**self.describe(), "opt_level": 0, "fast_math": True}))
        if flush and not self.evict:
            raise DeviceError(f"no program can empty the caches of {self.name} processors")
        pool = self.codegen(self.emit({}), (), opt_level=3).obj
        return CpuBench(pool, self.record, self.evict if flush else "")

    def emulated_bench(self) -> Bench:
        from mlc.targets.cpu.bench.emulated import EmulatedBench
        from mlc.targets.llvm.module import ModuleText, compile_text
        from mlc.targets.llvm.runtime import pool_ir

        pool = ModuleText()
        pool.define(pool_ir(self.triple))
        machine = self._machine()
        return EmulatedBench(compile_text(pool.text(machine), machine), self.triple, self.record.cpu)

    def _machine(self) -> Machine:
        return Machine(self.triple, self.record.cpu, ",".join(self.record.features), self.record.vector_bits)

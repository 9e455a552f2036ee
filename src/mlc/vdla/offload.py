"""The accelerator as the compiler sees it: what it can run, how tensors lie in its memory, what things cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from mlc.errors import ScheduleError, UnsupportedError
from mlc.ir.graph import Node, Value
from mlc.ir.layout import Layout
from mlc.ir.site import Site
from mlc.ir.types import TensorType
from mlc.lower.knobs import Config, Knobs
from mlc.ops import get
from mlc.rewrite.group import body_of, config_of
from mlc.rewrite.keys import content_digest
from mlc.rewrite.offload import Shortcoming
from mlc.targets.base import LEVELS, CallSpec, CompiledRegion, DeviceProgram, LayoutChoice
from mlc.targets.driver_bench import DriverBench
from mlc.vdla.config import VdlaConfig
from mlc.vdla.fold import folded
from mlc.vdla.host import HostModel
from mlc.vdla.isa.fields import IMMEDIATES
from mlc.vdla.layer import Convolution, Elementwise, Layer, read_layer
from mlc.vdla.layouts import tensor_layout, wanted_layout
from mlc.vdla.narrow import folds
from mlc.vdla.program import ALIGNMENT
from mlc.vdla.schedules import plan_layer
from mlc.vdla.schedules.elementwise import fits
from mlc.vdla.schedules.finish import PASSES, greatest_bias
from mlc.vdla.schedules.select import best_plan, likely_plans
from mlc.vdla.schedules.shape import Shape

if TYPE_CHECKING:
    from mlc.vdla.codegen.region import LayerKernel

_MOST_LIFT = 10  # binary places by which products with multiples of the unit matrix lift a residual
_MOST_SHIFT = 31  # binary places that the shift of a store, and that of 32 bits, can move

# What estimates assume of a layer before there is a program for it; programs report their own cycles.
_UTILISATION = 0.9


class VdlaAccelerator:
    """Implements ``Accelerator`` for one record.

    Args:
        config: the hardware.
        host: what the processor beside it is assumed to cost.
    """

    device = "vdla"
    shifts = True
    alignment = ALIGNMENT

    def __init__(self, config: VdlaConfig, host: HostModel | None = None) -> None:
        self.config = config
        self.host = host or HostModel()

    def options(self) -> Mapping[str, str]:
        return {name: str(value) for name, value in self.config.to_dict().items()}

    def refusal(self, group: Node, constants: Mapping[Value, np.ndarray]) -> str:
        try:
            layer = read_layer(group, constants)
        except UnsupportedError as error:
            return error.message
        return Shortcoming(lacking(layer, self.config)) or _too_large(layer, self.config)

    def layout(self, type: TensorType) -> Layout | None:
        return tensor_layout(type, self.config.block_out)

    def layouts_between(self, groups: Sequence[Node], constants: Mapping[Value, np.ndarray]) -> Mapping[Value, Layout]:
        found = folds([read_layer(group, constants) for group in groups], self.config)
        return {v: fold.layout(v.type, self.config.block_in) for v, fold in found.items()}

    def estimate(self, group: Node) -> tuple[float, float]:
        return self._seconds(group), self.host.seconds(group)

    def copy_seconds(self, nbytes: int) -> float:
        return self.host.copy_seconds(nbytes)

    def schedule(self, group: Node, constants: Mapping[Value, np.ndarray], knobs: Knobs) -> None:
        plan_layer(read_layer(group, constants), self.config, knobs)

    def likely(self, group: Node, constants: Mapping[Value, np.ndarray]) -> Sequence[Config]:
        layer = read_layer(group, constants)
        if not isinstance(layer, Convolution):
            return []
        return [plan.config for plan in likely_plans(Shape.of(folded(layer, self.config), self.config), self.config)]

    def region_seconds(self, region: CompiledRegion) -> float:
        from mlc.vdla.codegen.region import region_seconds

        return region_seconds(region.graph, _kernels(region), self.config)

    def bench(self) -> DriverBench:
        return DriverBench(self, exact=True)

    def layouts(self, group: Node, site: Site, knobs: Knobs) -> LayoutChoice:
        outputs = tuple(v.type.layout or self.layout(v.type) for v in group.outputs)
        asked: dict[int, Layout] = {}
        if LEVELS in knobs.config and (k := _read_by_product(group)) is not None:
            wanted = wanted_layout(site.inputs[k], self.config.block_in, knobs)
            asked = {} if wanted is None else {k: wanted}
        return LayoutChoice(outputs, asked=asked)

    def depends_on(self, group: Node, constants: Mapping[Value, np.ndarray]) -> str:
        return " ".join(content_digest(constants[v]) for v in group.inputs if v in constants)

    def kernel(
        self,
        group: Node,
        name: str,
        constants: Mapping[Value, np.ndarray],
        watch: Callable[[str, str], None] | None = None,
    ) -> LayerKernel:
        from mlc.vdla.codegen.region import layer_kernel

        knobs = Knobs(config_of(group))
        plan = plan_layer(read_layer(group, constants), self.config, knobs)
        kernel = layer_kernel(plan, name, self.config)
        if watch is not None:
            watch("schedule", "\n".join(line for s in plan.segments for line in s.schedule.history) + "\n")
            watch("tensorize", "\n".join(repr(part.statements.fn) for part in kernel.parts))
        return kernel

    def codegen(self, region: CompiledRegion, name: str) -> DeviceProgram:
        from mlc.vdla.codegen.region import compile_region

        program = compile_region(region.graph, _kernels(region), self.config)
        facts = {"instructions": len(program.instructions), **program.meta}
        return DeviceProgram(program.to_bytes(), ".vdla", facts)

    def _seconds(self, group: Node) -> float:
        """The roofline: products with padded channels, or all bytes once, whichever takes longer."""
        config = self.config
        moved = sum(v.type.nbytes for v in {*group.inputs, *group.outputs})
        cycles = max(_steps(group, config), ceil(moved / config.bytes_per_cycle))
        return cycles / _UTILISATION / (config.freq_mhz * 1e6)


def _read_by_product(group: Node) -> int | None:
    """Which input of a group its one product reads tile by tile; nothing where it has none."""
    body = body_of(group)
    products = [n for n in body.nodes if n.op in (get("conv"), get("matmul"))]
    places = [k for n in products for k, v in enumerate(body.inputs) if v is n.inputs[0]]
    return places[0] if len(places) == 1 else None


def _steps(group: Node, config: VdlaConfig) -> int:
    """Steps of the array that a group's products take, each with whole blocks of channels."""
    total = 0
    for node in body_of(group).nodes:
        if node.op not in (get("conv"), get("matmul")):
            continue
        (_, w), (y,) = node.inputs, node.outputs
        out = y.type.shape[1 if node.op is get("conv") else -1]
        terms = w.type.size // out if out else 0
        channels = w.type.shape[1] if node.op is get("conv") else terms
        taps = terms // channels if channels else 0
        pixels = y.type.size // out if out else 0
        total += pixels * ceil(out / config.block_out) * ceil(channels / config.block_in) * taps
    return total


def _kernels(region: CompiledRegion) -> list[LayerKernel]:
    return [region.kernels[call.kernel] for call in region.calls if isinstance(call, CallSpec)]


def _too_large(layer: Layer, config: VdlaConfig) -> str:
    """Whether no tile of a layer fits the memories; looked into where windows are large, since it takes a while."""
    if isinstance(layer, Elementwise):
        return "" if fits(layer, config) else "no tile of the layer fits the memories"
    if not isinstance(layer, Convolution):
        return ""
    try:
        shape = Shape.of(layer, config)
        if shape.taps > config.wgt_depth // 4:
            best_plan(shape, config)
    except ScheduleError as error:
        return error.message
    return ""


def lacking(layer: Layer, config: VdlaConfig) -> str:
    """What a layer needs and the hardware lacks, in a few words; empty where it lacks nothing."""
    if not config.ext_store_requant:
        if isinstance(layer, Elementwise):
            return "this profile stores sums as they are, and multiplies only"
        bare = layer.bias is None and layer.residual is None and not layer.relu and layer.shift is None
        return "" if bare else "this profile stores sums as they are; the host finishes them"
    lifts = [layer.residual_shift, layer.lift if isinstance(layer, Elementwise) else None]
    moved = [places for places in (layer.shift, *lifts) if places is not None]
    if any(places.min() < 0 or places.max() > _MOST_SHIFT for places in moved):
        return f"shifts by other than 0 to {_MOST_SHIFT} places"
    if config.ext_alu:
        return _lacking_with_alu(layer)
    if layer.shift is not None and layer.shift.size > 1:
        return "without the ALU extension all channels share one shift"
    if layer.shift is None and layer.relu:
        return "without the ALU extension only stores of bytes activate"
    if layer.most is not None:
        return "without the ALU extension nothing is clipped from above"
    if layer.bias is not None and np.abs(layer.bias.astype(np.int64)).max() > PASSES * greatest_bias(config):
        return f"without the ALU extension biases are {PASSES * greatest_bias(config)} at most"
    for lift in (places for places in lifts if places is not None):
        if lift.size > 1:
            return "without the ALU extension residuals are lifted alike in all channels"
        if lift[0] > _MOST_LIFT:
            return f"without the ALU extension residuals are lifted by {_MOST_LIFT} places at most"
    return ""


def _lacking_with_alu(layer: Layer) -> str:
    if layer.most is None or layer.most in IMMEDIATES:
        return ""
    stored = layer.most_stored
    if stored is None or stored.min() != stored.max() or int(stored[0]) not in IMMEDIATES:
        return f"clips at {layer.most}, and constants of instructions have 16 bits"
    return ""

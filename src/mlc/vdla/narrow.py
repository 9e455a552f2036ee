"""Which narrow tensors are folded: those that all their layers take so, where that makes the layers faster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mlc.errors import ScheduleError
from mlc.ir.graph import Value
from mlc.ops import get
from mlc.vdla.config import VdlaConfig
from mlc.vdla.fold import CHANNEL, COLUMN, Fold, over_blocks
from mlc.vdla.layer import Convolution, Layer
from mlc.vdla.schedules.shape import Shape


def folds(layers: Sequence[Layer], config: VdlaConfig) -> Mapping[Value, Fold]:
    """Which values of some layers should be folded, and how, so that their layers take less; the others are left out.

    Args:
        layers: all that make or read the values, the host excepted.
        config: the accelerator.
    """
    makers = {layer.out: layer for layer in layers}
    readers: dict[Value, list[Layer]] = {}
    for layer in layers:
        for v in {layer.x, layer.residual} - {None}:
            readers.setdefault(v, []).append(layer)  # type: ignore[arg-type]
    chosen: dict[Value, Fold] = {}

    def cost(concerned: Sequence[Layer], tried: Mapping[Value, Fold]) -> tuple[float, float]:
        """Cycles of the layers as their units allow, and those of the port."""
        found = [_cycles(layer, tried, config) for layer in concerned]
        return sum(max(both) for both in found), sum(port for _, port in found)

    for v in dict.fromkeys([*readers, *makers]):
        concerned = [*dict.fromkeys([*readers.get(v, ()), *([makers[v]] if v in makers else ())])]
        options = [*_options(v, concerned, v in makers, config.block_in)]
        if not options:
            continue
        best = cost(concerned, chosen)
        for fold in options:
            try:
                found = cost(concerned, {**chosen, v: fold})
            except ScheduleError:
                continue
            if found < best:
                best, chosen[v] = found, fold
    return chosen


def _options(v: Value, layers: Sequence[Layer], made: bool, lanes: int) -> Iterator[Fold]:
    """How a value may be folded. Only the host, which packs it, brings zeros where pixels are none."""
    if v.type.rank != 4 or not all(_foldable(layer) for layer in layers):
        return
    pixels = 2
    while pixels * v.type.shape[CHANNEL] <= lanes:
        if not made:
            yield from (Fold(pixels, before) for before in range(pixels))
        elif v.type.shape[COLUMN] % pixels == 0:
            yield Fold(pixels)
        pixels *= 2


def _foldable(layer: Layer) -> bool:
    """Whether a layer is a convolution that adds no other tensor."""
    return isinstance(layer, Convolution) and layer.product.op is get("conv") and layer.residual is None


def _cycles(layer: Layer, chosen: Mapping[Value, Fold], config: VdlaConfig) -> tuple[float, float]:
    """What a convolution takes the matrix unit and the port.

    Raises:
        ScheduleError: there is no convolution over such blocks, or its windows are large.
    """
    assert isinstance(layer, Convolution)
    there = over_blocks(layer, chosen.get(layer.x, Fold()), chosen.get(layer.out, Fold()), config.block_in)
    shape = Shape.of(there, config)
    if there is not layer and shape.taps > config.wgt_depth // 4:
        raise ScheduleError("windows leave little room for tiles")
    added = shape.passes * shape.batch * shape.rows * shape.columns * shape.outputs
    return shape.groups * (shape.macs + added), shape.groups * shape.compulsory_bytes / config.bytes_per_cycle

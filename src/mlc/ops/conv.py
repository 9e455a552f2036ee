"""Convolution and transposed convolution over 1 to 3 spatial axes, with groups.

Logical layout: data ``[n, c, (d, h,) w]``, weights ``[o, c / groups, taps…]``. A bias is an addition of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlc.ir import te
from mlc.ir.expr import Expr, all_of, select, within
from mlc.ir.graph import Attrs, FusionKind
from mlc.ir.index import Linear, as_index
from mlc.ir.types import TensorType
from mlc.ops._broadcast import check_count
from mlc.ops.common import check, narrowed, product, product_type
from mlc.ops.registry import operator
from mlc.ops.window import SPACE, check_window, output_extents, padded, reach, span, taps, window_index


def _check_operands(op: str, x: TensorType, w: TensorType, groups: int) -> None:
    check(3 <= x.rank <= 5, op, f"x has rank {x.rank}, 3 to 5 are supported")
    check(w.rank == x.rank, op, f"x has rank {x.rank} but w has rank {w.rank}")
    check(groups >= 1, op, f"{groups} groups")


def _conv_type(types: Sequence[TensorType], attrs: Attrs) -> list[TensorType]:
    check_count("conv", types, 2)
    x, w = types
    groups = attrs["groups"]
    _check_operands("conv", x, w, groups)
    dtype = product_type("conv", x.dtype, w.dtype)
    window = w.shape[2:], attrs["strides"], attrs["pads"], attrs["dilations"]
    check_window("conv", x.rank - 2, *window)
    takes = w.shape[1] * groups
    check(x.shape[1] == takes, "conv", f"x has {x.shape[1]} channels, w takes {takes} in {groups} groups")
    check(w.shape[0] % groups == 0, "conv", f"{w.shape[0]} output channels in {groups} groups")
    return [TensorType((x.shape[0], w.shape[0], *output_extents("conv", x.shape[2:], *window)), dtype)]


@operator("conv", FusionKind.COMPLEX, _conv_type, strides=..., pads=..., dilations=..., groups=1)
def conv(inputs: Sequence[te.Tensor], attrs: Attrs) -> list[te.Tensor]:
    """``out[n, o, h, w] = sum(pad[n, c, h*stride + r*dilation, …] * w[o, c, r, s] for c, r, s)``.

    Operands: ``x[n, c, …]``, ``w[o, c / groups, …]``. Narrow integers give i32; 16-bit floats are summed in f32.
    """
    x, w = inputs
    groups, strides, dilations, pads = attrs["groups"], attrs["strides"], attrs["dilations"], attrs["pads"]
    rank, kernel = x.rank - 2, w.shape[2:]
    dtype = product_type("conv", x.dtype, w.dtype)
    space = output_extents("conv", x.shape[2:], kernel, strides, pads, dilations)
    data = padded(x, pads[:rank], reach(space, kernel, strides, dilations), 0)
    depthwise = groups > 1 and groups == x.shape[1]
    per_group = w.shape[0] // groups
    c = te.reduce_axis(w.shape[1], "c")
    over = taps(kernel)

    def element(n: Linear, o: Linear, *at: Linear) -> te.Reduction:
        channel = as_index(c) if groups == 1 else (o // per_group) * w.shape[1] + as_index(c)
        term = product(data[(n, channel, *window_index(at, over, strides, dilations))], w[(o, c, *over)], dtype)
        return te.sum_of(term, over if depthwise else (c, *over))

    facts = {"strides": tuple(strides), "dilations": tuple(dilations), "groups": groups}
    tag = "depthwise" if depthwise else "group_conv" if groups > 1 else "conv"
    shape, names = (x.shape[0], w.shape[0], *space), ("n", "o", *SPACE[rank])
    return [narrowed(te.compute(shape, element, "conv", axis_names=names, tag=tag, attrs=facts), dtype)]


def transposed_extents(
    space: Sequence[int], kernel: Sequence[int], strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int]
) -> tuple[int, ...]:
    """Spatial output shape of a transposed convolution without output padding."""
    rank = len(space)
    return tuple(
        strides[d] * (n - 1) + span(kernel[d], dilations[d]) - pads[d] - pads[rank + d] for d, n in enumerate(space)
    )


def _transposed_space(x: TensorType | te.Tensor, w: TensorType | te.Tensor, attrs: Attrs) -> tuple[int, ...]:
    given = tuple(attrs["output_shape"])
    return given or transposed_extents(x.shape[2:], w.shape[2:], attrs["strides"], attrs["pads"], attrs["dilations"])


def _transposed_type(types: Sequence[TensorType], attrs: Attrs) -> list[TensorType]:
    op = "conv_transpose"
    check_count(op, types, 2)
    x, w = types
    groups = attrs["groups"]
    _check_operands(op, x, w, groups)
    dtype = product_type(op, x.dtype, w.dtype)
    window = w.shape[2:], attrs["strides"], attrs["pads"], attrs["dilations"]
    check_window(op, x.rank - 2, *window)
    check(x.shape[1] == w.shape[0], op, f"x has {x.shape[1]} channels, w takes {w.shape[0]}")
    check(x.shape[1] % groups == 0, op, f"{x.shape[1]} input channels in {groups} groups")
    space = _transposed_space(x, w, attrs)
    check(len(space) == x.rank - 2, op, f"output_shape {space} for {x.rank - 2} spatial axes")
    check(all(n >= 1 for n in space), op, f"the output has spatial shape {space}")
    return [TensorType((x.shape[0], w.shape[1] * groups, *space), dtype)]


@operator(
    "conv_transpose", FusionKind.COMPLEX, _transposed_type,
    strides=..., pads=..., dilations=..., groups=1, output_shape=(),
)  # fmt: skip
def conv_transpose(inputs: Sequence[te.Tensor], attrs: Attrs) -> list[te.Tensor]:
    """The transpose of :func:`conv`: a direct convolution over the input spread out by ``strides``, kernel mirrored.

    ``spread[n, c, p]`` is ``x[n, c, q]`` at ``p = q*stride + dilation*(k-1) - pad`` and zero elsewhere;
    ``out[n, o, h] = sum(spread[n, c, h + r*dilation] * w[c, o, k-1-r] for c, r)``.

    Operands: ``x[n, c, …]``, ``w[c, o / groups, …]``. ``output_shape`` (spatial) overrides the natural one.
    """
    x, w = inputs
    groups, dilations = attrs["groups"], attrs["dilations"]
    rank, kernel, space = x.rank - 2, w.shape[2:], _transposed_space(x, w, attrs)
    dtype = product_type("conv_transpose", x.dtype, w.dtype)
    data = _spread(x, kernel, attrs, reach(space, kernel, (1,) * rank, dilations))
    channels, per_group = x.shape[1] // groups, w.shape[1]
    c = te.reduce_axis(channels, "c")
    over = taps(kernel)

    def element(n: Linear, o: Linear, *at: Linear) -> te.Reduction:
        channel = as_index(c) if groups == 1 else (o // per_group) * channels + as_index(c)
        mirrored = [k - 1 - as_index(t) for k, t in zip(kernel, over, strict=True)]
        source = data[(n, channel, *window_index(at, over, (1,) * rank, dilations))]
        return te.sum_of(product(source, w[(channel, o % per_group, *mirrored)], dtype), (c, *over))

    facts = {"strides": tuple(attrs["strides"]), "dilations": tuple(dilations), "groups": groups}
    shape, names = (x.shape[0], per_group * groups, *space), ("n", "o", *SPACE[rank])
    y = te.compute(shape, element, "conv", axis_names=names, tag="conv_transpose", attrs=facts)
    return [narrowed(y, dtype)]


def _spread(x: te.Tensor, kernel: Sequence[int], attrs: Attrs, extents: Sequence[int]) -> te.Tensor:
    """``x`` with ``stride - 1`` zeros between neighbours, placed for a convolution with stride 1."""
    strides, space = attrs["strides"], x.shape[2:]
    leads = [span(k, d) - 1 - p for k, d, p in zip(kernel, attrs["dilations"], attrs["pads"], strict=False)]

    def element(n: Linear, c: Linear, *at: Linear) -> Expr:
        guards, inner = [], []
        for i, lead, stride, extent in zip(at, leads, strides, space, strict=True):
            inner.append((i - lead) // stride)
            guards += [within((i - lead) % stride, 0, 1), within(inner[-1], 0, extent)]
        return select(all_of(guards), x[(n, c, *inner)], 0)

    names = ("n", "c", *SPACE[len(space)])
    return te.compute((*x.shape[:2], *extents), element, "pad", axis_names=names, tag="pad")

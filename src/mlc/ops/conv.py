"""Convolution over 1 to 3 spatial axes, with groups.

Logical layout: data ``[n, c, (d, h,) w]``, weights ``[o, c / groups, taps…]``. A bias is an addition of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlc.ir import te
from mlc.ir.graph import Attrs, FusionKind
from mlc.ir.index import Linear, as_index
from mlc.ir.types import DType, TensorType, bf16, f16, f32
from mlc.ops._broadcast import check_count
from mlc.ops.common import check, narrowed, product, product_type
from mlc.ops.registry import operator
from mlc.ops.window import SPACE, check_window, output_extents, padded, reach, taps, window_index


def check_operands(op: str, x: TensorType, w: TensorType, groups: int) -> None:
    """Refuse ranks that do not fit, and no groups.

    Raises:
        VerifyError: they do not.
    """
    check(3 <= x.rank <= 5, op, f"x has rank {x.rank}, 3 to 5 are supported")
    check(w.rank == x.rank, op, f"x has rank {x.rank} but w has rank {w.rank}")
    check(groups >= 1, op, f"{groups} groups")


def _conv_type(types: Sequence[TensorType], attrs: Attrs) -> list[TensorType]:
    check_count("conv", types, 2)
    x, w = types
    groups = attrs["groups"]
    check_operands("conv", x, w, groups)
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
    dtype = product_type("conv", x.dtype, w.dtype)
    return [narrowed(_sums(x, w, attrs, dtype), dtype)]


def _half_type(types: Sequence[TensorType], attrs: Attrs) -> list[TensorType]:
    found = _conv_type(types, attrs)
    check(found[0].dtype is f16, "conv_half", f"operands are {types[0].dtype} and {types[1].dtype}, both must be f16")
    return found


@operator("conv_half", FusionKind.COMPLEX, _half_type, strides=..., pads=..., dilations=..., groups=1)
def conv_half(inputs: Sequence[te.Tensor], attrs: Attrs) -> list[te.Tensor]:
    """``conv`` of f16 whose sums are f16 as well."""
    x, w = inputs
    return [_sums(x, w, attrs, f16, f16)]


def _wide_type(types: Sequence[TensorType], attrs: Attrs) -> list[TensorType]:
    found = _conv_type(types, attrs)
    check(found[0].dtype is bf16, "conv_wide", f"operands are {types[0].dtype} and {types[1].dtype}, both must be bf16")
    return [TensorType(found[0].shape, f32)]


@operator("conv_wide", FusionKind.COMPLEX, _wide_type, strides=..., pads=..., dilations=..., groups=1)
def conv_wide(inputs: Sequence[te.Tensor], attrs: Attrs) -> list[te.Tensor]:
    """``conv`` of bf16 whose sums stay in f32."""
    x, w = inputs
    return [_sums(x, w, attrs, f32)]


def _sums(x: te.Tensor, w: te.Tensor, attrs: Attrs, dtype: DType, sums: DType | None = None) -> te.Tensor:
    """The sums of a convolution, in the type in which those of ``dtype`` are kept unless ``sums`` names one."""
    groups, strides, dilations, pads = attrs["groups"], attrs["strides"], attrs["dilations"], attrs["pads"]
    rank, kernel = x.rank - 2, w.shape[2:]
    space = output_extents("conv", x.shape[2:], kernel, strides, pads, dilations)
    data = padded(x, pads[:rank], reach(space, kernel, strides, dilations), 0)
    depthwise = groups > 1 and groups == x.shape[1]
    per_group = w.shape[0] // groups
    c = te.reduce_axis(w.shape[1], "c")
    over = taps(kernel)

    def element(n: Linear, o: Linear, *at: Linear) -> te.Reduction:
        channel = as_index(c) if groups == 1 else (o // per_group) * w.shape[1] + as_index(c)
        term = product(data[(n, channel, *window_index(at, over, strides, dilations))], w[(o, c, *over)], dtype, sums)
        return te.sum_of(term, over if depthwise else (c, *over))

    facts = {"strides": tuple(strides), "dilations": tuple(dilations), "groups": groups}
    tag = "depthwise" if depthwise else "group_conv" if groups > 1 else "conv"
    shape, names = (x.shape[0], w.shape[0], *space), ("n", "o", *SPACE[rank])
    return te.compute(shape, element, "conv", axis_names=names, tag=tag, attrs=facts)

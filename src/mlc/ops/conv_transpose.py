"""Transposed convolution over 1 to 3 spatial axes, with groups, as one small convolution a phase.

With stride ``s``, output positions fall into ``s`` phases an axis. All positions of a phase meet the same taps of the
kernel, every ``s``-th one, so each phase is an ordinary convolution of the input itself: no zeros are put between its
elements. (Sub-pixel decomposition: Shi et al., "Is the deconvolution layer the same as a convolutional layer?", 2016.)

Logical layout: data ``[n, c, (d, h,) w]``, weights ``[c, o / groups, taps…]``. A bias is an addition of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from mlc.ir import te
from mlc.ir.expr import Expr, all_of, select, within
from mlc.ir.graph import Attrs, FusionKind
from mlc.ir.index import Linear, Var, as_index
from mlc.ir.types import TensorType
from mlc.ops._broadcast import check_count
from mlc.ops.common import check, narrowed, product, product_type
from mlc.ops.conv import check_operands
from mlc.ops.registry import operator
from mlc.ops.window import SPACE, TAPS, check_window, padded, span


def transposed_extents(
    space: Sequence[int], kernel: Sequence[int], strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int]
) -> tuple[int, ...]:
    """Spatial output shape of a transposed convolution without output padding."""
    rank = len(space)
    return tuple(
        strides[d] * (n - 1) + span(kernel[d], dilations[d]) - pads[d] - pads[rank + d] for d, n in enumerate(space)
    )


def _space(x: TensorType | te.Tensor, w: TensorType | te.Tensor, attrs: Attrs) -> tuple[int, ...]:
    given = tuple(attrs["output_shape"])
    return given or transposed_extents(x.shape[2:], w.shape[2:], attrs["strides"], attrs["pads"], attrs["dilations"])


def _type(types: Sequence[TensorType], attrs: Attrs) -> list[TensorType]:
    op = "conv_transpose"
    check_count(op, types, 2)
    x, w = types
    groups = attrs["groups"]
    check_operands(op, x, w, groups)
    dtype = product_type(op, x.dtype, w.dtype)
    window = w.shape[2:], attrs["strides"], attrs["pads"], attrs["dilations"]
    check_window(op, x.rank - 2, *window)
    check(x.shape[1] == w.shape[0], op, f"x has {x.shape[1]} channels, w takes {w.shape[0]}")
    check(x.shape[1] % groups == 0, op, f"{x.shape[1]} input channels in {groups} groups")
    space = _space(x, w, attrs)
    check(len(space) == x.rank - 2, op, f"output_shape {space} for {x.rank - 2} spatial axes")
    check(all(n >= 1 for n in space), op, f"the output has spatial shape {space}")
    return [TensorType((x.shape[0], w.shape[1] * groups, *space), dtype)]


@dataclass(frozen=True)
class PhaseAxis:
    """A spatial axis, where output position ``i*stride + k*dilation - pad`` takes tap ``k`` of input position ``i``.

    Position ``q*stride + f`` (``f`` is its phase) meets the taps ``k = first + t*step`` for ``t`` in ``range(taps)``,
    as far as the kernel reaches, and input position ``q + shift - t*dilation/g``, where ``g`` is the greatest common
    divisor of stride and dilation. Phases for which ``k*dilation`` has the wrong remainder by ``g`` meet no tap.
    """

    stride: int
    dilation: int
    pad: int
    kernel: int

    @property
    def common(self) -> int:
        return gcd(self.stride, self.dilation)

    @property
    def step(self) -> int:
        """Distance in the kernel between the taps of one phase."""
        return self.stride // self.common

    @property
    def taps(self) -> int:
        """The most taps that a phase has."""
        return -(-self.kernel // self.step)

    def first(self, phase: Linear) -> Linear:
        """The first tap of a phase, in ``range(step)``."""
        inverse = pow(self.dilation // self.common, -1, self.step) if self.step > 1 else 0
        return (phase + self.pad) % self.stride // self.common * inverse % self.step

    def source(self, q: Linear, phase: Linear, tap: Var) -> Linear:
        """The input position that tap ``tap`` of a phase meets."""
        rest = (phase + self.pad) % self.stride - self.first(phase) * self.dilation
        shift = (phase + self.pad) // self.stride + rest // self.stride
        return q + shift - as_index(tap) * (self.dilation // self.common)

    def guards(self, phase: Linear, tap: Var) -> list[Expr]:
        """What must hold for there to be such a tap."""
        meets = within((phase + self.pad) % self.stride % self.common, 0, 1)
        return [meets, within(self.first(phase) + as_index(tap) * self.step, 0, self.kernel)]


@operator(
    "conv_transpose", FusionKind.COMPLEX, _type,
    strides=..., pads=..., dilations=..., groups=1, output_shape=(),
)  # fmt: skip
def conv_transpose(inputs: Sequence[te.Tensor], attrs: Attrs) -> list[te.Tensor]:
    """The transpose of ``conv``, every phase of the output computed for itself, then put next to the others.

    ``phases[n, o, f, q] = sum(pad[n, c, q + shift(f) - t] * w[c, o, first(f) + t*stride] for c, t)``;
    ``out[n, o, h] = phases[n, o, h % stride, h // stride]``; see :class:`PhaseAxis`.

    Operands: ``x[n, c, …]``, ``w[c, o / groups, …]``. ``output_shape`` (spatial) overrides the natural one.
    """
    x, w = inputs
    groups, strides, rank = attrs["groups"], tuple(attrs["strides"]), x.rank - 2
    space = _space(x, w, attrs)
    dtype = product_type("conv_transpose", x.dtype, w.dtype)
    axes = [PhaseAxis(*a) for a in zip(strides, attrs["dilations"], attrs["pads"][:rank], w.shape[2:], strict=True)]
    counts = tuple(-(-n // s) for n, s in zip(space, strides, strict=True))
    channels, per_group = x.shape[1] // groups, w.shape[1]
    c = te.reduce_axis(channels, "c")
    over = tuple(te.reduce_axis(a.taps, name) for a, name in zip(axes, TAPS[rank], strict=True))
    data, begins = _margins(x, axes, counts, over)

    def element(n: Linear, o: Linear, *at: Linear) -> te.Reduction:
        phases, places = at[:rank], at[rank:]
        channel = as_index(c) if groups == 1 else (o // per_group) * channels + as_index(c)
        by_axis = list(zip(axes, phases, places, over, strict=True))
        source = data[(n, channel, *(a.source(q, f, t) + b for (a, f, q, t), b in zip(by_axis, begins, strict=True)))]
        weight = w[(channel, o % per_group, *(a.first(f) + as_index(t) * a.step for a, f, _, t in by_axis))]
        exists = all_of([g for a, f, _, t in by_axis for g in a.guards(f, t)])
        return te.sum_of(select(exists, product(source, weight, dtype), 0), (c, *over))

    facts = {"strides": strides, "dilations": tuple(attrs["dilations"]), "groups": groups}
    names = SPACE[rank]
    phases = te.compute(
        (x.shape[0], per_group * groups, *strides, *counts), element, "phases",
        axis_names=("n", "o", *(f"f{a}" for a in names), *names), tag="conv_transpose", attrs=facts,
    )  # fmt: skip

    def interleaved(n: Linear, o: Linear, *at: Linear) -> Expr:
        pairs = list(zip(at, strides, strict=True))
        return phases[(n, o, *(i % s for i, s in pairs), *(i // s for i, s in pairs))]

    shape = (x.shape[0], per_group * groups, *space)
    y = te.compute(shape, interleaved, "conv", axis_names=("n", "o", *names), tag="interleave")
    return [narrowed(y, dtype)]


def _margins(
    x: te.Tensor, axes: Sequence[PhaseAxis], counts: Sequence[int], over: Sequence[Var]
) -> tuple[te.Tensor, tuple[int, ...]]:
    """``x`` with zeros around it as far as taps reach, and where in it position 0 of ``x`` lies."""
    ranges = [
        a.source(as_index(te.axis(q, "q")), as_index(te.axis(a.stride, "f")), t).bounds()
        for a, q, t in zip(axes, counts, over, strict=True)
    ]
    begins = tuple(max(0, -lo) for lo, _ in ranges)
    extents = [max(n, hi + 1) + b for (_, hi), b, n in zip(ranges, begins, x.shape[2:], strict=True)]
    return padded(x, begins, extents, 0), begins

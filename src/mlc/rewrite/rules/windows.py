"""Rules of windows: a ``pad`` goes into the convolution or pool behind it, a pool over everything is a reduction, a
transposed convolution that skips nothing is a convolution, and one of a single pixel is a product.
"""

from __future__ import annotations

import numpy as np

from mlc.ir.graph import Node, Value
from mlc.ops import get
from mlc.rewrite.pattern import Match, rule
from mlc.rewrite.rewriter import Rewriter
from mlc.rewrite.rules.arithmetic import NON_NEGATIVE
from mlc.rewrite.rules.views import emit_slice, reshaped


def _spatial_pads(rw: Rewriter, m: Match) -> tuple[int, ...] | None:
    """The pads of ``p``, if it is a constant pad that grows spatial axes only."""
    pad = rw.maker(m["p"])
    assert pad is not None
    pads, rank = pad.attrs["pads"], m["x"].type.rank
    if pad.attrs["mode"] != "constant" or min(pads) < 0 or any((*pads[:2], *pads[rank : rank + 2])):
        return None
    return (*pads[2:rank], *pads[rank + 2 :])


def _with_pads(rw: Rewriter, m: Match, pads: tuple[int, ...], **attrs: object) -> Value:
    """The root without the pad in front of it, its own pads grown by ``pads``."""
    total = tuple(a + b for a, b in zip(m.root.attrs["pads"], pads, strict=True))
    return rw.emit(m.root.op, (m["x"], *m.root.inputs[1:]), {**m.root.attrs, **attrs, "pads": total})


def _fill(rw: Rewriter, m: Match) -> float:
    pad = rw.maker(m["p"])
    assert pad is not None
    return float(pad.attrs["value"])


@rule("pad_into_conv", "conv(p=pad(x), w)")
def pad_into_conv(rw: Rewriter, m: Match) -> Value | None:
    """Zeros around the input of a convolution."""
    pads = _spatial_pads(rw, m)
    return None if pads is None or _fill(rw, m) != 0 else _with_pads(rw, m, pads)


@rule("pad_into_avg_pool", "avg_pool(p=pad(x))")
def pad_into_avg_pool(rw: Rewriter, m: Match) -> Value | None:
    """Zeros that an average counts: with ``count_include_pad``, or where the pool has no padding of its own."""
    pads = _spatial_pads(rw, m)
    if pads is None or _fill(rw, m) != 0 or (any(m.root.attrs["pads"]) and not m.root.attrs["count_include_pad"]):
        return None
    return _with_pads(rw, m, pads, count_include_pad=True)


@rule("pad_into_max_pool", "max_pool(p=pad(x))")
def pad_into_max_pool(rw: Rewriter, m: Match) -> Value | None:
    """Padding that never wins: the least value; or 0 around what is never negative, if all windows meet some of it."""
    pads = _spatial_pads(rw, m)
    if pads is None:
        return None
    if _fill(rw, m) != m["x"].type.dtype.min_value:
        positive = rw.maker(m["x"])
        if _fill(rw, m) != 0 or positive is None or not _is_non_negative(positive) or not _windows_meet(m, pads):
            return None
    return _with_pads(rw, m, pads)


def _is_non_negative(node: Node) -> bool:
    floats = node.outputs[0].type.dtype.is_float
    if node.op.name not in (*NON_NEGATIVE, "relu", "clip") or node.op is not get(node.op.name):
        return False
    if node.op.name == "clip":
        lo = node.attrs["lo"]
        return lo is not None and lo >= 0
    return node.op.name == "relu" or floats


def _windows_meet(m: Match, pads: tuple[int, ...]) -> bool:
    """Whether every window has an element of ``x`` in it."""
    a, rank = m.root.attrs, len(pads) // 2
    for d, n in enumerate(m["x"].type.shape[2:]):
        starts = np.arange(m.root.outputs[0].type.shape[2 + d]) * a["strides"][d] - a["pads"][d] - pads[d]
        taps = starts[:, None] + np.arange(a["kernel"][d]) * a["dilations"][d]
        if not ((taps >= 0) & (taps < n)).any(axis=1).all():
            return False
    return rank > 0


@rule("conv_taps_in_padding", "conv(x, w)")
def conv_taps_in_padding(rw: Rewriter, m: Match) -> Value | None:
    """Taps at either end of a window that meet nothing but padding: far-reaching dilations over small images."""
    a, x, w = m.root.attrs, m["x"], m["w"]
    rank = x.type.rank - 2
    pads, dilations, kept = list(a["pads"]), list(a["dilations"]), []
    for d, (n, kernel) in enumerate(zip(x.type.shape[2:], w.type.shape[2:], strict=True)):
        last = (m.root.outputs[0].type.shape[2 + d] - 1) * a["strides"][d]
        lo, hi, step = 0, kernel, dilations[d]
        # A tap is at -pad + tap * step for the first output, and `last` further for the last one.
        while hi - lo > 1 and pads[d] >= step and last - pads[d] < 0:
            lo, pads[d] = lo + 1, pads[d] - step
        while hi - lo > 1 and pads[rank + d] >= step and (hi - lo - 1) * step - pads[d] >= n:
            hi, pads[rank + d] = hi - 1, pads[rank + d] - step
        kept.append(range(lo, hi))
        if hi - lo == 1:
            dilations[d] = 1
    if all(len(taps) == kernel for taps, kernel in zip(kept, w.type.shape[2:], strict=True)):
        return None
    weights = emit_slice(rw, w, [range(w.type.shape[0]), range(w.type.shape[1]), *kept])
    return rw.emit(m.root.op, (x, weights), {**a, "pads": tuple(pads), "dilations": tuple(dilations)})


@rule("transposed_without_strides", "conv_transpose(x, #w)")
def transposed_without_strides(rw: Rewriter, m: Match) -> Value | None:
    """With strides of 1, a convolution by the taps in reverse: ``y[p] = sum(x[p + pad - k] * w[k])``.

    Its border is ``span - 1 - pad`` wide, which no convolution has where that is negative.
    """
    a, x = m.root.attrs, m["x"]
    w = rw.constant(m["w"])
    assert w is not None
    if any(s != 1 for s in a["strides"]):
        return None
    rank, groups = x.type.rank - 2, a["groups"]
    reach = [d * (k - 1) for d, k in zip(a["dilations"], w.shape[2:], strict=True)]
    begins = [r - pad for r, pad in zip(reach, a["pads"], strict=False)]
    made = m.root.outputs[0].type.shape[2:]
    ends = [y - n + r - begin for y, n, r, begin in zip(made, x.type.shape[2:], reach, begins, strict=True)]
    if min(*begins, *ends) < 0:
        return None
    # [groups × c, o, taps…] to [groups × o, c, taps…]
    c, o, taps = w.shape[0] // groups, w.shape[1], w.shape[2:]
    turned = np.flip(w, tuple(range(2, 2 + rank))).reshape(groups, c, o, *taps).swapaxes(1, 2)
    weights = rw.new_constant(np.ascontiguousarray(turned.reshape(groups * o, c, *taps)), m["w"].name)
    attrs = {
        "strides": a["strides"],
        "pads": (*begins, *ends),
        "dilations": a["dilations"],
        "groups": groups,
    }
    return rw.emit(get("conv"), (x, weights), attrs)


@rule("conv_transpose_of_pixel", "conv_transpose(x, w)")
def conv_transpose_of_pixel(rw: Rewriter, m: Match) -> Value | None:
    """What a single pixel gives is a product: every tap of every filter is a column, whatever the strides."""
    a, x, w = m.root.attrs, m["x"], m["w"]
    y = m.root.outputs[0].type
    if any(n != 1 for n in x.type.shape[2:]) or a["groups"] != 1 or any(a["pads"]):
        return None
    whole = w.type.shape[2:] == y.shape[2:] and all(d == 1 for d in a["dilations"])
    if not whole or not x.type.dtype is w.type.dtype is y.dtype:
        return None
    rows = reshaped(rw, x, x.type.shape[:2])
    columns = reshaped(rw, w, (w.type.shape[0], w.type.size // w.type.shape[0]))
    return reshaped(rw, rw.emit(get("matmul"), (rows, columns)), y.shape)


def _over_everything(rw: Rewriter, m: Match, reduction: str) -> Value | None:
    """The reduction that a pool with one window is, where that window is the whole image."""
    a, x = m.root.attrs, m["x"]
    single = all(n == 1 for n in m.root.outputs[0].type.shape[2:])
    if not single or tuple(a["kernel"]) != x.type.shape[2:] or any(a["pads"]) or any(d != 1 for d in a["dilations"]):
        return None
    return rw.emit(get(reduction), (x,), {"axes": tuple(range(2, x.type.rank)), "keepdims": True})


@rule("avg_pool_of_everything", "avg_pool(x)")
def avg_pool_of_everything(rw: Rewriter, m: Match) -> Value | None:
    """A reduction reads whole rows of memory, whatever the extents of the image."""
    return _over_everything(rw, m, "reduce_mean")


@rule("max_pool_of_everything", "max_pool(x)")
def max_pool_of_everything(rw: Rewriter, m: Match) -> Value | None:
    """The same for the greatest element."""
    return _over_everything(rw, m, "reduce_max")


RULES = (
    pad_into_conv,
    pad_into_avg_pool,
    pad_into_max_pool,
    conv_taps_in_padding,
    conv_transpose_of_pixel,
    transposed_without_strides,
    avg_pool_of_everything,
    max_pool_of_everything,
)

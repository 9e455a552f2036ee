"""Random convolutions, transposed convolutions, pools and resizes, in one to three dimensions."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from tests.e2e.random_models.builder import Builder, Tensor, UnfitError

MAX_WORK = 2_000_000  # multiply-adds of a convolution, so that the interpreter keeps up
MODES = ("nearest", "linear", "cubic")


def image(b: Builder, least: int = 1) -> Tensor:
    """A batch of one to three dimensional images."""

    def fresh() -> Tensor:
        spatial = b.whole(1, 3) if b.flag() else 2
        most = {1: 33, 2: 17, 3: 7}[spatial]
        extents = [
            b.one_of([n for n in (5, 7, 8, 1, 2, 3, 9, 13, 16, 17, 33) if least <= n <= most]) for _ in range(spatial)
        ]
        channels = b.one_of((3, 16, 1, 4, 8, 9, 17, 32, 15, 33))
        return b.fresh((b.one_of((1, 1, 2, 3)), channels, *extents), constant=False)

    return b.pick(
        lambda t: (
            t.dtype == np.float32 and t.rank in (3, 4, 5) and min(t.shape[2:]) >= least and t.value.size <= 20_000
        ),
        fresh,
    )


def window(b: Builder, x: Tensor) -> dict[str, Any]:
    """Kernel, strides, dilations and pads that fit the image."""
    extents = x.shape[2:]
    kernel = [b.one_of([k for k in (3, 1, 2, 4, 5) if k <= n + 2]) for n in extents]
    dilations = [b.one_of((1, 2)) if b.flag(4) else 1 for _ in extents]
    pads = [b.whole(0, min(2, k - 1)) if b.flag() else (k - 1) // 2 for k in (*kernel, *kernel)]
    if any(n + pads[d] + pads[d + len(extents)] < (kernel[d] - 1) * dilations[d] + 1 for d, n in enumerate(extents)):
        raise UnfitError("the window is larger than the image")
    attrs: dict[str, Any] = {"kernel_shape": kernel, "strides": [b.one_of((1, 1, 2, 3)) for _ in extents]}
    if b.flag(8):
        attrs["auto_pad"] = b.one_of(("SAME_UPPER", "SAME_LOWER", "VALID"))
        return attrs
    return attrs | {"pads": pads, "dilations": dilations}


def weights(b: Builder, *shape: int, fan_in: int) -> Tensor:
    """Weights that keep numbers at their size, mostly constant."""
    constant = not b.flag(8)
    raw = b.fresh(shape, constant=True)
    return b.given(raw.value / np.float32(np.sqrt(fan_in)), constant=constant)


def conv(b: Builder) -> None:
    x = image(b)
    channels = x.shape[1]
    divisors = [g for g in range(1, channels + 1) if channels % g == 0]
    groups = 1 if not b.flag(3) else b.one_of([divisors[-1], *divisors[:-1]])
    per_group = b.one_of((1, 2)) if groups > 4 else b.one_of((16, 8, 1, 3, 17, 32, 33))
    attrs = window(b, x)
    taps = prod(attrs["kernel_shape"]) * channels // groups
    if taps * per_group * groups * prod(x.shape[2:]) * x.shape[0] > MAX_WORK:
        raise UnfitError("too much work")
    w = weights(b, per_group * groups, channels // groups, *attrs["kernel_shape"], fan_in=taps)
    bias = [b.fresh((per_group * groups,))] if b.flag() else []
    b.add("Conv", [x, w, *bias], group=groups, **attrs)


def conv_transpose(b: Builder) -> None:
    x = image(b)
    channels = x.shape[1]
    groups = b.one_of([g for g in (1, 1, channels, 2) if channels % g == 0])
    per_group = b.one_of((1, 2)) if groups > 4 else b.one_of((8, 1, 3, 16, 17))
    attrs = window(b, x)
    taps = prod(attrs["kernel_shape"])
    if "auto_pad" in attrs and any(k < n for k, n in zip(attrs["kernel_shape"], attrs["strides"], strict=True)):
        raise UnfitError("onnxruntime's shape is not what the standard says")
    if taps * channels * per_group * prod(x.shape[2:]) * x.shape[0] > MAX_WORK / 4:
        raise UnfitError("too much work")
    w = weights(b, channels, per_group, *attrs["kernel_shape"], fan_in=channels // groups)
    bias = [b.fresh((per_group * groups,))] if b.flag() else []
    if "pads" in attrs and b.flag(3):
        attrs["output_padding"] = [
            b.whole(0, max(s, d) - 1) for s, d in zip(attrs["strides"], attrs["dilations"], strict=True)
        ]
    b.add("ConvTranspose", [x, w, *bias], group=groups, **attrs)


def pool(b: Builder) -> None:
    op = b.one_of(("MaxPool", "AveragePool", "LpPool"))
    x = image(b)
    attrs = window(b, x)
    if op == "AveragePool":
        attrs["count_include_pad"] = b.whole(0, 1)
    if op == "LpPool":
        attrs["p"] = b.one_of((2, 1, 3))
    if op != "LpPool" or "pads" in attrs:
        attrs["ceil_mode"] = b.whole(0, 1)
    b.add(op, [x], **attrs)


def global_pool(b: Builder) -> None:
    b.add(b.one_of(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")), [image(b)])


def instance_norm(b: Builder) -> None:
    x = image(b, least=2)
    b.add("InstanceNormalization", [x, b.fresh((x.shape[1],)), b.fresh((x.shape[1],))])


def group_norm(b: Builder) -> None:
    x = image(b, least=2)
    groups = b.one_of([g for g in range(1, x.shape[1] + 1) if x.shape[1] % g == 0])
    b.add("GroupNormalization", [x, b.fresh((x.shape[1],)), b.fresh((x.shape[1],))], num_groups=groups)


def local_response(b: Builder) -> None:
    b.add("LRN", [image(b)], size=b.one_of((3, 1, 5)), alpha=0.1, beta=0.75, bias=1.0)


def resize(b: Builder) -> None:
    x = image(b)
    mode = b.one_of(MODES if x.rank == 4 else MODES[:2])
    scales = [1.0, 1.0, *[b.one_of((2.0, 1.0, 3.0, 0.5, 1.5, 0.7)) for _ in x.shape[2:]]]
    if prod(x.shape) * prod(scales) > 8000:
        raise UnfitError("too large")
    attrs: dict[str, Any] = {
        "mode": mode,
        "coordinate_transformation_mode": b.one_of(("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")),
    }
    if mode == "nearest":
        attrs["nearest_mode"] = b.one_of(("round_prefer_floor", "floor", "ceil", "round_prefer_ceil"))
    exact = all(n * s % 1 == 0 for n, s in zip(x.shape, scales, strict=True))
    # where corners are aligned, onnxruntime rounds the size before it divides by it, and the standard does not
    if b.flag() and (exact or attrs["coordinate_transformation_mode"] != "align_corners"):
        b.add("Resize", [x, None, b.given(np.array(scales, np.float32))], **attrs)
    else:
        sizes = [max(1, int(n * s)) for n, s in zip(x.shape, scales, strict=True)]
        b.add("Resize", [x, None, None, b.ints(*sizes)], **attrs)


def depth_to_space(b: Builder) -> None:
    x = b.pick(
        lambda t: t.dtype == np.float32 and t.rank == 4 and t.shape[1] % 4 == 0,
        lambda: b.fresh((1, b.one_of((4, 8, 32)), *b.shape(2, 60))),
    )
    b.add("DepthToSpace", [x], blocksize=2, mode=b.one_of(("DCR", "CRD")))


def space_to_depth(b: Builder) -> None:
    x = b.pick(
        lambda t: t.dtype == np.float32 and t.rank == 4 and t.shape[2] % 2 == 0 and t.shape[3] % 2 == 0,
        lambda: b.fresh((1, b.one_of((3, 8, 16)), 2 * b.whole(1, 4), 2 * b.whole(1, 4))),
    )
    b.add("SpaceToDepth", [x], blocksize=2)


FAMILY: dict[str, Callable[[Builder], None]] = {
    f.__name__: f
    for f in (
        conv, pool, global_pool, conv_transpose, instance_norm, group_norm, local_response, resize, depth_to_space,
        space_to_depth,
    )
}  # fmt: skip
# those that schedules and layouts are about, to be drawn more often
HEAVY: dict[str, Callable[[Builder], None]] = {f.__name__: f for f in (conv, pool, conv_transpose)}

"""Transforms of signals: Fourier transforms as products with their matrix, overlapping frames, mel filters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mlc.errors import ImportModelError
from mlc.frontend.common.axes import one_int
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import arith, normal_axis, reshape, slice_axis, transpose
from mlc.frontend.onnx.registry import OnnxNode, converter
from mlc.frontend.onnx.tensors import element_type
from mlc.ir.graph import Value

LEAST_AXES = 2  # of a signal: samples, and real with imaginary parts; of a matrix
MOST_ROWS = 8  # of a matrix whose determinant is spelt out


@converter("DFT", since=17, limits="length and axis known at compile time")
def dft(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    """A transform along one axis is linear, hence a product with the matrix of what it makes of every unit signal."""
    x, length, axis = (*inputs, None, None)[:3]
    rank = x.type.rank
    if rank < LEAST_AXES or x.type.shape[-1] not in (1, 2):
        raise ImportModelError(f"the signal is {x.type}: the last axis must hold real, or real and imaginary parts")
    given = node.attr("axis", 1) if node.opset < 20 else -2 if axis is None else one_int(ctx, axis, "the axis")
    along = normal_axis(given, rank)
    if along == rank - 1:
        raise ImportModelError("the axis is that of real and imaginary parts")
    inverse, onesided = bool(node.attr("inverse", 0)), bool(node.attr("onesided", 0))
    count, parts = x.type.shape[along], x.type.shape[-1]
    points = one_int(ctx, length, "the length") if length is not None else count
    if length is None and inverse and onesided:
        points = 2 * (count - 1)
    if points < 1:
        raise ImportModelError(f"a transform of length {points}")
    if onesided and not inverse and parts == 2:
        raise ImportModelError("one side of a transform is all there is for real signals only, this one is complex")
    matrix = _matrix(ctx, x, count, parts, points, _transform(points, inverse, onesided))
    front = [d for d in range(rank - 1) if d != along]
    rows = transpose(ctx, x, [*front, along, rank - 1])
    kept = [x.type.shape[d] for d in front]
    columns = matrix.type.shape[1]
    ends = 1 if inverse and onesided else 2
    y = ctx.add("matmul", [reshape(ctx, rows, [*kept, 1, count * parts]), matrix])
    y = reshape(ctx, y, [*kept, columns // ends, ends])
    order = list(range(rank - 2))
    return [transpose(ctx, y, [*order[:along], rank - 2, *order[along:], rank - 1])]


def _transform(points: int, inverse: bool, onesided: bool) -> Callable[[np.ndarray], np.ndarray]:
    """What becomes of complex signals ``[…, samples]``, as real and imaginary parts in turn: ``[…, numbers]``."""

    def pairs(z: np.ndarray) -> np.ndarray:
        return np.stack([z.real, z.imag], axis=-1).reshape(*z.shape[:-1], -1)

    if inverse and onesided:
        return lambda z: np.fft.irfft(z, points)
    if inverse:
        return lambda z: pairs(np.fft.ifft(z, points))
    if onesided:
        return lambda z: pairs(np.fft.rfft(z.real, points))
    return lambda z: pairs(np.fft.fft(z, points))


def _matrix(
    ctx: Context, x: Value, count: int, parts: int, points: int, transform: Callable[[np.ndarray], np.ndarray]
) -> Value:
    """``[count * parts, numbers]``: a row for every real or imaginary part of a sample."""
    ctx.check_constant((count * parts, 2 * max(count, points)), x.type.dtype.itemsize)
    units = np.eye(count, dtype=np.complex128)
    basis = units if parts == 1 else np.stack([units, 1j * units], axis=1).reshape(2 * count, count)
    return ctx.constant(transform(basis), x.type.dtype.numpy)


@converter("STFT", since=17, limits="step and length of frames known at compile time")
def stft(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    """One-dimensional convolution: every frequency is a channel, whose weights are the window times its wave."""
    signal, step, window, length = (*inputs, None, None)[:4]
    if signal.type.rank == 2:
        signal = reshape(ctx, signal, (*signal.type.shape, 1))
    if signal.type.rank != 3 or signal.type.shape[2] not in (1, 2):
        raise ImportModelError(f"the signal is {signal.type}, [batch, samples, 1 or 2] is needed")
    batch, samples, parts = signal.type.shape
    if window is None and length is None:
        raise ImportModelError("neither a window nor the length of frames is given")
    frame = window.type.size if length is None else one_int(ctx, length, "the length of frames")
    stride = one_int(ctx, step, "the step between frames")
    if not 1 <= frame <= samples or stride < 1 or (window is not None and window.type.shape != (frame,)):
        raise ImportModelError(f"frames of {frame} samples, every {stride}, of a signal of {samples}")
    onesided = bool(node.attr("onesided", 1))
    if onesided and parts == 2:
        raise ImportModelError("one side of a transform is all there is for real signals only, this one is complex")
    waves = _matrix(ctx, signal, frame, parts, frame, _transform(frame, False, onesided))
    numbers = waves.type.shape[1]
    weights = transpose(ctx, reshape(ctx, waves, (frame, parts, numbers)), [2, 1, 0])
    if window is not None:
        weights = arith(ctx, "mul", weights, window)
    frames = (samples - frame) // stride + 1
    y = ctx.add(
        "conv", [transpose(ctx, signal, [0, 2, 1]), weights], strides=(stride,), pads=(0, 0), dilations=(1,), groups=1
    )
    return [reshape(ctx, transpose(ctx, y, [0, 2, 1]), (batch, frames, numbers // 2, 2))]


@converter("MelWeightMatrix", since=17, limits="all operands known at compile time")
def mel_weight_matrix(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    """Triangles over the bins of a spectrum, evenly spaced on the mel scale: ``[length / 2 + 1, bins]``."""
    known = ctx.require_consts(inputs, "the operands")
    bins, length, rate, low, high = (float(array.reshape(())) for array in known)
    count, spectrum = int(bins), int(length) // 2 + 1
    if count < 1 or length < 1 or rate <= 0 or not 0 <= low <= high:
        raise ImportModelError(f"{count} bins from {low} to {high} Hz of {rate} samples a second in {length} points")
    ctx.check_constant((spectrum, count), 8)
    mel_low, mel_high = (2595 * np.log10(1 + f / 700) for f in (low, high))
    # the specification's reference divides by the number of edges, not of the steps between them
    edges = mel_low + np.arange(count + 2) * (mel_high - mel_low) / (count + 2)
    places = ((length + 1) * (700 * (10 ** (edges / 2595) - 1)) // rate).astype(np.int64)
    if places[-1] > spectrum:
        raise ImportModelError(f"the upper edge {high} Hz is above half of {rate} samples a second")
    bin_of = np.arange(spectrum)[:, None]
    left, centre, right = places[:-2], places[1:-1], places[2:]
    with np.errstate(divide="ignore", invalid="ignore"):
        rising = np.where(centre == left, bin_of == centre, (bin_of - left) / (centre - left))
        falling = (right - bin_of) / (right - centre)
    matrix = np.where((bin_of >= left) & (bin_of <= centre), rising, 0.0)
    matrix = np.where((bin_of >= centre) & (bin_of < right), falling, matrix)
    return [ctx.constant(matrix, element_type(node.attr("output_datatype", 1), "output_datatype").numpy)]


@converter("Det", since=11, limits="up to 8 rows")
def det(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    """Minors of the first rows, by the columns that they take: each follows from those with a row less.

    ``n * 2**(n - 1)`` products, and no division: no pivot has to be found.
    """
    (x,) = inputs
    rank = x.type.rank
    if rank < LEAST_AXES or x.type.shape[-1] != x.type.shape[-2]:
        raise ImportModelError(f"{x.type} holds no square matrices")
    n, batch = x.type.shape[-1], x.type.shape[:-2]
    if n > MOST_ROWS:
        raise ImportModelError(f"matrices of {n} rows, at most {MOST_ROWS} are supported")
    if n == 0:
        return [ctx.add("broadcast_to", [ctx.constant(np.ones((), x.type.dtype.numpy))], shape=batch)]

    def entry(row: int, column: int) -> Value:
        line = slice_axis(ctx, x, rank - 2, row, row + 1)
        return reshape(ctx, slice_axis(ctx, line, rank - 1, column, column + 1), batch)

    minors = {1 << c: entry(0, c) for c in range(n)}
    for row in range(1, n):
        longer: dict[int, Value] = {}
        for columns in (s for s in range(1 << n) if s.bit_count() == row + 1):
            own = [c for c in range(n) if columns >> c & 1]
            total: Value | None = None
            for position, c in enumerate(own):
                term = arith(ctx, "mul", entry(row, c), minors[columns & ~(1 << c)])
                negative = (row + position) % 2 == 1
                if total is None:
                    total = ctx.add("neg", [term]) if negative else term
                else:
                    total = ctx.add("sub" if negative else "add", [total, term])
            assert total is not None
            longer[columns] = total
        minors = longer
    return [minors[(1 << n) - 1]]

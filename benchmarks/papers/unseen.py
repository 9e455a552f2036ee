"""Workloads on which explorers are compared: those they were designed with, and held-out ones that decide.

Whole spaces of the templates that users tune, nothing pinned. No workload is in both sets, and none in the zoo or the
papers: odd sizes, ragged channels, all kinds of heavy operators.
"""

from __future__ import annotations

from functools import partial

from benchmarks.papers.spaces import Workload, matmul, windowed


def _window(name: str, edge: int, inner: int, outer: int, kernel: int, stride: int, groups: int = 1) -> Workload:
    grouped = "" if groups == 1 else ", depthwise" if groups == inner else f", {groups} groups"
    text = f"convolution {edge}x{edge}, {inner} -> {outer}, {kernel}x{kernel}, stride {stride}{grouped}"
    return Workload(name, text, partial(windowed, edge, inner, outer, kernel, stride, groups))


def _product(name: str, rows: int, inner: int, columns: int) -> Workload:
    return Workload(name, f"product {rows}x{inner}x{columns}", partial(matmul, rows, inner, columns))


def _named(*workloads: Workload) -> dict[str, Workload]:
    return {w.name: w for w in workloads}


# What explorers may be looked at on, changed for, and looked at again.
DESIGN = _named(
    _window("design-3x3", 30, 40, 56, 3, 1),
    _window("design-1x1", 23, 104, 72, 1, 1),
    _window("design-strided", 37, 24, 80, 3, 2),
    _window("design-depthwise", 39, 88, 88, 5, 1, 88),
    _product("design-product", 115, 160, 384),
    _product("design-narrow", 12, 400, 520),
)

# What is looked at once an explorer is as it will be.
HELD_OUT = _named(
    _window("odd-3x3", 35, 48, 72, 3, 1),
    _window("odd-5x5", 27, 24, 60, 5, 1),
    _window("odd-1x1", 19, 168, 88, 1, 1),
    _window("strided-3x3", 45, 40, 96, 3, 2),
    _window("grouped-3x3", 31, 64, 64, 3, 1, 4),
    _window("depthwise-3x3", 51, 120, 120, 3, 1, 120),
    _product("product-197", 197, 192, 576),
    _product("product-50", 50, 300, 1000),
)

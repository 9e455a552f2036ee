"""A second machine: bytes, tensors that lie in DRAM tile by tile, and three units that work at the same time.

    python -m examples.toy.overlapped

Only what differs from ``machine.py`` is here: the instruction's types, the layout, units with their tokens, and time.
"""

from collections import defaultdict, deque

import numpy as np

from mlc.ir import te
from mlc.ir.expr import cast
from mlc.ir.graph import Builder, express
from mlc.ir.interp import run_function
from mlc.ir.intrinsic import Kind, Operand, TensorIntrinsic
from mlc.ir.layout import Layout
from mlc.ir.loop import Evaluate, For, Function, Stmt, Store
from mlc.ir.types import TensorType, i8, i32
from mlc.lower import Schedule, lower
from mlc.lower.nests import nests
from mlc.lower.pipeline import nest_passes
from mlc.lower.relayout import relayout
from mlc.lower.vthread import Units
from mlc.ops import get

T = 8
CYCLES = {"load": T * T // 8, "multiply": T, "store": 4 * T * T // 8}  # of a tile: 8 bytes a cycle, or 64 products


def multiply() -> TensorIntrinsic:
    a, b, k = te.placeholder((T, T), i8, "a"), te.placeholder((T, T), i8, "b"), te.reduce_axis(T, "k")
    c = te.compute((T, T), lambda i, j: te.sum_of(cast(a[i, k], i32) * cast(b[k, j], i32), k), "c")
    places = {a: Operand("toy.in", T * T), b: Operand("toy.in", T * T), c: Operand("toy.sum", T * T)}
    return TensorIntrinsic("toy.multiply", c, places, (Kind.RESET, Kind.UPDATE))


def tiled(shape: tuple[int, ...]) -> Layout:
    return Layout(shape).split(0, T).split(2, T).reorder(0, 2, 1, 3)


def unit_of(s: Stmt) -> str | None:
    match s:
        case Store() | For(body=For(body=Store())):
            to = s if isinstance(s, Store) else s.body.body
            return "load" if to.buffer.scope == "toy.in" else "store"
        case Evaluate(intrinsic=TensorIntrinsic()):
            return "multiply"
    return None


UNITS = Units(unit_of, (("load", "multiply"), ("multiply", "store")))


def kernel(m: int, k: int, n: int, threads: int) -> Function:
    g = Builder("net")
    x, w = g.input("x", TensorType((m, k), i8)), g.input("w", TensorType((k, n), i8))
    g.add(get("matmul"), [x, w], names=["y"])
    (node,) = g.finish([]).nodes
    inputs = [te.placeholder(v.type.shape, i8, v.name) for v in node.inputs]
    (y,) = express(node, inputs)
    (y,), new = relayout([y], {t: tiled(t.shape) for t in (*inputs, y)})
    s = Schedule([y])
    acc = s.cache_write(y, "toy.sum")
    tiles = [s.cache_read(new[x], "toy.in", [acc]) for x in inputs]
    io, jo, i, j = s[y].axes
    jo, thread = s[y].split(jo, threads)
    s[y].reorder(io, jo, thread, i, j)
    s[y].vthread(thread)
    s[acc].compute_at(s[y], thread)
    *_, i, j = s[acc].axes
    outer, inner = s[acc].split(s[acc].reduce_axes[0], T)
    s[acc].reorder(outer, i, j, inner)
    s[acc].tensorize(i, multiply())
    for tile in tiles:
        s[tile].compute_at(s[acc], outer)
    return lower(s, [*(new[x] for x in inputs), y], "product", passes=nest_passes(UNITS))


def cycles(fn: Function) -> int:
    at: dict[str, int] = defaultdict(int)  # when each unit is free
    tokens: dict[tuple[str, str], deque[int]] = defaultdict(deque)
    for s, _ in nests(fn.body, lambda s: isinstance(s, Evaluate) or unit_of(s) is not None):
        match s:
            case Evaluate(name="push", args=(giver, taker)):
                tokens[giver, taker].append(at[giver])
            case Evaluate(name="pop", args=(giver, taker)):
                at[taker] = max(at[taker], tokens[giver, taker].popleft())
            case _:
                unit = unit_of(s) or ""
                at[unit] += CYCLES[unit]
    return max(at.values())


def main() -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((16, 24), (24, 32)))
    for threads in (1, 2):
        fn = kernel(16, 24, 32, threads)
        y = tiled((16, 32)).pack(np.zeros((16, 32), np.int32))
        run_function(fn, [tiled(x.shape).pack(x), tiled(w.shape).pack(w), y])
        right = np.array_equal(tiled((16, 32)).unpack(y), x.astype(np.int32) @ w.astype(np.int32))
        print(f"threads {threads}: {cycles(fn)} cycles, {'right' if right else 'WRONG'}")
    print(kernel(8, 8, 16, 2))


if __name__ == "__main__":
    main()

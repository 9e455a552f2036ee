"""An accelerator in sixty lines: an instruction, two memories, and how a product of matrices runs on it.

It multiplies tiles of 8x8 numbers, has a memory for operands and one for sums, and moves tiles between these and DRAM;
numpy plays its part. ``docs/accelerators.md`` goes through it; ``target.py`` beside it makes it a target.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.lib.stride_tricks import as_strided

from mlc.ir import te
from mlc.ir.expr import Load
from mlc.ir.graph import Node, express
from mlc.ir.index import evaluate
from mlc.ir.intrinsic import Kind, Operand, TensorIntrinsic
from mlc.ir.loop import Access, Buffer, Evaluate, For, Function, Stmt, Store
from mlc.ir.types import f32
from mlc.lower import Schedule, lower
from mlc.lower.nests import addresses, nests
from mlc.lower.pipeline import NEST_PASSES

T = 8
MEMORIES = {"toy.in": 4096, "toy.sum": 1024}  # scopes, and how many numbers each holds
Place = tuple[int | str, int]  # a space of DRAM, and the number that a tensor begins with
Word = tuple[str, list[tuple[int | str, int, int]]]  # an operation; space, first number and row length of its tiles


def multiply() -> TensorIntrinsic:
    a, b, k = te.placeholder((T, T), f32, "a"), te.placeholder((T, T), f32, "b"), te.reduce_axis(T, "k")
    c = te.compute((T, T), lambda i, j: te.sum_of(a[i, k] * b[k, j], k), "c")
    places = {a: Operand("toy.in", T * T), b: Operand("toy.in", T * T), c: Operand("toy.sum", T * T)}
    return TensorIntrinsic("toy.multiply", c, places, (Kind.RESET, Kind.UPDATE))


def kernel(node: Node, name: str) -> Function:
    inputs = [te.placeholder(v.type.shape, v.type.dtype, v.name) for v in node.inputs]
    (y,) = express(node, inputs)
    s = Schedule([y])
    acc = s.cache_write(y, "toy.sum")
    tiles = [s.cache_read(x, "toy.in", [acc]) for x in inputs]
    _, at, _, _ = s[y].tile(*s[y].axes, T, T)
    s[acc].compute_at(s[y], at)
    i, j = s[acc].axes
    outer, inner = s[acc].split(s[acc].reduce_axes[0], T)
    s[acc].reorder(outer, i, j, inner)
    s[acc].tensorize(i, multiply())
    for tile in tiles:
        s[tile].compute_at(s[acc], outer)
    return lower(s, [*inputs, y], name, passes=NEST_PASSES)


def instruction(s: Stmt) -> tuple[str, list[Access]] | None:
    match s:
        case Evaluate(name="toy.multiply", args=(kind, *tiles)):
            return str(kind), tiles
        case For(body=For(body=Store(value=Load() as of) as to)):
            places = (to.buffer, to.indices), (of.source, of.indices)
            return "move", [Access(b, indices, b.strides()) for b, indices in places]
    return None


def code(fn: Function, dram: Mapping[Buffer, Place]) -> list[Word]:
    words = []
    places = {**{b: (b.scope, first) for b, first in addresses(fn.body, MEMORIES).items()}, **dram}
    for s, env in nests(fn.body, lambda s: instruction(s) is not None):
        operation, found = instruction(s) or ("", [])
        loops = defaultdict(int, env)  # those of a move begin at 0
        tiles = [(*places[t.buffer], evaluate(t.offset, loops), t.strides[0]) for t in found]
        words.append((operation, [(space, first + at, row) for space, first, at, row in tiles]))
    return words


def execute(words: Sequence[Word], memory: Mapping[int | str, np.ndarray]) -> None:
    for operation, tiles in words:
        to, *of = (as_strided(memory[space][first:], (T, T), (4 * row, 4)) for space, first, row in tiles)
        if operation == "move":
            to[:] = of[0]
        else:
            to[:] = 0 if operation == "reset" else to + of[0] @ of[1]

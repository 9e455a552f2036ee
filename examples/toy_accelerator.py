"""An accelerator of one's own, whole: what it computes, its schedules, its code, its driver, and the target.

``docs/accelerators.md`` goes through it. The machine multiplies tiles of 8x8 numbers, has a memory for operands and one
for sums, and moves tiles between these and DRAM; here, numpy plays its part.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mlc.errors import CodegenError
from mlc.ir import te
from mlc.ir.expr import Load
from mlc.ir.graph import Graph, Node, Value, express
from mlc.ir.index import Linear, Var, evaluate
from mlc.ir.intrinsic import Kind, Operand, TensorIntrinsic
from mlc.ir.layout import Layout
from mlc.ir.loop import Access, Allocate, Buffer, Evaluate, For, Function, Seq, Stmt, Store
from mlc.ir.types import TensorType, f32
from mlc.lower import Schedule, lower
from mlc.lower.pipeline import NEST_PASSES
from mlc.targets.base import DeviceProgram, get_target

T = 8
IN, SUM = "toy.in", "toy.sum"  # scopes: the two memories
DEPTH = {IN: 4096, SUM: 1024}  # numbers that each holds
MOVE, CLEAR, MULTIPLY = range(3)  # instructions: an operation, then two or three places of a tile
SPACES = {IN: -1, SUM: -2}  # DRAM buffers are 0, 1, 2 …


# 1. What an instruction does, and where its operands lie
def multiply() -> TensorIntrinsic:
    a, b, k = te.placeholder((T, T), f32, "a"), te.placeholder((T, T), f32, "b"), te.reduce_axis(T, "k")
    c = te.compute((T, T), lambda i, j: te.sum_of(a[i, k] * b[k, j], k), "c")
    places = {a: Operand(IN, T * T), b: Operand(IN, T * T), c: Operand(SUM, T * T)}
    return TensorIntrinsic("toy.multiply", c, places, (Kind.RESET, Kind.UPDATE))


# 2. Schedules
def kernel(node: Node, name: str) -> Function:
    inputs = [te.placeholder(v.type.shape, v.type.dtype, v.name) for v in node.inputs]
    (y,) = express(node, inputs)
    s = Schedule([y])
    acc = s.cache_write(y, SUM)
    tiles = [s.cache_read(x, IN, [acc]) for x in inputs]
    _, at, _, _ = s[y].tile(*s[y].axes, T, T)
    s[acc].compute_at(s[y], at)
    i, j = s[acc].axes
    outer, inner = s[acc].split(s[acc].reduce_axes[0], T)
    s[acc].reorder(outer, i, j, inner)
    s[acc].tensorize(i, multiply())
    for tile in tiles:
        s[tile].compute_at(s[acc], outer)
    return lower(s, [*inputs, y], name, passes=NEST_PASSES)


# 3. Code: loops outside of instructions are run by the compiler, nests become instructions
class Code:
    def __init__(self, params: Mapping[Buffer, int]) -> None:
        self.space = dict(params)
        self.base: dict[Buffer, int] = {}
        self.free = dict.fromkeys(DEPTH, 0)
        self.words: list[list[int]] = []

    def place(self, b: Buffer, indices: Sequence[Linear], env: Mapping[Var, int]) -> list[int]:
        """Space, first number, and distance of rows of a tile."""
        first = evaluate(Access(b, tuple(indices), ()).offset, env)
        return [self.space[b], self.base.get(b, 0) + first, b.shape[-1]]

    def run(self, s: Stmt, env: dict[Var, int]) -> None:
        match s:
            case For(var=i, body=For(var=j, body=Store(value=Load() as of) as to)):
                first = {**env, i: 0, j: 0}
                places = self.place(to.buffer, to.indices, first), self.place(of.source, of.indices, first)
                self.words.append([MOVE, *places[0], *places[1], 0, 0, 0])
            case For():
                for k in range(s.extent):
                    self.run(s.body, {**env, s.var: k})
            case Seq():
                for c in s.stmts:
                    self.run(c, env)
            case Allocate():
                scope, old = s.buffer.scope, dict(self.free)
                self.space[s.buffer], self.base[s.buffer] = SPACES[scope], self.free[scope]
                self.free[scope] += s.buffer.size
                self.run(s.body, env)
                self.free = old
            case Evaluate(name="toy.multiply"):
                kind, *tiles = s.args
                places = [self.place(a.buffer, a.indices, env) for a in tiles]
                words = [CLEAR if kind == Kind.RESET else MULTIPLY, *(word for place in places for word in place)]
                self.words.append([*words, *[0] * (10 - len(words))])
            case _:
                raise CodegenError(f"the toy has no instruction for\n{s!r}")


# 4. What the compiler asks: which operators, how fast, and their program
class Accelerator:
    device, alignment = "toy", 64

    def options(self) -> Mapping[str, str]:
        return {}

    def refusal(self, group: Node, constants: Mapping[Value, np.ndarray]) -> str:
        body: Graph = group.attrs["body"]
        types = [v.type for v in (*group.inputs, *group.outputs)]
        if [n.op.name for n in body.nodes] != ["matmul"] or any(body.nodes[0].attrs.values()):
            return "only products of matrices as they are"
        if any(t.dtype is not f32 or t.rank != 2 or t.shape[0] % T or t.shape[1] % T for t in types):
            return f"only matrices of f32 in whole tiles of {T}x{T}"
        return ""

    def layout(self, type: TensorType) -> Layout | None:
        return None

    def estimate(self, group: Node) -> tuple[float, float]:
        (m, k), (_, n) = (v.type.shape for v in group.inputs)
        return m * n * k / 100e9, m * n * k / 10e9

    def copy_seconds(self, nbytes: int) -> float:
        return nbytes / 1e12

    def compile(self, region: Graph, name: str) -> DeviceProgram:
        given = [*region.inputs, *region.outputs]
        inside = [v for n in region.nodes for v in n.outputs if v not in region.outputs]
        spaces = {v: k for k, v in enumerate([*given, *inside, *region.constants])}
        words: list[list[int]] = []
        for k, node in enumerate(region.nodes):
            fn = kernel(node, f"{name}_{k}")
            values = (*node.inputs, *node.outputs)
            code = Code({b: spaces[v] for b, v in zip(fn.params, values, strict=True)})
            code.run(fn.body, {})
            words += code.words
        file = io.BytesIO()
        own = {f"space{spaces[v]}": np.zeros(v.type.shape, np.float32) for v in inside}
        own |= {f"space{spaces[v]}": array for v, array in region.constants.items()}
        np.savez(file, code=np.array(words, np.int64), sizes=np.array([v.type.nbytes for v in given]), **own)
        return DeviceProgram(file.getvalue(), ".toy", {"instructions": len(words)})


# 5. The target: the host's, with the accelerator beside it (entry point `mlc.targets`)
class Target:
    name, accelerator = "toy", Accelerator()

    def __init__(self) -> None:
        self._host = get_target("x86")

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Target:
        return cls()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)


# 6. The driver (entry point `mlc.devices`)
class Driver:
    def __init__(self, options: Mapping[str, str]) -> None:
        self.memory: dict[int, np.ndarray] = {}
        self.end = 64

    def allocate(self, nbytes: int) -> int:
        address, self.end = self.end, self.end + -(-nbytes // 64) * 64
        self.memory[address] = np.zeros(nbytes, np.uint8)
        return address

    def free(self, address: int) -> None:
        del self.memory[address]

    def at(self, address: int, nbytes: int) -> np.ndarray:
        base = max(b for b in self.memory if b <= address)
        return self.memory[base][address - base :][:nbytes]

    def write(self, address: int, data: np.ndarray) -> None:
        self.at(address, data.size)[:] = data

    def read(self, address: int, data: np.ndarray) -> None:
        data[:] = self.at(address, data.size)

    def load(self, program: bytes) -> Mapping[str, np.ndarray]:
        return dict(np.load(io.BytesIO(program)))

    def run(self, program: Mapping[str, np.ndarray], addresses: Sequence[int]) -> Mapping[str, Any]:
        spaces = {SPACES[scope]: np.zeros(n, np.float32) for scope, n in DEPTH.items()}
        spaces |= {int(name[5:]): a.reshape(-1) for name, a in program.items() if name.startswith("space")}
        for k, (address, nbytes) in enumerate(zip(addresses, program["sizes"].tolist(), strict=True)):
            spaces[k] = self.at(address, nbytes).view(np.float32)

        def tile(space: int, first: int, row: int) -> np.ndarray:
            return np.lib.stride_tricks.as_strided(spaces[space][first:], (T, T), (4 * row, 4))

        for operation, *words in program["code"].tolist():
            to = tile(*words[:3])
            if operation == MOVE:
                to[:] = tile(*words[3:6])
            elif operation == CLEAR:
                to[:] = 0
            else:
                to += tile(*words[3:6]) @ tile(*words[6:9])
        return {"cycles": len(program["code"]), "seconds": 1e-6}

    def close(self) -> None:
        self.memory.clear()

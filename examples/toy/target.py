"""The toy as a target: what of a model it takes, its programs, and its driver.

Entry points ``mlc.targets`` and ``mlc.devices`` name :class:`Target` and :class:`Driver`; ``docs/accelerators.md``.
"""

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from mlc.ir.graph import Graph, Node, Value
from mlc.ir.layout import Layout
from mlc.ir.loop import Function
from mlc.ir.site import Site
from mlc.ir.types import TensorType, f32
from mlc.lower.knobs import Knobs
from mlc.targets.base import CompiledRegion, DeviceProgram, LayoutChoice, get_target
from mlc.targets.hosted import HostedTarget

from .machine import MEMORIES, T, Word, code, execute, kernel

HERTZ = 1e9
CYCLES = {"move": T * T // 4, "reset": 1, "update": T}  # of a tile: 4 numbers a cycle to or from DRAM, 64 products


def cycles(words: Sequence[Word]) -> int:
    return sum(CYCLES[operation] for operation, _ in words)


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
        tile = CYCLES["reset"] + k // T * (2 * CYCLES["move"] + CYCLES["update"]) + CYCLES["move"]
        return m // T * (n // T) * tile / HERTZ, m * n * k / 10e9

    def copy_seconds(self, nbytes: int) -> float:
        return nbytes / 1e12

    def layouts(self, group: Node, site: Site, knobs: Knobs) -> LayoutChoice:
        return LayoutChoice((None,))

    def depends_on(self, group: Node, constants: Mapping[Value, np.ndarray]) -> str:
        return ""

    def kernel(self, group: Node, name: str, constants: Mapping[Value, np.ndarray], watch: Any = None) -> Function:
        return kernel(group, name)

    def codegen(self, region: CompiledRegion, name: str) -> DeviceProgram:
        given = [*region.graph.inputs, *region.graph.outputs]
        first = {"input": 0, "output": len(region.graph.inputs), "param": len(given)}
        words = []
        for call in region.calls:
            fn = region.kernels[call.kernel]
            places = [(first[s] + at, 0) if s in first else (s, at // 4) for s, at in call.args]
            words += code(fn, dict(zip(fn.params, places, strict=True)))
        own = {str(len(given) + k): array for k, array in enumerate(region.graph.constants.values())}
        own["workspace"] = np.zeros(region.workspace_bytes // 4, np.float32)
        file = io.BytesIO()
        np.savez(file, code=json.dumps(words), sizes=[v.type.nbytes for v in given], **own)
        return DeviceProgram(file.getvalue(), ".toy", {"instructions": len(words)})


class Target(HostedTarget):
    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        host = " ".join(["x86", *(f"-{key}={value}" for key, value in options.items())])
        return cls("toy", get_target(host), Accelerator())


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

    def load(self, program: bytes) -> dict[str, np.ndarray]:
        return dict(np.load(io.BytesIO(program)))

    def run(self, program: Mapping[str, np.ndarray], addresses: Sequence[int]) -> Mapping[str, Any]:
        memory: dict[int | str, np.ndarray] = {name: np.zeros(n, np.float32) for name, n in MEMORIES.items()}
        memory |= {int(name): array.reshape(-1) for name, array in program.items() if name.isdigit()}
        memory["workspace"] = program["workspace"]
        for k, (address, nbytes) in enumerate(zip(addresses, program["sizes"].tolist(), strict=True)):
            memory[k] = self.at(address, nbytes).view(np.float32)
        words = json.loads(str(program["code"]))
        execute(words, memory)
        return {"cycles": cycles(words), "seconds": cycles(words) / HERTZ}

    def close(self) -> None:
        self.memory.clear()

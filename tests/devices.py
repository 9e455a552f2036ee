"""A made-up accelerator for tests, and a pattern for anybody's own: its programs are graphs, which it interprets.

It claims products of 8-bit integers with what follows them, and wants channels in blocks of 4. Its driver has a memory
of its own, so a byte that was not copied is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np

from mlc.build import build_package
from mlc.errors import ScheduleError, UsageError
from mlc.ir.graph import Graph, Node, Value
from mlc.ir.interp import run_graph
from mlc.ir.layout import Layout, blocked
from mlc.ir.site import Site
from mlc.ir.types import TensorType, i8
from mlc.lower.knobs import Config, Knobs
from mlc.rewrite.group import body_of, config_of
from mlc.rewrite.region import is_region
from mlc.runtime import write_package
from mlc.runtime.device import Report
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import CompiledRegion, DeviceProgram, LayoutChoice, Target, get_target
from mlc.targets.bench import Bench, Program

BLOCK = 4
TAIL = ("add", "cast", "shl", "relu", "round_shift", "clip")
Refuse = Callable[[Node, Mapping[Value, np.ndarray]], str]

WRONG_WITH_TWO = False  # whether candidates of two steps are wrong
_PROGRAMS: dict[bytes, Graph] = {}


def products_of_bytes(group: Node, constants: Mapping[Value, np.ndarray]) -> str:
    """Takes a product of bytes with what follows it, if bytes come out."""
    nodes = body_of(group).nodes
    products = [n for n in nodes if n.op.name in ("conv", "matmul")]
    if len(products) != 1:
        return "not a product"
    if any(v.type.dtype is not i8 for v in products[0].inputs):
        return f"works on {products[0].inputs[0].type.dtype}"
    strange = [n.op.name for n in nodes if n.op.name not in TAIL and n is not products[0]]
    if strange:
        return f"{strange[0]} after a product"
    if any(v.type.dtype is not i8 for v in group.inputs if v not in constants):
        return "takes sums"
    return "" if group.outputs[0].type.dtype is i8 else "gives sums"


@dataclass
class ToyAccelerator:
    """What the compiler asks; ``seconds`` are those of the device and of the host for any group."""

    refuse: Refuse = products_of_bytes
    seconds: tuple[float, float] = (1.0, 2.0)
    copying: float = 0.0
    block: int = BLOCK
    device: str = "toy"
    alignment: int = 128
    shifts: bool = True  # models for it are quantised with powers of two
    compiled: list[CompiledRegion] = field(default_factory=list)

    def options(self) -> Mapping[str, str]:
        return {"speed": "5"}

    def refusal(self, group: Node, constants: Mapping[Value, np.ndarray]) -> str:
        return self.refuse(group, constants)

    def layout(self, type: TensorType) -> Layout | None:
        return blocked(type.shape, 1, self.block) if self.block else None

    def estimate(self, group: Node) -> tuple[float, float]:
        return self.seconds

    def copy_seconds(self, nbytes: int) -> float:
        return self.copying

    def schedule(self, group: Node, constants: Mapping[Value, np.ndarray], knobs: Knobs) -> None:
        knobs.discrete("steps", (1, 2, 4, 8), default=1)

    def likely(self, group: Node, constants: Mapping[Value, np.ndarray]) -> Sequence[Config]:
        return []

    def region_seconds(self, region: CompiledRegion) -> float | None:
        return None  # it has to be run

    def bench(self) -> Bench:
        return ToyBench()

    def layouts(self, group: Node, site: Site, knobs: Knobs) -> LayoutChoice:
        return LayoutChoice(tuple(self.layout(v.type) for v in group.outputs))

    def depends_on(self, group: Node, constants: Mapping[Value, np.ndarray]) -> str:
        return ""

    def kernel(self, group: Node, name: str, constants: Mapping[Value, np.ndarray], watch: object = None) -> Node:
        self.schedule(group, constants, Knobs(config_of(group)))
        if config_of(group).get("steps") == 8:
            raise ScheduleError("configuration refused: too many steps")
        return group

    def codegen(self, region: CompiledRegion, name: str) -> DeviceProgram:
        self.compiled.append(region)
        data = f"toy program {len(_PROGRAMS)}".encode()
        _PROGRAMS[data] = region.graph
        return DeviceProgram(data, ".toy", {"operations": len(region.graph.nodes)})


class ToyBench:
    """What the tuner asks. A program is in the memory of who compiled it only, so the group is interpreted instead."""

    exact = True
    device = ""

    def require(self) -> None:
        """It is always there."""

    def open(self, threads: int) -> ToyBench:
        return self

    def load(self, program: Program, node: Node, constant: Sequence[bool]) -> ToyCandidate:
        return ToyCandidate(node, _PROGRAMS[program.data] if is_region(node) else None)

    def peak(self) -> float:
        return 0.0


class ToyCandidate:
    """Takes a millisecond a group, or the part of it that its steps leave; two steps make its first result wrong."""

    def __init__(self, node: Node, region: Graph | None = None) -> None:
        self._node = node
        self._body = body_of(node) if region is None else region
        steps = [int(str(config_of(g).get("steps", 1))) for g in ((node,) if region is None else region.nodes)]
        self._wrong = 2 in steps and WRONG_WITH_TWO
        self._seconds = sum(1e-3 / n for n in steps)
        self._results: list[np.ndarray] = []

    def run(self, inputs: Sequence[np.ndarray], fill: int) -> float:
        given = {}
        for v, outer, array in zip(self._body.inputs, self._node.inputs, inputs, strict=True):
            given[v.name] = outer.type.layout.unpack(array) if outer.type.layout else array
        found = run_graph(self._body, given)
        self._results = []
        for v, array in zip(self._node.outputs, found.values(), strict=True):
            self._results.append(v.type.layout.pack(array) if v.type.layout else array)
        if self._wrong:
            self._results[0].flat[0] += 1
        return self._seconds

    def results(self) -> list[np.ndarray]:
        return self._results

    def check(self) -> None:
        pass

    def sample(self, calls: int) -> int:
        return round(calls * self._seconds * 1e9)

    def cold_sample(self, calls: int) -> int:
        return self.sample(calls)

    def close(self) -> None:
        pass


class ToyDriver:
    """What the runtime asks."""

    def __init__(self, options: Mapping[str, str]) -> None:
        if "speed" not in options:
            raise UsageError("no speed")
        self.seconds = 1 / float(options["speed"])
        self.memory: dict[int, np.ndarray] = {}
        self.open = True

    def allocate(self, nbytes: int) -> int:
        base = 4096 * (1 + max(self.memory, default=0) // 4096 + 1000)
        self.memory[base] = np.full(nbytes, 0xA5, np.uint8)
        return base

    def free(self, address: int) -> None:
        del self.memory[address]

    def load(self, program: bytes) -> Graph:
        return _PROGRAMS[program]

    def _at(self, address: int, nbytes: int) -> np.ndarray:
        base = max(b for b in self.memory if b <= address)
        assert address - base + nbytes <= self.memory[base].size
        return self.memory[base][address - base :][:nbytes]

    def write(self, address: int, data: np.ndarray) -> None:
        self._at(address, data.size)[:] = data

    def read(self, address: int, data: np.ndarray) -> None:
        data[:] = self._at(address, data.size)

    def run(self, program: Graph, addresses: Sequence[int]) -> Report:
        values = (*program.inputs, *program.outputs)
        places = [self._at(a, v.type.nbytes) for a, v in zip(addresses, values, strict=True)]
        feeds = {}
        for v, place in zip(program.inputs, places, strict=False):
            physical = place.view(v.type.dtype.numpy).reshape(v.type.physical_shape)
            feeds[v.name] = v.type.layout.unpack(physical) if v.type.layout else physical
        results = run_graph(program, feeds)
        for name, v, place in zip(program.output_names, program.outputs, places[len(program.inputs) :], strict=True):
            packed = v.type.layout.pack(results[name]) if v.type.layout else results[name]
            place[:] = np.ascontiguousarray(packed).reshape(-1).view(np.uint8)
        return {"cycles": 100 * len(program.nodes), "seconds": self.seconds}

    def close(self) -> None:
        self.open = False


class ToyPoint:
    """An entry point of it, as ``importlib.metadata`` would give it: of the driver, or of the target."""

    def __init__(self, name: str = "toy", value: str = "tests.devices:ToyDriver", error: str = "") -> None:
        self.name, self.value, self.error = name, value, error

    def load(self) -> type:
        if self.error:
            raise ImportError(self.error)
        return ToyTarget if self.value.endswith("Target") else ToyDriver


class ToyTarget:
    """The host's target, with an accelerator beside."""

    name = "toy"

    def __init__(self, accelerator: ToyAccelerator) -> None:
        self._host: Target = get_target("x86")
        self.accelerator = accelerator

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> ToyTarget:
        return cls(ToyAccelerator())

    def __getattr__(self, name: str) -> object:
        return getattr(self._host, name)


def toy_package(graph: Graph, path: Path, accelerator: ToyAccelerator) -> Path:
    """A package of a graph, divided between this machine and the toy."""
    options = CompileOptions("toy", "a test", "0" * 64, verify=True)
    target = cast(Target, ToyTarget(accelerator))
    built = build_package(graph, target, options, Observer())
    write_package(path, built.manifest, built.params, built.members)
    return path

"""What every machine's graphs go through: a device's regions as the host's graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from mlc.errors import ScheduleError, VerifyError
from mlc.ir.graph import Builder, Graph, Node, Value
from mlc.ir.layout import Layout, blocked
from mlc.ir.site import Site
from mlc.ir.types import TensorType, f32
from mlc.lower.knobs import Knobs
from mlc.ops import get
from mlc.pipeline.graph import Compiled, compile_graph
from mlc.pipeline.layouts import lay_out, parts_of
from mlc.pipeline.passes import optimise
from mlc.rewrite.group import configured
from mlc.rewrite.memory import MemoryPlan
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import LayoutChoice, get_target
from mlc.targets.hosted import HostedTarget
from tests.devices import Refuse, ToyAccelerator

OPTIONS = CompileOptions("net", "a test", "0" * 64, verify=True)


@dataclass(eq=False)
class Blocks(ToyAccelerator):
    """A device that wants channels in fours, and output channels of its weights, too."""

    refuse: Refuse = lambda group, constants: "" if group.attrs["anchor"] == "conv" else "no product"
    block: int = 4
    told_apart: bool = False
    made: list[tuple[str, list[tuple[int, ...]]]] = field(default_factory=list)

    def layouts(self, group: Node, site: Site, knobs: Knobs) -> LayoutChoice:
        weights = {k: _fours(t) for k, (t, known) in enumerate(zip(site.inputs, site.constant, strict=True)) if known}
        return LayoutChoice((_fours(group.outputs[0].type),), weights)

    def depends_on(self, group: Node, constants: Mapping[Value, np.ndarray]) -> str:
        return str(sum(float(a.sum()) for a in constants.values())) if self.told_apart else ""

    def kernel(self, group: Node, name: str, constants: Mapping[Value, np.ndarray], watch: object = None) -> Node:
        self.made.append((name, [a.shape for a in constants.values()]))
        return super().kernel(group, name, constants, watch)


def _fours(type: TensorType) -> Layout:
    return blocked(type.shape, 1, 4)


def chain(layers: int = 4, size: int = 6) -> Graph:
    """Convolutions one after the other, alike but for their weights."""
    g = Builder("chain")
    v = g.input("x", TensorType((1, 8, size, size), f32))
    rng = np.random.default_rng(0)
    for k in range(layers):
        w = g.constant(rng.standard_normal((8, 8, 1, 1)).astype(np.float32), f"w{k}")
        attrs = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1)}
        (v,) = g.add(get("conv"), [v, w], attrs, names=[f"y{k}"])
    return g.finish([v])


def region_of(accelerator: ToyAccelerator, graph: Graph) -> Compiled:
    target = HostedTarget("toy", get_target("x86"), accelerator)
    _, part = parts_of(optimise(graph, target, OPTIONS, Observer()), target)
    return compile_graph(lay_out(part, OPTIONS, Observer()), part.machine, Observer())


def test_equal_groups_of_a_region_share_a_kernel_and_constants_come_packed() -> None:
    device = Blocks()
    compiled = region_of(device, chain())
    # between blocked tensors, and at the border: their places are all that differs
    assert [c.kernel for c in compiled.calls] == ["k0_conv"] * 4
    assert device.made == [("k0_conv", [(8, 2, 1, 1, 4)])]
    ws = list(chain().constants.values())
    for k, (v, array) in enumerate(compiled.graph.constants.items()):
        assert v.type.layout == _fours(v.type)
        np.testing.assert_array_equal(v.type.layout.unpack(array), ws[k])


def test_groups_whose_kernels_depend_on_constants_are_told_apart() -> None:
    device = Blocks(told_apart=True)
    assert len(set(region_of(device, chain()).of_node.values())) == 4


def test_values_inside_a_region_share_memory_at_the_devices_alignment() -> None:
    compiled = region_of(Blocks(), chain(5, size=5))
    spaces = [[space for space, _ in call.args] for call in compiled.calls]
    assert spaces == [
        ["input", "param", "workspace"],
        *[["workspace", "param", "workspace"]] * 3,
        ["workspace", "param", "output"],
    ]
    first, second = 0, 896  # 8 x 5 x 5 floats take 800 bytes, of 128 each
    assert [call.args[-1][1] for call in compiled.calls[:-1]] == [first, second, first, second]
    assert compiled.plan.workspace_bytes == 2 * 896
    assert [call.args[1][1] for call in compiled.calls] == [0, 1, 2, 3, 4]


def test_a_plan_that_overwrites_what_is_still_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    target = HostedTarget("toy", get_target("x86"), Blocks())
    _, part = parts_of(optimise(chain(), target, OPTIONS, Observer()), target)
    graph = lay_out(part, OPTIONS, Observer())
    compile_graph(graph, part.machine, Observer(), verify=True)
    plan = part.machine.plan

    def everything_at_once(g: Graph, needs: Mapping[Node, int], over: Mapping[int, int]) -> MemoryPlan:
        good = plan(g, needs, over)
        places = {v: replace(at, at=0) for v, at in good.locations.items()}
        return replace(good, locations=places)

    monkeypatch.setattr(part.machine, "plan", everything_at_once)
    with pytest.raises(VerifyError):
        compile_graph(graph, part.machine, Observer(), verify=True)


def test_a_refusal_is_an_error_where_nobody_lays_out_anew() -> None:
    target = HostedTarget("toy", get_target("x86"), Blocks())

    class Wrong:
        def configure(self, node: Node, *asked: object) -> Node:
            return configured(node, {"steps": 3})

        def refuse(self, group: tuple[str, ...], reason: str) -> None:
            raise AssertionError

    _, part = parts_of(optimise(chain(1), target, OPTIONS, Observer()), target)
    with pytest.raises(ScheduleError, match="knob steps has no value 3"):
        compile_graph(lay_out(part, OPTIONS, Observer(), Wrong()), part.machine, Observer())

"""Layers whose tensors lie in any order of their blocks, from expressions to the simulator, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mlc
from mlc.api import quantize
from mlc.ir.graph import Value
from mlc.ir.types import TensorType, i8
from mlc.lower.knobs import Knobs, divisors
from mlc.records.files import read_records
from mlc.records.record import DECIDED, Record
from mlc.tuning.journal import Journal
from mlc.tuning.options import TuneOptions
from mlc.tuning.regions import best_together
from mlc.vdla.codegen.region import compile_layer
from mlc.vdla.config import PROFILES
from mlc.vdla.driver import open_device
from mlc.vdla.isa.instruction import Load, Mem
from mlc.vdla.layer import Convolution, Layer
from mlc.vdla.layouts import AXES, ORDER, arranged
from mlc.vdla.program import Program
from mlc.vdla.schedules import plan_layer
from tests.e2e.compiled import load
from tests.e2e.test_vdla_layers import check_layer
from tests.e2e.test_vdla_models import IMAGES, residual_network
from tests.e2e.test_vdla_regions import Layers, check_region
from tests.fuzz import examples
from tests.unit.vdla.schedules.layers import make_elementwise, make_layer, product_of

Order = tuple[str, ...]
FULL = PROFILES["full"]
ROWS_FIRST, PIXELS_FIRST = ("rows", "channels", "columns"), ("rows", "columns", "channels")


def lying(v: Value, order: Order, run: int = 0) -> Value:
    """The value in another order of its blocks."""
    return Value(v.name, TensorType(v.type.shape, v.type.dtype, arranged(v.type.shape, 16, order, run)))


def drawn(rng: np.random.Generator, v: Value) -> Value:
    """The value in a random layout of the space."""
    runs = divisors(-(-v.type.shape[1] // 16))
    run = int(rng.choice(runs)) if rng.integers(2) else 0
    return lying(v, tuple(rng.permutation([*AXES, *(["run"] if run else [])])), run)


def relaid(layer: Layer, rng: np.random.Generator) -> Layer:
    """The layer with all of its tensors in random layouts."""
    found = replace(layer, x=drawn(rng, layer.x), out=drawn(rng, layer.out))
    return found if layer.residual is None else replace(found, residual=drawn(rng, layer.residual))


@pytest.mark.sweep(6)  # every order, every other one in runs
@pytest.mark.parametrize("run", [0, 2])
@pytest.mark.parametrize("order", list(permutations(AXES)), ids="-".join)
def test_every_order(order: Order, run: int) -> None:
    order = (*order[:2], "run", *order[2:]) if run else order
    layer = make_layer((64, 64), (7, 6), bias=5000, residual=3, relu=True)
    assert layer.residual is not None
    for x, residual, out in ((order, AXES, AXES), (AXES, order, order), (order, order, order)):
        values = {
            name: lying(v, o, run if "run" in o else 0)
            for name, v, o in (("x", layer.x, x), ("residual", layer.residual, residual), ("out", layer.out, out))
        }
        check_layer(replace(layer, **values), "full")
        check_layer(replace(layer, **values), "osdi18_i8", rows=2, blocks=3, inputs=2, data="own")


def random_product(rng: np.random.Generator, narrow: bool) -> tuple[Convolution, Convolution | None]:
    """A convolution, often in groups or with strides and dilations, or a product of matrices, and it over images."""
    after: dict[str, Any] = {"shift": None}
    if narrow:
        after = {"shift": 9, "relu": bool(rng.integers(2)), "bias": rng.choice([None, 100, 500_000])}
        after["residual"] = rng.choice([None, 0, 3, 8])
    if not rng.integers(5):
        rows, c, o = (int(n) for n in rng.integers(1, 90, 3))
        like = make_layer((c, o), (rows, 1), (1, 1), **{**after, "residual": None})
        x, out = Value("x", TensorType((rows, c), i8)), Value("out", TensorType((rows, o), like.out.type.dtype))
        weights = np.ascontiguousarray(like.weights[:, :, 0, 0].T)
        product = product_of("matmul", x, weights, {"transpose_a": False, "transpose_b": False})
        return replace(like, x=x, out=out, product=product, weights=weights), like
    kernel = tuple(int(k) for k in rng.choice([1, 1, 2, 3, 5], 2))
    groups = int(rng.choice([1, 1, 1, 2, 4]))
    channels = tuple(groups * int(n) for n in rng.integers(1, 90 // groups, 2))
    if not rng.integers(5):
        groups = channels[0]
        channels = groups, groups
    layer = make_layer(
        channels, tuple(int(n) for n in rng.integers(9, 15, 2)), kernel,
        strides=tuple(int(n) for n in rng.integers(1, 3, 2)), dilations=tuple(int(n) for n in rng.integers(1, 3, 2)),
        pads=tuple(int(n) for n in rng.integers(0, 4, 2)), groups=groups, seed=int(rng.integers(1 << 30)), **after,
    )  # fmt: skip
    return layer, None


def check_random_product(seed: int) -> None:
    rng = np.random.default_rng(seed)
    profile = str(rng.choice(list(PROFILES)))
    layer, like = random_product(rng, profile != "osdi18")
    layer, knobs = relaid(layer, rng), Knobs()
    plan_layer(layer, PROFILES[profile], knobs)
    space = knobs.space()
    check_layer(layer, profile, like=like)
    for row in space.sample(rng, 2):
        check_layer(layer, profile, like=like, **space.config(row))


@examples(15)
@given(st.integers(0, 2**32))
def test_random_layouts_of_products(seed: int) -> None:
    check_random_product(seed)


@pytest.mark.slow
@examples(500)
@given(st.integers(0, 2**32))
def test_many_random_layouts_of_products(seed: int) -> None:
    check_random_product(seed)


def check_random_elementwise(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, c, h, w = (int(rng.integers(1, most)) for most in (3, 90, 15, 15))
    lift, residual = rng.choice([0, 3, 7, 9, "vector", None], 2)
    layer = make_elementwise(
        (n, c, h, w), lift=lift or 0, residual=residual, relu=True, bias=rng.choice([None, 100, 1 << 30]),
        shift=rng.choice([None, 0, 8, "vector"]), seed=seed,
    )  # fmt: skip
    moved, knobs = relaid(layer, rng), Knobs()
    plan_layer(moved, FULL, knobs)
    space = knobs.space()
    check_layer(moved, "full")
    for row in space.sample(rng, 2):
        check_layer(moved, "full", **space.config(row))


@examples(15)
@given(st.integers(0, 2**32))
def test_random_layouts_without_a_product(seed: int) -> None:
    check_random_elementwise(seed)


@pytest.mark.slow
@examples(300)
@given(st.integers(0, 2**32))
def test_many_random_layouts_without_a_product(seed: int) -> None:
    check_random_elementwise(seed)


def check_random_region(seed: int) -> None:
    rng = np.random.default_rng(seed)
    net = Layers(int(rng.integers(1, 70)), int(rng.integers(4, 12)))
    values = [net.x]
    for _ in range(int(rng.integers(2, 5))):
        x = values[int(rng.integers(len(values)))]
        channels = int(rng.integers(1, 70))
        alike = [v for v in values if v.type.shape == x.type.shape]
        added = alike[int(rng.integers(len(alike)))] if rng.integers(2) else None
        if added is not None:
            channels = x.type.shape[1]
        values.append(net.conv(x, channels, int(rng.choice([1, 3])), residual=added))
    region = net.region(values[-1])
    for v in (v for node in region.nodes for v in node.outputs if v not in region.outputs):
        v.type = drawn(rng, v).type
    check_region(region, FULL)
    check_region(region, PROFILES["osdi18_i8"])


@examples(5)
@given(st.integers(0, 2**32))
def test_random_layouts_between_the_layers_of_a_region(seed: int) -> None:
    check_random_region(seed)


@pytest.mark.slow
@examples(1000)
@given(st.integers(0, 2**32))
def test_many_random_layouts_between_the_layers_of_a_region(seed: int) -> None:
    check_random_region(seed)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's entry point, whatever was installed when."""
    point = SimpleNamespace(name="vdla", value="mlc.vdla.driver:open_device", load=lambda: open_device)
    monkeypatch.setattr("mlc.runtime.device.entry_points", lambda group: [point] if group == "mlc.devices" else [])


@pytest.mark.slow
@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize("explorer", ["guided", "alt"])
def test_a_network_with_searched_layouts_is_exact(
    explorer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search is that of the command line; what it finds in the end is forced to have a layout of the space."""
    monkeypatch.setattr("mlc.tuning.check.best_together", partial(best_together, longest=20.0))
    model, path = quantize(load(residual_network()), {"x": IMAGES}, "vdla").model, tmp_path / "r.jsonl"
    options = TuneOptions(trials=120, explorer=explorer, layouts=1)
    tuning = mlc.tune(model, "vdla", options=options, threads=1, records=path)
    assert tuning.whole is not None
    assert tuning.whole.tuned <= tuning.whole.untuned
    found = [r for r in read_records([path]).records if ORDER in r.config and r.result.seconds is not None]
    tried = {r.layouts["operand 0"] for r in found}
    assert "split(1, 16).reorder(0,3,1,4,2)" in tried
    assert len(tried) > 1 or explorer == "alt"  # an episode is eight trials, a layer's joint stage has less
    best: dict[str, Record] = {}
    for r in sorted(found, key=lambda r: r.result.seconds or 0.0, reverse=True):
        best[r.workload] = r
    forced = tmp_path / "forced.jsonl"
    with Journal(forced) as journal:
        for number, r in enumerate(best.values()):
            journal.append(replace(r, explorer=DECIDED, trial=number))
    package = mlc.compile(model, "vdla", records=(forced,), threads=1, list_layouts=True)
    assert package.placements is not None
    asked = [t for t in package.placements.tensors if t.reason == "searched"]
    assert asked
    with package.load(1) as module, mlc.compile(model).load(1) as host:
        for image in IMAGES:
            feeds = {"x": image[None]}
            np.testing.assert_array_equal(module.run(feeds)["y"], host.run(feeds)["y"])
        assert module.device_runs


def loads(program: Program) -> list[Load]:
    """Of activations; those of borders alone are none."""
    found = (i for i in program.instructions if isinstance(i, Load) and i.mem is Mem.INP)
    return [i for i in found if i.x_size and i.y_size]


def compiled(layer: Layer, **choices: Any) -> Program:
    return compile_layer(layer, FULL, plan_layer(layer, FULL, Knobs(choices)))


@pytest.mark.parametrize(
    ("order", "run", "inputs", "tail", "count"),
    [
        (AXES, 0, 4, 1, 4),  # a transfer for each block of channels
        (ROWS_FIRST, 0, 4, 1, 1),  # rows of all blocks, with their border
        (PIXELS_FIRST, 0, 4, 1, 1),
        (("channels", "rows", "run", "columns"), 2, 4, 0, 2),  # one for each run
        (("channels", "rows", "run", "columns"), 2, 2, 0, 2),  # a chunk is a run
        (ROWS_FIRST, 0, 2, 0, 2 * 6),  # rows of a part of the channels lie apart
    ],
)
def test_transfers_of_a_tile(order: Order, run: int, inputs: int, tail: int, count: int) -> None:
    layer = make_layer((64, 64), (6, 6))
    moved = replace(layer, x=lying(layer.x, order, run))
    assert len(loads(compiled(moved, head="none", tail=tail, rows=6, inputs=inputs, blocks=4))) == count


def test_tiles_of_rows_first_share_rows_of_all_blocks() -> None:
    layer = make_layer((64, 16), (12, 12))
    choices = {"head": "none", "rows": 4, "columns": 12, "inputs": 4, "blocks": 1}
    (_, *later), whole = (
        loads(compiled(replace(layer, x=lying(layer.x, order)), **choices)) for order in (ROWS_FIRST, AXES)
    )
    assert [i.y_size // 4 for i in later] == [4, 3]  # of 6 and 5 rows, two are there
    assert {i.y_size for i in whole[4:8]} == {6}

"""Layers of the accelerator, from expressions to the simulator, bit for bit, in every profile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.lower.knobs import Knobs
from mlc.vdla.check import check
from mlc.vdla.codegen.region import compile_layer
from mlc.vdla.config import PROFILES
from mlc.vdla.fold import Fold
from mlc.vdla.layer import Layer
from mlc.vdla.schedules import plan_layer
from mlc.vdla.schedules.elementwise import ask
from mlc.vdla.sim import Device, Report
from tests.fuzz import examples
from tests.unit.vdla.schedules.layers import inputs_of, make_elementwise, make_layer, wanted
from tests.unit.vdla.test_fold import laid

WITHOUT_ALU = ["osdi18_i8", "full"]


def check_layer(layer: Layer, profile: str, *, like: Layer | None = None, **choices: Any) -> Report:
    """Run a layer, and compare it with what it gives in int64.

    Args:
        layer: what is run.
        profile: of the accelerator.
        like: the same over images, where the layer's tensors are matrices.
        choices: knobs.
    """
    config = PROFILES[profile]
    plan = plan_layer(layer, config, Knobs(choices))
    program = compile_layer(layer, config, plan)
    assert check(program) == []
    values = inputs_of(layer)
    device = Device(config)
    layouts = {v.name: v.type.layout for v in (layer.x, layer.residual, layer.out) if v is not None}

    def as_stated(array: np.ndarray) -> np.ndarray:
        return array if like is None else array[0, :, :, 0].T

    for name, array in values.items():
        device.bind(name, layouts[name].pack(as_stated(array)))
    result = as_stated(wanted(like or layer, values))
    out = np.zeros_like(layouts["out"].pack(result))
    device.bind("out", out)
    report = device.run(program)
    np.testing.assert_array_equal(layouts["out"].unpack(out), result)
    assert report.total is not None
    assert report.cycles >= report.total.mac_cycles
    return report


SHAPES: list[dict[str, Any]] = [
    {"channels": (64, 64), "image": (12, 12)},
    {"channels": (64, 128), "image": (12, 12), "kernel": (1, 1), "strides": (2, 2)},
    {"channels": (20, 40), "image": (9, 7), "strides": (2, 2)},
    {"channels": (32, 48), "image": (10, 11), "dilations": (2, 2), "pads": (2, 2)},
    {"channels": (80, 112), "image": (13, 1), "kernel": (1, 1)},
    {"channels": (48, 32), "image": (6, 40), "kernel": (1, 3), "strides": (1, 3)},
    {"channels": (20, 24), "image": (7, 6), "kernel": (1, 1), "pads": (2, 3), "strides": (2, 2)},
    {"channels": (20, 24), "image": (7, 6), "pads": (17, 20)},
    {"channels": (16, 24), "image": (9, 8), "dilations": (2, 2), "strides": (2, 2), "pads": (1, 6)},
    {"channels": (1, 5), "image": (6, 5)},
]


@pytest.mark.sweep(10)
@pytest.mark.parametrize("shape", SHAPES, ids=range(len(SHAPES)))
@pytest.mark.parametrize("profile", list(PROFILES))
def test_untuned_layers(shape: dict[str, Any], profile: str) -> None:
    check_layer(make_layer(**shape, shift=None if profile == "osdi18" else 10), profile)


GROUPS: list[dict[str, Any]] = [
    {"channels": (64, 64), "image": (20, 20), "groups": 64},
    {"channels": (40, 40), "image": (9, 11), "groups": 40, "strides": (2, 2)},
    {"channels": (40, 40), "image": (7, 7), "groups": 10, "kernel": (5, 5), "pads": (2, 2)},
    {"channels": (12, 12), "image": (6, 5), "groups": 6},
    {"channels": (96, 192), "image": (7, 7), "groups": 3},
    {"channels": (64, 32), "image": (5, 6), "groups": 2, "kernel": (1, 1)},
    {"channels": (24, 24), "image": (7, 5), "groups": 2},
    {"channels": (20, 40), "image": (7, 9), "groups": 20, "strides": (2, 1)},
    {"channels": (48, 96), "image": (6, 5), "groups": 4},
    {"channels": (96, 24), "image": (4, 5), "groups": 8},
]


@pytest.mark.sweep(10)
@pytest.mark.parametrize("shape", GROUPS, ids=range(len(GROUPS)))
@pytest.mark.parametrize("profile", list(PROFILES))
def test_convolutions_in_groups(shape: dict[str, Any], profile: str) -> None:
    after = {} if profile == "osdi18" else {"bias": 5000, "residual": 3, "relu": True}
    check_layer(make_layer(**shape, shift=None if profile == "osdi18" else 10, **after), profile)


@pytest.mark.sweep(7)
@pytest.mark.parametrize(
    ("shape", "x", "y"),
    [
        ({"channels": (8, 8), "image": (9, 12), "groups": 8}, Fold(2, 1), Fold(2)),
        ({"channels": (8, 8), "image": (9, 12), "groups": 8}, Fold(2), Fold(2)),
        ({"channels": (8, 16), "image": (5, 12), "kernel": (1, 1)}, Fold(2), Fold()),
        ({"channels": (40, 6), "image": (5, 12), "kernel": (1, 1)}, Fold(), Fold(2)),
        ({"channels": (3, 8), "image": (13, 16), "strides": (2, 2)}, Fold(4, 1), Fold(2)),
        ({"channels": (3, 11), "image": (8, 8)}, Fold(4, 3), Fold()),
        (
            {"channels": (5, 7), "image": (6, 9), "dilations": (1, 2), "strides": (1, 2), "pads": (1, 2)},
            Fold(2),
            Fold(),
        ),
    ],
)
@pytest.mark.parametrize("profile", list(PROFILES))
def test_pixels_folded_into_lanes(shape: dict[str, Any], x: Fold, y: Fold, profile: str) -> None:
    after = {} if profile == "osdi18" else {"bias": 5000, "relu": True}
    check_layer(laid(make_layer(**shape, shift=None if profile == "osdi18" else 10, **after), x, y), profile)


@pytest.mark.parametrize(
    "choices", [{"rows": 2, "columns": 5, "blocks": 1}, {"head": "blocks", "tail": 1}, {"rows": 3}]
)
def test_tiles_of_folded_layers(choices: dict[str, Any]) -> None:
    layer = make_layer((8, 16), (7, 12), bias=5000, relu=True, shift="vector")
    check_layer(laid(layer, Fold(2, 1), Fold()), "full", **choices)


@pytest.mark.parametrize(
    "facts",
    [
        {"bias": 200_000, "relu": True, "shift": 10},
        {"residual": 5, "relu": True},
        {"bias": 1_000_000, "residual": 8, "shift": 13},
    ],
)
@pytest.mark.parametrize("profile", WITHOUT_ALU)
def test_bias_and_residual_by_the_matrix_unit(facts: dict[str, Any], profile: str) -> None:
    check_layer(make_layer((32, 48), (10, 9), **facts), profile)


@pytest.mark.parametrize(
    "facts",
    [
        {"bias": 1 << 30, "residual": 10, "relu": True, "shift": 22},
        {"bias": 5000, "residual": "vector", "shift": "vector"},
        {"relu": True, "most": 20_000},
        {"relu": True, "most": 49_152, "shift": 9},
        {"relu": True, "most": 1 << 20, "residual": 3, "shift": 14, "bias": 50_000},
    ],
)
def test_epilogues_by_the_alu(facts: dict[str, Any]) -> None:
    check_layer(make_layer((32, 48), (10, 9), **facts), "full")


@pytest.mark.parametrize(
    "choices",
    [
        {"buffers": "single", "rows": 4, "blocks": 2},
        {"head": "rows", "head_size": 3, "rows": 2, "blocks": 2, "inputs": 4, "data": "own", "weights": "part"},
        {"head": "rows", "head_size": 1, "lead": 2, "rows": 4, "weights": "chunk"},
        {"head": "blocks", "head_size": 5, "lead": 2, "tail": 2, "blocks": 2, "data": "own", "weights": "own"},
        {"order": "blocks", "rows": 2, "blocks": 3, "columns": 3, "inputs": 1, "slots": 3},
        {"data": "part", "weights": "part", "rows": 3, "blocks": 3, "inputs": 2},
        {"threads": "rows", "rows": 2, "blocks": 4, "inputs": 1},
        {"threads": "blocks", "rows": 4, "blocks": 2, "inputs": 2, "data": "own", "weights": "own"},
    ],
)
def test_every_knob(choices: dict[str, Any]) -> None:
    layer = make_layer((64, 128), (12, 12), (1, 1), strides=(2, 2), bias=100, residual=2, relu=True)
    check_layer(layer, "full", **choices)
    check_layer(make_layer((64, 128), (12, 12), (1, 1), strides=(2, 2), shift=None), "osdi18", **choices)


@pytest.mark.parametrize("pads", [(0, 1), (1, 0), (1, 1)])
def test_tiles_of_one_element_in_the_border(pads: tuple[int, int]) -> None:
    layer = make_layer((16, 16), (5, 5), (1, 1), pads=pads)
    check_layer(layer, "full", rows=1, columns=1, inputs=1, head="none")


@pytest.mark.parametrize("profile", list(PROFILES))
@pytest.mark.parametrize("threads", ["none", "rows", "blocks"])
def test_tokens_by_structure(threads: str, profile: str) -> None:
    shift = None if profile == "osdi18" else 9
    for shape in ({"channels": (32, 64), "image": (9, 7)}, {"channels": (64, 64), "image": (6, 6), "groups": 2}):
        after = {} if shift is None else {"bias": 100, "residual": 3, "relu": True}
        tile = {"rows": 2, "blocks": 1, "inputs": 1, "threads": threads}
        check_layer(make_layer(**shape, shift=shift, **after), profile, tokens="structure", **tile)


# odd numbers of channels, images with prime edges, a single pixel, several images
SIZES = [(1, 37, 7, 5), (1, 16, 1, 1), (2, 5, 13, 11), (1, 530, 1, 1), (1, 1, 29, 31)]


@pytest.mark.sweep(7)
@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("profile", WITHOUT_ALU)
def test_a_residual_addition_alone(shape: tuple[int, int, int, int], relu: bool, profile: str) -> None:
    scales = np.random.default_rng(sum(shape) + relu).integers(0, 8, (3, 2)).tolist()
    for lift, residual in [(0, 0), *scales]:
        layer = make_elementwise(shape, lift=lift, residual=residual, relu=relu, shift=max(lift, residual))
        check_layer(layer, profile)


ELEMENTWISE: list[dict[str, Any]] = [
    {"lift": 9, "residual": 0, "relu": True, "shift": 10},
    {"lift": 8, "residual": 9, "bias": 300_000, "relu": True, "most": 5000, "shift": "vector"},
    {"lift": "vector", "residual": "vector", "bias": 1 << 30, "shift": 21},
    {"residual": 3, "bias": 100, "shift": None},
    {"bias": 3, "relu": True, "shift": 0},
    {"relu": True, "shift": 0},
    {"relu": True, "most": 40, "shift": 0},
    {"shift": 3},
]


@pytest.mark.sweep(8)
@pytest.mark.parametrize("facts", ELEMENTWISE, ids=range(len(ELEMENTWISE)))
@pytest.mark.parametrize("adder", ["matrix", "alu"])
def test_elementwise_layers(facts: dict[str, Any], adder: str) -> None:
    for shape in ((1, 37, 13, 11), (3, 16, 1, 2)):
        check_layer(make_elementwise(shape, **facts), "full", adder=adder)


@pytest.mark.parametrize("facts", [ELEMENTWISE[k] for k in (3, 5, 7)], ids=str)
def test_elementwise_layers_by_the_matrix_unit_alone(facts: dict[str, Any]) -> None:
    check_layer(make_elementwise((1, 37, 13, 11), **facts), "osdi18_i8")


@pytest.mark.parametrize(
    "choices",
    [
        {"blocks": 1, "pixels": 13, "slots": 1},
        {"blocks": 2, "pixels": 72, "slots": 3, "order": "pixels"},
        {"threads": "rows", "pixels": 16},
        {"threads": "blocks", "blocks": 1, "pixels": 36, "order": "pixels"},
    ],
)
@pytest.mark.parametrize("adder", ["matrix", "alu"])
def test_every_knob_of_elementwise_layers(choices: dict[str, Any], adder: str) -> None:
    layer = make_elementwise((1, 37, 13, 11), lift=1, residual=9, bias=100, relu=True, shift=4)
    check_layer(layer, "full", adder=adder, **choices)


@examples(25)
@given(st.integers(0, 2**32))
def test_random_elementwise_layers_and_knobs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, c, h, w = (int(rng.integers(1, most)) for most in (3, 70, 15, 15))
    lift, residual = rng.choice([0, 3, 7, 12, "vector", None], 2)
    facts: dict[str, Any] = {
        "lift": lift or 0, "residual": residual, "relu": bool(rng.integers(2)),
        "shift": rng.choice([None, 0, 8, "vector"]), "bias": rng.choice([None, 100, 500_000, 1 << 30]),
        "most": rng.choice([None, 30, 3000]),
    }  # fmt: skip
    if facts["shift"] is None and facts["residual"] is None:
        facts["relu"] = True
    profile = "full" if rng.integers(3) else "osdi18_i8"
    if profile != "full":
        facts |= {
            "lift": rng.integers(0, 9),
            "residual": rng.choice([None, 0, 8]),
            "shift": 4,
            "most": None,
            "bias": 50,
        }
    layer, knobs = make_elementwise((n, c, h, w), seed=seed, **facts), Knobs()
    ask(layer, PROFILES[profile], knobs)
    space = knobs.space()
    check_layer(layer, profile)
    for k in space.sample(rng, 2):
        check_layer(layer, profile, **space.config(k))


@pytest.mark.parametrize(
    "shape",
    [
        {"channels": (64, 64), "image": (14, 14), "bias": 300},
        {"channels": (128, 256), "image": (14, 14), "kernel": (1, 1), "strides": (2, 2)},
        {"channels": (128, 128), "image": (6, 6), "groups": 128, "bias": 100},
        {"channels": (20, 16), "image": (17, 13), "residual": 3},
    ],
    ids=range(4),
)
def test_no_configuration_is_refused(shape: dict[str, Any]) -> None:
    layer, knobs, rng = make_layer(**shape, relu=True), Knobs(), np.random.default_rng(0)
    plan_layer(layer, PROFILES["full"], knobs)
    space = knobs.space()
    for row in space.sample(rng, 6):
        check_layer(layer, "full", **space.config(row))


# TVM (OSDI 2018), table 2: edge, channels in and out, window, stride
TABLE = {
    "C2": (56, 64, 64, 3, 1), "C3": (56, 64, 64, 1, 1), "C4": (56, 64, 128, 3, 2), "C5": (56, 64, 128, 1, 2),
    "C6": (28, 128, 128, 3, 1), "C7": (28, 128, 256, 3, 2), "C8": (28, 128, 256, 1, 2), "C9": (14, 256, 256, 3, 1),
    "C10": (14, 256, 512, 3, 2), "C11": (14, 256, 512, 1, 2), "C12": (7, 512, 512, 3, 1),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("profile", list(PROFILES))
def test_convolutions_of_resnet(name: str, profile: str) -> None:
    edge, inner, outer, kernel, stride = TABLE[name]
    shift = None if profile == "osdi18" else 12
    layer = make_layer((inner, outer), (edge, edge), (kernel, kernel), strides=(stride, stride), shift=shift)
    report = check_layer(layer, profile)
    if profile == "full":
        assert report.to_dict()["eta"] >= 0.95


# additions of ResNet-18 as layers of their own: edge and channels
@pytest.mark.slow
@pytest.mark.parametrize(("edge", "channels"), [(56, 64), (28, 128), (14, 256), (7, 512)])
@pytest.mark.parametrize("profile", WITHOUT_ALU)
def test_residual_additions_of_resnet(edge: int, channels: int, profile: str) -> None:
    report = check_layer(make_elementwise((1, channels, edge, edge), residual=3, relu=True, shift=4), profile)
    assert report.to_dict()["eta"] >= 0.9

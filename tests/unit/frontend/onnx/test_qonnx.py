"""QONNX's nodes against their definition in numpy, and what becomes of networks of few bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import mlc
from mlc.errors import ImportModelError, UnsupportedError
from mlc.ir.interp import run_graph
from tests.e2e.compiled import load, network, run_here

DOMAIN = "qonnx.custom_op.general"
RNG = np.random.default_rng(2)


def quant(x: np.ndarray, scale: Any, zero: float, bits: int, signed: int, narrow: int, rounding: str) -> np.ndarray:
    """The definition."""
    y = x / scale + np.float32(zero)
    if bits == 1 and signed:
        y = np.where(y >= 0, 1, -1)
    else:
        least = -(2 ** (bits - 1)) + narrow if signed else 0
        most = 2 ** (bits - 1) - 1 if signed else 2**bits - 1 - narrow
        y = {"ROUND": np.rint, "CEIL": np.ceil, "FLOOR": np.floor}[rounding](np.clip(y, least, most))
    return ((y - np.float32(zero)) * scale).astype(np.float32)


def model(nodes: list[Any], feeds: dict[str, np.ndarray], domain: str = DOMAIN, **stored: Any) -> mlc.Model:
    made = network(nodes, feeds, ["y"], {k: np.asarray(v, np.float32) for k, v in stored.items()})
    made.opset_import.append(helper.make_opsetid(domain, 1))
    return load(made)


def one(op: str = "Quant", inputs: tuple[str, ...] = ("x", "s", "z", "b"), domain: str = DOMAIN, **attrs: Any) -> Any:
    return helper.make_node(op, list(inputs), ["y"], domain=domain, **attrs)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    ("bits", "signed", "narrow", "zero", "rounding"),
    [
        (1, 1, 0, 0, "ROUND"), (1, 0, 0, 0, "ROUND"), (2, 0, 0, 0, "ROUND"), (2, 1, 0, 0, "ROUND"),
        (2, 1, 1, 0, "ROUND"), (3, 0, 0, 2, "ROUND"), (4, 1, 1, 0, "ROUND"), (8, 1, 0, 0, "ROUND"),
        (8, 0, 1, 0, "ROUND"), (2, 0, 0, 1, "ROUND"), (4, 0, 0, 0.5, "ROUND"), (12, 1, 0, 0, "ROUND"),
        (3, 1, 0, 0, "FLOOR"), (2, 0, 0, 0, "CEIL"), (1, 1, 0, 3, "ROUND"),
    ],
)  # fmt: skip
def test_quant(known: bool, bits: int, signed: int, narrow: int, zero: float, rounding: str) -> None:
    x = np.concatenate([RNG.uniform(-4, 6, 90), np.arange(-10, 10) / 4]).astype(np.float32)
    node = one(signed=signed, narrow=narrow, rounding_mode=rounding)
    if known:
        add = helper.make_node("Add", ["u", "q"], ["y"])
        node.output[0] = "q"
        found = model([node, add], {"u": np.zeros_like(x)}, x=x, s=0.5, z=zero, b=bits)
        feeds = {"u": np.zeros_like(x)}
    else:
        found, feeds = model([node], {"x": x}, s=0.5, z=zero, b=bits), {"x": x}
    (y,) = run_graph(found.graph, feeds).values()
    np.testing.assert_array_equal(y, quant(x, np.float32(0.5), zero, bits, signed, narrow, rounding))


@pytest.mark.parametrize("domain", [DOMAIN, "onnx.brevitas", "finn.custom_op.general"])
def test_bipolar_quant(domain: str) -> None:
    x = RNG.uniform(-1, 1, (3, 5)).astype(np.float32)
    x[0, 0] = 0
    found = model([one("BipolarQuant", ("x", "s"), domain)], {"x": x}, domain, s=0.25)
    (y,) = run_graph(found.graph, {"x": x}).values()
    np.testing.assert_array_equal(y, np.where(x >= 0, np.float32(0.25), np.float32(-0.25)))


@pytest.mark.parametrize("bipolar", [False, True], ids=["two bits of data", "signs"])
@pytest.mark.parametrize("pad", [0, 1])
def test_networks_of_few_bits_become_products_of_bits(bipolar: bool, pad: int) -> None:
    feeds = {"x": RNG.uniform(-1, 3, (1, 128, 7, 8)).astype(np.float32)}
    stored = {
        "s": 0.5, "z": 0.0, "one": 1.0, "two": 2.0, "w": RNG.standard_normal((64, 128, 3, 3)),
        "sw": RNG.uniform(0.1, 1, (64, 1, 1, 1)),
    }  # fmt: skip
    data = ["x", "s"] if bipolar else ["x", "s", "z", "two"]
    nodes = [
        helper.make_node("BipolarQuant" if bipolar else "Quant", data, ["q"], domain=DOMAIN, signed=0, narrow=0),
        helper.make_node("Quant", ["w", "sw", "z", "one"], ["wq"], domain=DOMAIN, signed=1, narrow=0),
        helper.make_node("Conv", ["q", "wq"], ["y"], pads=[pad] * 4),
    ]
    if bipolar:
        del nodes[0].attribute[:]
    found = model(nodes, feeds, **stored)
    package = mlc.compile(found, "x86 -mcpu=znver4")  # which counts bits faster than it multiplies bytes
    text = package.members["graph.txt"].decode()
    assert text.count("conv_bits(") == 1
    assert ("bits=(1)" in text) == (bipolar and not pad)
    (got,) = run_here(package, feeds).values()
    (wanted,) = run_graph(found.graph, feeds).values()
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("node", "stored", "message"),
    [
        (one(rounding_mode="HALF_UP"), {}, "rounding_mode='HALF_UP', there are ROUND, CEIL, FLOOR"),
        (one(), {"b": 2.5}, r"a bit width of 2.5; a whole number from 1 to 32 is needed"),
        (one(), {"b": 0}, "a bit width of 0.0"),
        (one(inputs=("x", "s", "z")), {}, "3 inputs; data, scale, zero point and bit width are needed"),
        (one("BipolarQuant", ("x",)), {}, "1 inputs; data and scale are needed"),
        (one(inputs=("x", "s", "z", "x")), {}, "the bit width depends on the model's inputs"),
    ],
)
def test_what_makes_no_sense_is_refused(node: Any, stored: dict[str, Any], message: str) -> None:
    with pytest.raises((ImportModelError, UnsupportedError), match=message):
        model([node], {"x": np.zeros(3, np.float32)}, **{"s": 1.0, "z": 0.0, "b": 2.0, **stored})

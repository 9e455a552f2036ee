"""Integers of 2 and 4 bits: what ONNX's reference says of the operators that take them; and files that hold them."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import mlc
from mlc.cli.main import run
from mlc.errors import ImportModelError, UsageError
from tests.e2e.compiled import LEVELS, assert_same, check, compiled, interpreted, network, reference

NARROW = {name: np.dtype(getattr(ml_dtypes, name)) for name in ("int2", "int4", "uint2", "uint4")}
each_type = pytest.mark.parametrize("name", NARROW)
node = helper.make_node


def number(name: str) -> int:
    return int(getattr(TensorProto, name.upper()))


def drawn(name: str, *shape: int, seed: int = 0) -> np.ndarray:
    """Values of a type, in bytes whose upper bits are anything."""
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8).view(NARROW[name])


def model_of(nodes: list[Any], feeds: dict[str, np.ndarray], outputs: list[str], **stored: np.ndarray) -> Any:
    """A model of the first operator set that takes 2 bits."""
    model = network(nodes, feeds, outputs, stored, opset=25)
    model.ir_version = 13
    return model


def by_reference(model: Any, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = [o.name for o in model.graph.output]
    return dict(zip(names, map(np.asarray, ReferenceEvaluator(model).run(None, feeds)), strict=True))


@each_type
def test_whatever_moves_values_takes_them(name: str) -> None:
    x, w = drawn(name, 3, 5, 7), drawn(name, 7, 1, 3, seed=1)
    one = np.array(1, NARROW[name])
    nodes = [
        node("Identity", ["x"], ["same"]),
        node("Transpose", ["x"], ["turned"], perm=[2, 0, 1]),
        node("Reshape", ["x", "shape"], ["shaped"]),
        node("Flatten", ["w"], ["flat"], axis=2),
        node("Unsqueeze", ["x", "axis"], ["wider"]),
        node("Squeeze", ["w", "axis"], ["less"]),
        node("Pad", ["x", "pads", "one"], ["padded"]),
        node("Transpose", ["w"], ["weights"]),
        node("Constant", [], ["constant"], value=numpy_helper.from_array(w[:2])),
        node("ConstantOfShape", ["shape"], ["filled"], value=numpy_helper.from_array(one.reshape(1))),
        node("Shape", ["x"], ["extents"]),
        node("Size", ["x"], ["size"]),
    ]
    outputs = [str(n.output[0]) for n in nodes]
    model = model_of(
        nodes, {"x": x}, outputs, w=w, one=one, shape=np.array([21, 5]), axis=np.array([1]),
        pads=np.array([0, 1, 2, 1, 0, 3]),
    )  # fmt: skip
    want = by_reference(model, {"x": x})
    assert_same(interpreted(model, {"x": x}), want)
    for options in LEVELS:
        assert_same(compiled(model, {"x": x}, **options), want)


@each_type
def test_conversions_wrap_from_integers_and_keep_low_bits_of_floats(name: str) -> None:
    sources = {
        "int8": np.arange(-128, 128, dtype=np.int8),
        "uint8": np.arange(256, dtype=np.uint8),
        "int64": np.array([2**40 + 3, -(2**50) - 5, 7, -1, 2**63 - 1]),
        "bool": np.array([True, False, True]),
        "float32": np.array([-300.7, -9.5, -0.9, 0, 3.7, 7.9, 8.1, 15.9, 16.2, 1e6, np.nan], np.float32),
        "float16": np.array([-60000, -1.5, 2.5, 100], np.float16),
        **{other: drawn(other, 40) for other in NARROW if other != name},
    }
    there = [node("Cast", [s], [f"to_{s}"], to=number(name)) for s in sources]
    types = {s: helper.np_dtype_to_tensor_dtype(a.dtype) for s, a in sources.items()}
    back = [node("Cast", ["x"], [f"from_{s}"], to=t) for s, t in types.items()]
    feeds = {"x": drawn(name, 33), **sources}
    outputs = [str(n.output[0]) for n in (*there, *back)]
    model = model_of([*there, *back], feeds, outputs)

    def converted(a: np.ndarray, to: np.dtype) -> np.ndarray:
        """As ml_dtypes does, which knows no way between its own types but through bytes."""
        return a.astype(np.int8).astype(to) if a.dtype.name in NARROW else a.astype(to)

    want = {f"to_{s}": converted(a, NARROW[name]) for s, a in sources.items()}
    want |= {f"from_{s}": converted(feeds["x"], a.dtype) for s, a in sources.items()}
    assert_same(interpreted(model, feeds), want)
    for options in LEVELS:
        assert_same(compiled(model, feeds, **options), want)


@each_type
def test_quantised_to_and_from(name: str) -> None:
    """With one scale, one a channel, and one a block; onnxruntime knows those of 4 bits, too."""
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((6, 10)) * 9).astype(np.float32)
    nodes, stored = [], {}
    for kind, shape, attrs in (("one", (), {}), ("row", (6,), {"axis": 0}), ("block", (6, 3), {"block_size": 4})):
        stored |= {f"s_{kind}": rng.uniform(0.5, 2, shape).astype(np.float32), f"z_{kind}": drawn(name, *shape)}
        parameters = [f"s_{kind}", f"z_{kind}"]
        nodes.append(node("QuantizeLinear", ["x", *parameters], [f"q_{kind}"], **attrs))
        nodes.append(node("DequantizeLinear", [f"q_{kind}", *parameters], [f"y_{kind}"], **attrs))
    outputs = ["y_one", "y_row", "y_block"]
    model = model_of(nodes, {"x": x}, outputs, **stored)
    if "2" in name:
        want = by_reference(model, {"x": x})
    else:
        want = reference(network(nodes, {"x": x}, outputs, stored, opset=21), {"x": x})
    check(model, {"x": x}, want)


def test_weights_of_four_bits_in_blocks() -> None:
    """How language models carry their weights: packed, in blocks along the inner axis, read by a product."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal((5, 64)).astype(np.float32)
    scales = rng.uniform(0.01, 0.1, (4, 24)).astype(np.float32)
    stored = {"w": drawn("int4", 64, 24), "s": scales, "z": drawn("int4", 4, 24, seed=1)}
    nodes = [
        node("DequantizeLinear", ["w", "s", "z"], ["plain"], axis=0, block_size=16),
        node("MatMul", ["x", "plain"], ["y"]),
    ]
    check(network(nodes, {"x": x}, ["y"], stored), {"x": x})


def test_states_of_loops_and_branches() -> None:
    info, x = helper.make_tensor_value_info, drawn("int4", 4, 4)
    body = helper.make_graph(
        [node("Identity", ["go"], ["go_on"]), node("Transpose", ["v"], ["turned"])],
        "body",
        [info("i", 7, []), info("go", 9, []), info("v", number("int4"), [4, 4])],
        [info("go_on", 9, []), info("turned", number("int4"), [4, 4])],
    )
    branches = {
        f"{which}_branch": helper.make_graph(
            [node("Pad", ["x", pads], [which])], which, [], [helper.make_empty_tensor_value_info(which)]
        )
        for which, pads in (("then", "before"), ("else", "after"))
    }
    nodes = [node("Loop", ["rounds", "", "x"], ["y"], body=body), node("If", ["cond"], ["z"], **branches)]
    feeds = {"x": x, "cond": np.array(False)}
    model = model_of(
        nodes, feeds, ["y", "z"], rounds=np.array(5), before=np.array([1, 0, 0, 0]), after=np.array([0, 0, 1, 0])
    )
    want = {"y": x.T, "z": np.concatenate([x, np.zeros((1, 4), x.dtype)])}
    assert_same(interpreted(model, feeds), want)
    assert_same(compiled(model, feeds), want)


@each_type
def test_arithmetic_that_onnx_does_not_define_is_refused(name: str) -> None:
    x = drawn(name, 4)
    ours = name.replace("uint", "u").replace("int", "i")
    for op in ("Add", "Max", "Equal", "Gather"):
        feeds = {"x": x, "b": np.array([0]) if op == "Gather" else x}
        with pytest.raises(ImportModelError, match=rf"input '\w+' cannot be {ours} in opset version"):
            compiled(model_of([node(op, ["x", "b"], ["y"])], feeds, ["y"]), feeds)


@each_type
def test_bits_are_taken_for_those_of_the_other_sign(name: str) -> None:
    other = name.removeprefix("u") if name.startswith("u") else "u" + name
    w, x = drawn(name, 9), drawn(name, 40, seed=1)
    nodes = [node("BitCast", [v], [f"{v}_bits"], to=number(other)) for v in "wx"]
    model = model_of(nodes, {"x": x}, ["w_bits", "x_bits"], w=w)
    model.opset_import[0].version = 26
    assert_same(compiled(model, {"x": x}), {"w_bits": w.view(NARROW[other]), "x_bits": x.view(NARROW[other])})


# -- files ------------------------------------------------------------------------------------------------------------
@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """In ``m.onnx`` here, a model of ``x`` and this weight, both of 4 bits: ``y = x.T`` and ``z = w``."""
    monkeypatch.chdir(tmp_path)
    w = drawn("int4", 3, 5)
    nodes = [node("Transpose", ["x"], ["y"]), node("Identity", ["w"], ["z"])]
    onnx.save(model_of(nodes, {"x": w}, ["y", "z"], w=w), "m.onnx")
    return w


def test_saved_models_and_modules_hold_them(stored: np.ndarray) -> None:
    mlc.load("m.onnx").save("m.mlc")
    x = drawn("int4", 3, 5, seed=9)
    want = {"y": x.T, "z": stored}
    for source in ("m.onnx", "m.mlc"):
        mlc.compile(mlc.load(source)).save("m.tar")
        with mlc.load_module("m.tar") as module:
            assert [str(spec) for spec in (*module.inputs, *module.outputs)] == ["i4[3,5]", "i4[5,3]", "i4[3,5]"]
            assert_same(module.run({"x": x}), want)
            with pytest.raises(UsageError, match=r"expected i4\[3,5\], got i8\[3,5\]") as caught:
                module.run({"x": x.astype(np.int8)})
            assert caught.value.hint == "convert the array with .astype(ml_dtypes.int4)"


def test_a_saved_weight_of_other_values_is_refused(stored: np.ndarray) -> None:
    mlc.load("m.onnx").save("m.mlc")
    data = Path("m.mlc").read_bytes()
    plain = stored.astype(np.int8).tobytes()
    wrong = bytes([9]) + plain[1:]
    for a, b in ((plain, wrong), (sha256(plain).hexdigest().encode(), sha256(wrong).hexdigest().encode())):
        assert data.count(a) == 1
        data = data.replace(a, b)
    Path("m.mlc").write_bytes(data)
    with pytest.raises(ImportModelError, match=r"expected values of i4 in the weight 'w', got \[-\d, 9\]"):
        mlc.load("m.mlc")


def test_on_the_command_line_bytes_stand_for_them(stored: np.ndarray, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compile", "m.onnx", "-o", "m.tar"]) == 0
    x = np.arange(-8, 7, dtype=np.int8).reshape(3, 5)
    np.savez("x.npz", x=x)
    np.savez("want.npz", y=x.T, z=stored.astype(np.int8))
    assert run(["run", "m.tar", "--inputs", "x.npz", "-o", "out.npz", "--verify", "want.npz"]) == 0
    with np.load("out.npz") as saved:
        assert saved["y"].dtype == np.int8
        np.testing.assert_array_equal(saved["y"], x.T)
    assert run(["run", "m.tar"]) == 0
    np.savez("x.npz", x=x + np.int8(3))
    capsys.readouterr()
    assert run(["run", "m.tar", "--inputs", "x.npz"]) == 2
    text = " ".join(capsys.readouterr().err.split())
    assert "input 'x': values from -5 to 9 are no i4" in text
    assert "it holds whole numbers from -8 to 7" in text


def test_inputs_that_are_fixed(stored: np.ndarray, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.arange(-8, 7, dtype=np.int8).reshape(3, 5)
    for value in ("x=x.npy", f"x={x.tolist()}"):
        np.save("x.npy", x)
        assert run(["compile", "m.onnx", "-o", "m.tar", "--const", value]) == 0
        assert run(["run", "m.tar", "-o", "out.npz"]) == 0
        with np.load("out.npz") as saved:
            np.testing.assert_array_equal(saved["y"], x.T)
    np.save("x.npy", x + np.int8(9))
    capsys.readouterr()
    assert run(["compile", "m.onnx", "-o", "m.tar", "--const", "x=x.npy"]) == 2
    assert "input 'x' is i4[3,5], the constant given for it has values from 1 to 15" in " ".join(
        capsys.readouterr().err.split()
    )

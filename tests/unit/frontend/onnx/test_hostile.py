"""Models made to crash, hang or eat all memory: each is refused quickly, with a message, or imported and right."""

from __future__ import annotations

import resource

import numpy as np
import pytest
from onnx import AttributeProto, helper

from mlc.errors import ImportModelError, MlcError
from mlc.frontend.common.problems import UnsupportedModelError
from mlc.frontend.onnx.importer import import_onnx
from mlc.ir.interp import run_graph
from tests.unit.frontend.onnx.models import BOOL, INT64, graph, imported, info, ints, model, node, operators_of, refused

pytestmark = pytest.mark.timeout(30)

ONE = np.ones(1, np.float32)
IMAGE = info("x", [1, 4, 4, 4])
X4 = info("x", [4])


def constant(op, *operands, **attrs):
    """A model of one node on constants."""
    names = [f"c{k}" for k in range(len(operands))]
    return model([node(op, names, ["y"], name="bomb", **attrs)], [], ["y"], dict(zip(names, operands, strict=True)))


def on_x(op, *operands, x=X4, opset=17, **attrs):
    """A model of one node whose first operand is the input ``x``."""
    names = [f"c{k}" for k in range(len(operands))]
    nodes = [node(op, ["x", *names], ["y"], name="bomb", **attrs)]
    return model(nodes, [x], ["y"], dict(zip(names, operands, strict=True)), opset=opset)


BOMBS = {
    "fill of 4 TB": constant("ConstantOfShape", ints(1 << 20, 1 << 20)),
    "fill of negative extent": constant("ConstantOfShape", ints(-4)),
    "tile": on_x("Tile", ints(1 << 40)),
    "tile of a constant": constant("Tile", ONE, ints(1 << 40)),
    "expand": on_x("Expand", ints(1 << 40, 4)),
    "pad": on_x("Pad", ints(1 << 40, 1 << 40)),
    "pad that crops too much": on_x("Pad", ints(-9, -9)),
    "range": constant("Range", np.array(0), np.array(1 << 60), np.array(1)),
    "range by nothing": constant("Range", np.array(0), np.array(9), np.array(0)),
    "range to infinity": constant("Range", np.float32(0), np.float32(np.inf), np.float32(1)),
    "range of NaN": constant("Range", np.float32(0), np.float32(np.nan), np.float32(1)),
    "one-hot": on_x("OneHot", np.array(1 << 40), np.ones(2, np.float32), x=info("x", [4], INT64)),
    "resize by scale": on_x("Resize", np.zeros(0, "f"), np.array([1, 1, 1e9, 1e9], np.float32), x=IMAGE),
    "resize by NaN": on_x("Resize", np.zeros(0, "f"), np.array([1, 1, np.nan, 1], np.float32), x=IMAGE),
    "einsum": model(
        [node("Einsum", ["x"] * 6, ["y"], equation="ab,cd,ef,gh,ij,kl->abcdefghijkl", name="bomb")],
        [info("x", [1000, 1000])],
        ["y"],
    ),
    "group of 0": on_x("Conv", np.ones((4, 4, 3, 3), "f"), x=IMAGE, group=0),
    "negative groups": on_x("Conv", np.ones((4, 4, 3, 3), "f"), x=IMAGE, group=-4),
    "channels that do not fit": on_x("Conv", np.ones((4, 5, 3, 3), "f"), x=IMAGE),
    "stride of 0": on_x("MaxPool", x=IMAGE, kernel_shape=[2, 2], strides=[0, 1]),
    "kernel of 2^62": on_x("MaxPool", x=IMAGE, kernel_shape=[1 << 62, 1], pads=[1 << 62, 0, 1 << 62, 0]),
    "blocks of 0": on_x("DepthToSpace", x=IMAGE, blocksize=0),
    "axis far away": on_x("Softmax", axis=1 << 40),
    "no permutation": on_x("Transpose", x=IMAGE, perm=[0, 0, 0, 0]),
    "permutation too long": on_x("Transpose", perm=[0, 1]),
    "constant index out of range": on_x("Gather", ints(100)),
    "two free extents": on_x("Reshape", ints(-1, -1)),
    "split into 2^62 parts": on_x("Split", num_outputs=1 << 62, opset=18),
    "two taps that are 2^62 apart": on_x(
        "Conv",
        np.ones((4, 4, 2, 1), "f"),
        x=IMAGE,
        dilations=[1 << 62, 1],
        strides=[1 << 62, 1],
        pads=[1 << 61, 0, 1 << 61, 0],
    ),
    "split into odd sizes": model(
        [node("Split", ["x", "s"], ["y", "z"], name="bomb")], [X4], ["y", "z"], {"s": ints(1 << 40, -(1 << 40))}
    ),
    "too many of the best": model(
        [node("TopK", ["x", "k"], ["y", "i"], name="bomb")], [X4], ["y"], {"k": ints(1 << 40)}
    ),
    "rank of 61": on_x("Unsqueeze", ints(*range(60))),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused(name):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(BOMBS[name], ImportModelError, r"^node 'bomb' \(\w+\): ")
    # in KiB: what it takes is far below what was asked for
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10


@pytest.mark.parametrize("dims", [[-3], [1 << 40], [0, 1 << 40], [1] * 40])
def test_absurd_inputs_are_refused(dims):
    refused(model([node("Relu", ["x"], ["y"])], [info("x", dims)], ["y"]), ImportModelError, "^input 'x'")


def test_constant_arithmetic_on_the_edge_does_not_kill_the_import():
    low = np.array([-(2**63), 5, 2**53 + 1], np.int64)
    by = np.array([-1, 0, 1], np.int64)
    nodes = [node("Div", ["a", "b"], ["q"]), node("Mod", ["a", "b"], ["r"]), node("Mul", ["a", "a"], ["p"])]
    found = import_onnx(model(nodes, [], ["q", "r", "p"], {"a": low, "b": by}).SerializeToString()).graph
    assert run_graph(found, {})["q"][2] == 2**53 + 1


def test_a_convolution_of_constants_is_not_computed_here():
    found = imported(constant("Conv", np.ones((1, 1, 300, 300), "f"), np.ones((1, 1, 300, 300), "f"), pads=[512] * 4))
    assert operators_of(found) == ["conv"]


def test_much_folding_is_left_to_later():
    nodes = [node("CumSum", [f"x{k}" if k else "x", "axis"], [f"x{k + 1}"]) for k in range(60)]
    stored = {"x": np.ones((64, 64), np.float32), "axis": np.array(0)}
    found = imported(model(nodes, [], ["x60"], stored))
    assert found.nodes


@pytest.mark.parametrize("count, order", [(20_000, 1), (2_000, -1)])
def test_a_long_chain_is_imported(count, order):
    nodes = [node("Relu", [f"x{k}"], [f"x{k + 1}"]) for k in range(count)][::order]
    found = import_onnx(model(nodes, [info("x0", [4])], [f"x{count}"]).SerializeToString())
    assert len(found.graph.nodes) == count


def test_a_chain_that_closes_is_refused():
    nodes = [node("Relu", [f"x{k}"], [f"x{(k + 1) % 5000}"]) for k in range(5000)]
    refused(model(nodes, [], ["x7"]), ImportModelError, r"in a circle: .* 4995 more -> ")


def test_much_is_read_by_one_node():
    proto = model([node("Sum", ["x"] * 5000, ["y"])], [X4], ["y"])
    assert imported(proto).outputs[0].type.shape == (4,)


def doubled(levels, long):
    """A body that calls the body below it twice, level by level, all under long names: as functions and as loops."""
    functions = []
    for k in range(levels):
        below = ("Neg", "") if k == 0 else (f"f{k - 1}", "own")
        body = [node(below[0], [a], [b], domain=below[1], name=b * long) for a, b in ("pq", "qr")]
        imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
        functions.append(helper.make_function("own", f"f{k}", ["p"], ["r"], body, imports))
    top = node(f"f{levels - 1}", ["x"], ["y"], domain="own", name="t" * long)
    by_calls = model([top], [X4], ["y"], functions=functions, domains={"own": 1})
    carried = [info("i", [], INT64), info("go", [], BOOL), X4]
    inner = [node("Neg", ["x"], ["z"])]
    for _ in range(levels):
        body = graph([*inner, node("Identity", ["go"], ["still"])], carried, ["still", "z"])
        inner = [node("Loop", ["two", "", "x"], ["z"], name="n" * long, body=body)]
    by_loops = model(inner, [X4], ["z"], {"two": np.array(2)})
    return by_calls, by_loops


@pytest.mark.parametrize("which", [0, 1])
def test_names_of_nested_bodies_stay_short(which):
    """Names of a level are put before those of the next; with 2^11 bodies that was gigabytes."""
    found = imported(doubled(11, 4000)[which])
    assert sum(len(v.name) + len(n.sources[0]) for n in found.nodes for v in n.outputs) < 20 << 20
    assert len({v.name for n in found.nodes for v in n.outputs}) == len(found.nodes) == 1 << 11


def test_absurd_names_are_refused():
    proto = model([node("Relu", ["x"], ["y"], name="n" * 5000)], [X4], ["y"])
    error = refused(proto, ImportModelError, "node 'nnn.*characters: 5000, the limit 'name_length' is 4096")
    assert "--limit name_length=5000" in error.hint


@pytest.mark.parametrize("what", ["inputs", "outputs"])
def test_a_hundred_thousand_inputs_or_outputs_are_refused(what):
    names = [f"t{k}" for k in range(99_000)]
    if what == "inputs":
        proto = model([node("Sum", names, ["y"])], [info(name, [1]) for name in names], ["y"])
    else:
        proto = model([node("Split", ["x"], names, num_outputs=len(names))], [info("x", [len(names)])], names, opset=18)
    error = refused(proto, ImportModelError, "inputs and outputs of the model: 99001, the limit 'arguments' is 10000")
    assert "--limit arguments=99001" in error.hint


def test_a_large_node_is_not_copied_for_every_call():
    """Each call gives an attribute, and the node that refers to it holds 4 MB besides."""
    bomb = node("Pad", ["p"], ["r"], pads=[0, 0])
    bomb.attribute.append(AttributeProto(name="mode", ref_attr_name="m", type=AttributeProto.STRING))
    bomb.doc_string = "d" * (4 << 20)
    own = helper.make_function("own", "f", ["p"], ["r"], [bomb], [helper.make_opsetid("", 2)], ["m"])
    calls = [node("f", [f"x{k}" if k else "x"], [f"x{k + 1}"], domain="own", m="constant") for k in range(2000)]
    imported(model(calls, [X4], ["x2000"], functions=[own], domains={"own": 1}))


def test_a_value_that_depends_on_thousands_of_inputs_names_a_few():
    names = [f"x{k}" for k in range(9_000)]
    nodes = [
        node("Sum", names, ["s"]),
        node("Cast", ["s"], ["shape"], to=INT64),
        node("Reshape", ["x0", "shape"], ["y"]),
    ]
    proto = model(nodes, [info(name, [1]) for name in names], ["y"])
    error = refused(proto, UnsupportedModelError, "depends on the model's inputs")
    assert "--const x0=VALUE" in error.hint
    assert len(error.hint) < 2000


ABSURD = {
    "LRN": on_x("LRN", x=IMAGE, size=1 << 62),
    "dilation of a single tap": on_x("Conv", np.ones((4, 4, 1, 1), "f"), x=IMAGE, dilations=[1 << 62, 1 << 62]),
    "stride of a single window": on_x("Conv", np.ones((4, 4, 3, 3), "f"), x=IMAGE, strides=[1 << 62, 1 << 62]),
    "pool": on_x("MaxPool", x=IMAGE, kernel_shape=[1, 4], dilations=[1 << 62, 1], strides=[1 << 62, 1 << 62]),
    "transposed": on_x("ConvTranspose", np.ones((4, 4, 1, 3), "f"), x=info("x", [1, 4, 1, 4]), strides=[1 << 62, 1]),
}


@pytest.mark.parametrize("name", ABSURD)
def test_absurd_numbers_that_nothing_depends_on_are_accepted(name):
    found = imported(ABSURD[name])
    assert all(abs(v) < 1 << 40 for n in found.nodes for a in n.attrs.values() if isinstance(a, tuple) for v in a)
    out = run_graph(found, {v.name: np.ones(v.type.shape, np.float32) for v in found.inputs})["y"]
    assert np.isfinite(out).all()


def small_model():
    """A model of a few hundred bytes with a bit of everything."""
    then, other = (graph([node(op, ["r"], ["o"])], outputs=["o"]) for op in ("Relu", "Neg"))
    leaky = node("LeakyRelu", ["q"], ["o"])
    leaky.attribute.append(AttributeProto(name="alpha", ref_attr_name="a", type=AttributeProto.FLOAT))
    own = helper.make_function("my", "f", ["q"], ["o"], [leaky], [helper.make_opsetid("", 17)], ["a"])
    nodes = [
        node("Gemm", ["x", "w"], ["g"], alpha=0.5, transB=1),
        node("Reshape", ["g", "s"], ["r"]),
        node("If", ["c"], ["d"], then_branch=then, else_branch=other),
        node("f", ["d"], ["y"], domain="my", a=0.25),
        node("Split", ["r"], ["z", ""], axis=0),
    ]
    stored = {"w": np.ones((2, 3), "f"), "s": ints(2, -1), "c": np.array(True)}
    return model(nodes, [info("x", ["n", 3])], ["y", "z"], stored, functions=[own], domains={"my": 1})


@pytest.mark.parametrize("how", ["low bit", "high bit", "zero", "cut"])
def test_every_changed_byte_is_refused_or_imported(how):
    data = small_model().SerializeToString()
    import_onnx(data, dims={"n": 2})
    outcomes = {"imported": 0, "refused": 0}
    for k, byte in enumerate(data):
        new = {"low bit": byte ^ 1, "high bit": byte ^ 0x80, "zero": 0}.get(how)
        changed = data[:k] if new is None else data[:k] + bytes([new]) + data[k + 1 :]
        try:
            import_onnx(changed, dims={"n": 2})
            outcomes["imported"] += 1
        except MlcError:
            outcomes["refused"] += 1
    assert outcomes["refused"] > 0
    assert how == "cut" or outcomes["imported"] > 0

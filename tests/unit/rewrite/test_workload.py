"""Workloads read back from their documents, and documents that are none."""

from __future__ import annotations

import json
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import WorkloadError
from mlc.ir.graph import FusionKind, Graph, Node, Operator
from mlc.ir.layout import Layout
from mlc.ir.site import Site
from mlc.ops import get
from mlc.rewrite.fuse import fuse
from mlc.rewrite.group import body_of, is_group, make_group
from mlc.rewrite.workload import read_workload, workload_document, workload_key, workload_text
from tests.fuzz import examples
from tests.unit.rewrite.helpers import Net
from tests.unit.rewrite.random_graphs import random_graph


@st.composite
def layouts(draw: st.DrawFn, shape: tuple[int, ...]) -> Layout | None:
    """A layout of some shape; most are row-major."""
    layout = Layout(shape)
    if not shape:
        return draw(st.sampled_from([None, layout]))
    for _ in range(draw(st.integers(0, 3))):
        dims = layout.physical_shape
        d = draw(st.integers(0, len(dims) - 1))
        match draw(st.sampled_from(["split", "reorder", "fuse", "pad"])):
            case "split":
                layout = layout.split(d, draw(st.sampled_from([f for f in range(1, dims[d] + 1) if dims[d] % f == 0])))
            case "reorder":
                layout = layout.reorder(*draw(st.permutations(range(len(dims)))))
            case "fuse":
                layout = layout.fuse(d, draw(st.integers(1, len(dims) - d)))
            case _:
                layout = layout.pad(d, draw(st.integers(0, 2)), draw(st.integers(0, 2)))
    if draw(st.booleans()):
        layout = layout.margin(0, 1, 2)
    return draw(st.sampled_from([None, layout]))


def read_back(node: Node, site: Site) -> None:
    document = workload_document(node, site)
    found = read_workload(json.loads(json.dumps(document)))
    assert found.site == site
    # the document is the same again, or it would have been refused; what it does not show is too
    assert (found.node.op, found.node.attrs["anchor"], found.node.attrs["alias"]) == (
        node.op, node.attrs["anchor"], node.attrs["alias"],
    )  # fmt: skip
    ours, theirs = ({a.tobytes() for a in body_of(n).constants.values()} for n in (found.node, node))
    assert ours == theirs
    assert workload_text(document).count("\n") >= len(body_of(node).nodes) + 1


@given(st.data())
@examples(60)
def test_every_group_reads_back(data: st.DataObject) -> None:
    graph = fuse(random_graph(data))
    for node in graph.nodes:
        if is_group(node):
            constant = tuple(v in graph.constants for v in node.inputs)
            types = tuple(
                v.type if c else v.type.with_layout(data.draw(layouts(v.type.shape)))
                for v, c in zip(node.inputs, constant, strict=True)
            )
            askable = data.draw(st.frozensets(st.sampled_from(range(len(types))))) if types else frozenset()
            read_back(node, Site(types, constant, data.draw(st.booleans()), askable))


def test_attributes_of_every_kind_read_back() -> None:
    n = Net()
    x = n.x(1, 8, 6, 6)
    y = n.clip(n.conv(x, n.w(8, 8, 3, 3), strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1)), lo=-0.0, hi=6.5)
    graph = n(n.mul(n.gelu(y, approximate="tanh"), n.c([1e-9])), n.add(y, n.c(-0.0)))
    node = make_group(list(graph.nodes), graph.constants, 0, graph.outputs)
    assert len(node.outputs) == 2
    site = Site(tuple(v.type for v in node.inputs), (False, True))
    read_back(node, site)
    literals = workload_document(node, site)["literals"]
    assert [v["data"] for v in literals] == [np.float32(x).tobytes().hex() for x in (1e-9, -0.0)]


def test_equal_literals_of_a_group_are_one() -> None:
    n = Net()
    x = n.x(4)
    graph = n(n.mul(n.add(x, n.c([2.0])), n.c([2.0])))
    node = make_group(list(graph.nodes), graph.constants, 0)
    assert len(body_of(node).constants) == 1
    read_back(node, Site((x.type,), (False,), row_major=True))


def document_of(graph: Graph) -> dict[str, Any]:
    node = make_group(list(graph.nodes), graph.constants, 0)
    return workload_document(node, Site([v.type for v in node.inputs], [v in graph.constants for v in node.inputs]))


def example() -> dict[str, Any]:
    """A document to break."""
    n = Net()
    x = n.conv(n.x(1, 8, 6, 6), n.w(8, 8, 3, 3), strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1))
    document = document_of(n(n.clip(n.add(x, n.c([3.0])), lo=0.0, hi=6.0)))
    document["operands"][0]["layout"] = [["split", 1, 4], ["reorder", 0, 1, 3, 4, 2]]
    return json.loads(json.dumps(document))  # type: ignore[no-any-return]


def test_the_example_is_sound() -> None:
    assert read_workload(example()).site.inputs[0].physical_shape == (1, 2, 6, 6, 4)
    assert workload_text(example()).splitlines() == [
        "(f32[1,8,6,6]@split(1,4).reorder(0,1,3,4,2), const f32[8,8,3,3]) -> any",
        "%2 = f32[1] 00004040",
        "%3 = conv(%0, %1, dilations=[1, 1], groups=1, pads=[1, 1, 1, 1], strides=[1, 1]) -> f32[1,8,6,6]",
        "%4 = add(%3, %2) -> f32[1,8,6,6]",
        "%5 = clip(%4, hi=6.0, lo=0.0) -> f32[1,8,6,6]",
        "return %5",
    ]


def test_equal_groups_have_one_key_and_others_another() -> None:
    assert workload_key(example()) == workload_key(dict(reversed(example().items())))
    other = example()
    other["literals"][0]["data"] = "00004041"
    assert workload_key(other) != workload_key(example())


GONE = object()
CALL = {"op": "relu", "inputs": [0], "attrs": {}, "outputs": [{"dtype": "f32", "shape": [1, 8, 6, 6]}]}


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("", [], "the whole: expected an object"),
        ("", 7, "the whole: expected an object"),
        ("more", 1, "more: is not a field"),
        ("operands", GONE, "operands: is missing"),
        ("operands", {}, "operands: expected a list"),
        ("operands.0", [], r"operands\[0\]: expected an object"),
        ("operands.0.name", "x", r"operands\[0\]\.name: is not a field"),
        ("operands.1.constant", False, "not written as it would be"),
        ("operands.2", {"dtype": "f32", "shape": [4]}, r"nodes\[1\]\.outputs: expected results"),
        ("device", 3, "device: expected a string"),
        ("routine", "top_k", "'top_k' is an opaque routine"),
        ("row_major", 1, "row_major: expected true or false"),
        ("operands.0.dtype", "f33", r"operands\[0\]\.dtype: expected an element type"),
        ("operands.0.dtype", [], r"operands\[0\]\.dtype: expected an element type"),
        ("operands.0.shape", [1, 8, 6, -6], r"operands\[0\]\.shape\[3\]: expected an integer"),
        ("operands.0.shape", [1 << 25, 8, 1, 0], "an extent in a workload is beyond the limit"),
        ("operands.0.shape", [9999999, 9999999], "in a workload, the limit is"),
        ("operands.0.shape", [1] * 40, "rank: 40 in a workload, the limit is 32"),
        ("operands.0.layout", "split", r"operands\[0\]\.layout: expected a list"),
        ("operands.0.layout.0", ["split", 1, 3], r"layout\[0\]: .*does not divide"),
        ("operands.0.layout.0", ["split", 1, 0], r"layout\[0\]"),
        ("operands.0.layout.0", ["split", 1], r"layout\[0\]: expected 2 numbers after split"),
        ("operands.0.layout.0", ["cut", 1, 4], r"layout\[0\]: expected one of split, fuse"),
        ("operands.0.layout.0", [], r"layout\[0\]: expected one of"),
        ("operands.0.layout.0", [["split"], 1, 4], r"layout\[0\]: expected one of"),
        ("operands.0.layout.0", ["split", 1.0, 4], r"layout\[0\]: expected a whole number"),
        ("operands.0.layout.0", ["pad", 0, 0, 1 << 30], "in a workload, the limit is|beyond the limit"),
        ("operands.0.layout", [["margin", 1, 4, 0], ["pad", 1, 0, 1]], r"layout\[1\]: .*follows a margin"),
        ("operands.0.layout", [["fuse", 0, 1]] * 100, "a list of at most 64"),
        ("literals.0", {}, r"literals\[0\]\.dtype: is missing"),
        ("literals.0.data", "0g", r"literals\[0\]\.data: expected hexadecimal"),
        ("literals.0.data", 7, r"literals\[0\]\.data: expected a string"),
        ("literals.0.data", "00", r"literals\[0\]: expected one element, and its 4 bytes"),
        ("literals.0.dtype", "f64", r"literals\[0\]: expected one element, and its 8 bytes"),
        ("literals.0.shape", [2], r"literals\[0\]: expected one element"),
        ("literals.0.data", "00004040 ", "not written as it would be"),
        ("nodes", [], "number of one of the 3 values"),
        ("nodes", [CALL] * 600, "nodes: expected a list of at most 512"),
        ("nodes.0", 1, r"nodes\[0\]: expected an object"),
        ("nodes.0.sources", [], r"nodes\[0\]\.sources: is not a field"),
        ("nodes.0.op", 1, r"nodes\[0\]\.op: expected a string"),
        ("nodes.0.op", "convolve", "no operator 'convolve'"),
        ("nodes.0.own", "conv<…>", "'conv' is a user's own operator"),
        ("nodes.0.op", "top_k", "top_k"),
        ("nodes.0.inputs", [0], r"nodes\[0\] \(conv\)"),
        ("nodes.0.inputs", [0, 9], r"nodes\[0\]\.inputs\[1\]: expected the number of one of the 3 values"),
        ("nodes.0.inputs", [0, True], r"nodes\[0\]\.inputs\[1\]: expected the number"),
        ("nodes.0.inputs", [0] * 2000, r"nodes\[0\]\.inputs: expected a list of at most"),
        ("nodes.0.attrs", [], r"nodes\[0\]\.attrs: expected an object"),
        ("nodes.0.attrs.groups", 3, r"nodes\[0\] \(conv\)"),
        ("nodes.0.attrs.groups", "1", "conv.groups is '1', not a value like 1"),
        ("nodes.0.attrs.groups", True, "conv.groups is True"),
        ("nodes.0.attrs.groups", {"array": 1}, r"nodes\[0\]\.attrs\.groups: expected a number, text"),
        ("nodes.0.attrs.groups", 1 << 70, r"nodes\[0\]\.attrs\.groups: expected a number"),
        ("nodes.0.attrs.pads", [[[[[[[[[[1]]]]]]]]]], r"nodes\[0\]\.attrs\.pads: expected a number"),
        ("nodes.0.attrs.group", 1, "conv has no attribute group"),
        ("nodes.0.outputs.0.shape", [1, 8, 6, 5], r"nodes\[0\]\.outputs: expected results of type f32\[1,8,6,6\]"),
        ("nodes.0.outputs.0.layout", [], r"nodes\[0\]\.outputs: expected results of type"),
        ("outputs", [], "outputs: a workload returns what its operators make"),
        ("outputs", [0], "outputs: a workload returns what its operators make"),
        ("outputs", ["5"], r"outputs\[0\]: expected the number"),
    ],
)
def test_refusals(path: str, value: object, message: str) -> None:
    document: Any = {"": example()}
    *outer, last = [part for part in path.split(".") if part] or [""]
    at = document if path == "" else document[""]
    for part in outer:
        at = at[int(part) if part.isdigit() else part]
    if isinstance(at, list) and int(last) == len(at):
        at.append(value)
    elif value is GONE:
        del at[last]
    else:
        at[int(last) if isinstance(at, list) else last] = value
    with pytest.raises(WorkloadError, match=message):
        read_workload(document[""])


def test_what_doubles_with_every_operator_is_refused() -> None:
    n = Net()
    x = n.x(8)
    for _ in range(40):
        x = n.add(x, x)
    with pytest.raises(WorkloadError, match="operations an element, the limit is"):
        read_workload(document_of(n(x)))


def test_a_users_own_operator_is_refused() -> None:
    own = Operator("own", FusionKind.INJECTIVE, lambda types, attrs: types, lambda inputs, attrs: inputs)
    n = Net()
    x = n.x(3)
    (y,) = n.builder.add(own, [n.neg(x)])
    with pytest.raises(WorkloadError, match="'own' is a user's own operator"):
        read_workload(document_of(n(y)))


@given(st.data())
@examples(200)
def test_whatever_a_document_holds_it_is_refused_or_read(data: st.DataObject) -> None:
    text = list(json.dumps(example()))
    for _ in range(data.draw(st.integers(1, 4))):
        k = data.draw(st.integers(0, len(text) - 1))
        end = min(len(text), k + data.draw(st.integers(0, 4)))
        text[k:end] = data.draw(st.sampled_from(["", "0", "1", "7", "[", "]", ", ", '"', "-", "{", ".", "}", "null"]))
    try:
        document = json.loads("".join(text))
    except ValueError:
        return
    try:
        found = read_workload(document)
    except WorkloadError:
        return
    assert prod(found.site.inputs[0].shape) >= 0
    assert found.node.op.express is not None
    assert get(body_of(found.node).nodes[0].op.name).express is not None

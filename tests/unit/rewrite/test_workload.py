"""Workloads read back from their texts, and texts that are none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import WorkloadError
from mlc.ir.graph import FusionKind, Graph, Node, Operator
from mlc.ir.layout import Layout
from mlc.ir.types import TensorType
from mlc.ops import get
from mlc.rewrite.fuse import fuse
from mlc.rewrite.group import body_of, is_group, literals_of, make_group, workload_key
from mlc.rewrite.workload import parse_workload
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


def read_back(node: Node, types: Sequence[TensorType], constant: Sequence[bool], row_major: bool) -> None:
    text = workload_key(node, types, constant, row_major)
    found = parse_workload(text, literals_of(node))
    assert (found.types, found.constant, found.row_major) == (tuple(types), tuple(constant), row_major)
    # the text is the same again, or it would have been refused; what it does not show is too
    assert (found.node.op, found.node.attrs["anchor"], found.node.attrs["alias"]) == (
        node.op, node.attrs["anchor"], node.attrs["alias"],
    )  # fmt: skip
    ours, theirs = ([a.item() for a in body_of(n).constants.values()] for n in (found.node, node))
    np.testing.assert_array_equal(ours, theirs)


@given(st.data())
@examples(60)
def test_every_group_reads_back(data: st.DataObject) -> None:
    graph = fuse(random_graph(data))
    for node in graph.nodes:
        if is_group(node):
            constant = [v in graph.constants for v in node.inputs]
            types = [
                v.type if c else v.type.with_layout(data.draw(layouts(v.type.shape)))
                for v, c in zip(node.inputs, constant, strict=True)
            ]
            read_back(node, types, constant, data.draw(st.booleans()))


def test_attributes_of_every_kind_read_back() -> None:
    n = Net()
    x = n.x(1, 8, 6, 6)
    y = n.clip(n.conv(x, n.w(8, 8, 3, 3), strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1)), lo=-0.0, hi=6.5)
    graph = n(n.mul(n.gelu(y, approximate="tanh"), n.c([1e-9])), n.add(y, n.c(-0.0)))
    node = make_group(list(graph.nodes), graph.constants, 0, graph.outputs)
    assert len(node.outputs) == 2
    read_back(node, [v.type for v in node.inputs], [False, True], False)
    assert sorted(literals_of(node)) == sorted([np.float32(1e-9).tobytes(), np.float32(-0.0).tobytes()])


def test_equal_literals_of_a_group_are_one() -> None:
    n = Net()
    x = n.x(4)
    graph = n(n.mul(n.add(x, n.c([2.0])), n.c([2.0])))
    node = make_group(list(graph.nodes), graph.constants, 0)
    assert len(body_of(node).constants) == 1
    read_back(node, [x.type], [False], True)


def text_of(graph: Graph) -> str:
    node = make_group(list(graph.nodes), graph.constants, 0)
    return workload_key(node, [v.type for v in node.inputs], [v in graph.constants for v in node.inputs], False)


def example() -> str:
    """A text to break."""
    n = Net()
    x = n.conv(n.x(1, 8, 6, 6), n.w(8, 8, 3, 3), strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1))
    text = text_of(n(n.clip(n.add(x, n.c([3.0])), lo=0.0, hi=6.0)))
    return text.replace("f32[1,8,6,6]", "f32[1,8,6,6]@split(1, 4).reorder(0,1,3,4,2)", 1)


THREE = np.float32(3).tobytes()


def test_the_example_is_sound() -> None:
    assert parse_workload(example(), [b"of another", THREE]).types[0].physical_shape == (1, 2, 6, 6, 4)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (r"^\(", "", r"'\(' expected at"),
        (r"any", "anything", "the end expected at 'thing'"),
        (r"any", "none", "'any' expected"),
        (r"any", "any on vdla:0123", "operation of an accelerator"),
        (r"f32\[1", "f33[1", "'f33' is no element type"),
        (r"\[1,8,6,6\]", "[1,8,6,-6]", "-6 in a workload, 0 to"),
        (r"\[1,8,6,6\]", "[1,8,6,99999999]", "99999999 in a workload, 0 to"),
        (r"\[1,8,6,6\]", "[9999999,9999999]", "is too large"),
        (r"\[1,8,6,6\]", f"[{','.join('1' * 40)}]", "is too large"),
        (r"split\(1, 4\)", "split(1, 3)", "does not divide"),
        (r"split\(1, 4\)", "split(1)", "split takes 2 numbers, given 1"),
        (r"split\(1, 4\)", "cut(1, 4)", "'cut' is no primitive"),
        (r"split\(1, 4\).*2\)", "margin(1, 4, 0).pad(1, 0, 1)", "follows a margin"),
        (r"conv\(", "convolve(", "no operator 'convolve'"),
        (r"conv\(", "conv<out = in>(", "a user's own operator"),
        (r"conv\(", "top_k(", "top_k is an opaque routine"),
        (r"%0, %1\) ", "%0) ", "makes no sense"),
        (r"%0, %1\)", "%0, %2)", "%2 is no value"),
        (r"%0, %1\)", "%0, %9)", "%9 is no value"),
        (r"%0, %1\)", "%0, one)", "'one' is no element type"),
        (r"%0, %1\)", f"{', '.join(['%0'] * 2000)})", "conv of 2000 operands"),
        (r"'groups', \('int', 1\)", "'groups', ('int', 3)", "makes no sense"),
        (r"'groups', \('int', 1\)", "'groups', ('str', '1')", "conv.groups is '1', not a value like 1"),
        (r"'groups', \('int', 1\)", "'groups', ('int', True)", "of no kind that its text can tell"),
        (r"'groups', \('int', 1\)", "'groups', ('array', 1)", "of no kind that its text can tell"),
        (r"'groups', \('int', 1\)", "'groups', ('float', '1')", "conv.groups is 1.0"),
        (r"'groups', \('int', 1\)", "'groups', ('float', 'x')", "of no kind that its text can tell"),
        (r"'groups', \('int', 1\)", "'groups', ('int', 99999999999999999999)", "expected at|to 9223"),
        (r"'groups', \('int', 1\)", "'groups', ('str', '\\x')", "a string expected"),
        (r"'groups', \('int', 1\)", f"'groups', ('str', '{'a' * 300}')", "a string of 302 characters"),
        (r"'groups', \('int', 1\)", f"'groups', {'(' * 50}", "too deep or too many"),
        (r"'groups', \('int', 1\)", f"'groups', ({', '.join('1' * 300)})", "too deep or too many"),
        (r"'groups', \('int', 1\)", "'groups'", "no pairs of name and value"),
        (r"'groups'", "'group'", "conv has no attribute group"),
        (r"-> f32\[1,8,6,6\]\nadd", "-> f32[1,8,6,5]\nadd", "conv gives no"),
        (r"f32\[1\]:[0-9a-f]*", f"f32[1]:{'0' * 64}", "the literal .*00000000… of a workload is not known"),
        (r"f32\[1\]:", "f64[1]:", "is typed f64"),
        (r"f32\[1\]:", "f32[2]:", "is typed f32"),
        (r"f32\[1\]:[0-9a-f]*", "f32[1]:0", "a digest expected"),
        (r"return .*", "return ", "'%' expected"),
        (r"return .*", "return %0", "returns what its operators make"),
        (r"return .*", "", "'return ' expected"),
        (r"\n(.|\n)*\n", "\n", "without operators"),
        (r"'lo', \('float', '0x0.0p\+0'\)", "'lo', ('float', '0x00.0p+0')", "does not print as it was written"),
        (r"any", "any" + "\n" * 600, "of 60. operators, the limit is"),
        (r"any", "any" + " " * (1 << 19), "characters, the limit is"),
        (r"$", "\n", r"'\(' expected"),
    ],
)
def test_refusals(old: str, new: str, message: str) -> None:
    text, count = re.subn(old, lambda _: new, example(), count=1)
    assert count == 1
    with pytest.raises(WorkloadError, match=message):
        parse_workload(text, [THREE])


def test_what_doubles_with_every_operator_is_refused() -> None:
    n = Net()
    x = n.x(8)
    for _ in range(40):
        x = n.add(x, x)
    with pytest.raises(WorkloadError, match="operations an element, the limit is"):
        parse_workload(text_of(n(x)))


def test_a_users_own_operator_is_refused() -> None:
    own = Operator("own", FusionKind.INJECTIVE, lambda types, attrs: types, lambda inputs, attrs: inputs)
    n = Net()
    x = n.x(3)
    (y,) = n.builder.add(own, [n.neg(x)])
    with pytest.raises(WorkloadError, match="own is a user's own operator"):
        parse_workload(text_of(n(y)))


@given(st.data())
@examples(200)
def test_whatever_a_text_holds_it_is_refused_or_read(data: st.DataObject) -> None:
    text = list(example())
    for _ in range(data.draw(st.integers(1, 4))):
        k = data.draw(st.integers(0, len(text) - 1))
        end = min(len(text), k + data.draw(st.integers(0, 4)))
        text[k:end] = data.draw(
            st.sampled_from(["", "0", "1", "7", "%", "(", ")", ", ", "'", "-", "[", ".", "\n", "x"])
        )
    try:
        found = parse_workload("".join(text), [THREE])
    except WorkloadError:
        return
    assert prod(found.types[0].shape) >= 0
    assert found.node.op.express is not None
    assert get(body_of(found.node).nodes[0].op.name).express is not None

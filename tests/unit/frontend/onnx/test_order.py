from __future__ import annotations

import pytest

from mlc.errors import ImportModelError
from mlc.frontend.onnx.order import captured_names, plan
from tests.unit.frontend.onnx.models import graph, info, node


def names(steps):
    return [s.node.name for s in steps]


def chain(*edges):
    return [node("Op", source.split(), target.split(), name=name) for name, source, target in edges]


def test_sorted_nodes_keep_their_order():
    nodes = chain(("a", "x", "p"), ("b", "x", "q"), ("c", "p q", "r"))
    assert names(plan(nodes, ["r"])) == ["a", "b", "c"]


def test_unsorted_nodes_are_sorted_otherwise_as_in_the_file():
    nodes = chain(("c", "p q", "r"), ("b", "x", "q"), ("a", "x", "p"), ("d", "r", "s"))
    assert names(plan(nodes, ["s"])) == ["b", "a", "c", "d"]


def test_nodes_that_nobody_needs_are_left_out():
    nodes = chain(("a", "x", "p"), ("dead", "p", "q"), ("deader", "q", "r"), ("b", "p", "y"))
    assert names(plan(nodes, ["y"])) == ["a", "b"]
    assert plan(nodes, []) == []


def test_outputs_that_nobody_needs_are_blanked():
    (step,) = plan(chain(("a", "x", "p q r")), ["q"])
    assert step.outputs == ("", "q", "")
    assert step.position == 0


def test_a_circle_is_refused_with_the_nodes_in_it():
    nodes = chain(("a", "x", "p"), ("b", "p s", "q"), ("c", "q", "r"), ("d", "r", "s"))
    with pytest.raises(ImportModelError, match=r"in a circle: 'c' -> 'd' -> 'b' -> 'c'|'b' -> 'c' -> 'd' -> 'b'"):
        plan(nodes, ["q"])
    with pytest.raises(ImportModelError, match="in a circle: 'own' -> 'own'"):
        plan(chain(("own", "a", "a")), ["a"])


def test_a_long_circle_is_cut_short_in_the_message():
    nodes = chain(*[(f"n{k}", f"t{k}", f"t{(k + 1) % 50}") for k in range(50)])
    with pytest.raises(ImportModelError, match="45 more -> "):
        plan(nodes, ["t0"])


def test_subgraphs_need_what_they_take_from_outside():
    inner = graph([node("Op", ["p", "i", "z"], ["o"])], [info("i")], ["o", "q"], {})
    outer = graph([node("Op", ["k", "z"], ["m"]), node("If", ["m"], ["n"], then_branch=inner)], [info("k")], ["n"])
    loop = node("Loop", ["x"], ["y"], name="loop", body=outer)
    assert captured_names(loop) == {"p", "q", "z"}
    nodes = [*chain(("dead", "x", "e"), ("a", "x", "p q")), loop, *chain(("b", "x", "z"))]
    assert names(plan(nodes, ["y"])) == ["a", "b", "loop"]


def test_a_name_defined_inside_hides_the_one_outside():
    body = graph([node("Op", ["w"], ["p"]), node("Op", ["p"], ["o"])], [], ["o"])
    assert captured_names(node("If", ["c"], ["y"], then_branch=body)) == {"w"}

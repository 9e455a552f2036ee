"""Index arithmetic as machine code: the value is Python's, in every lane."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from mlc.ir.expr import as_expr
from mlc.ir.index import Var, as_index
from mlc.ir.loop import Buffer, For, ForKind, Function, Store
from mlc.ir.types import i64
from tests.fuzz import examples
from tests.unit.ir.forms import Tree, apply, trees
from tests.unit.targets.llvm.host import Kernel

SHAPE = (7, 5, 8)


@pytest.mark.parametrize("vector", [False, True], ids=["scalar", "lanes"])
@given(tree=trees(3), level=st.sampled_from([0, 3]))
@examples(20)
def test_value_of_a_form_is_that_of_python(vector: bool, tree: Tree, level: int) -> None:
    i, j, k = (Var(name, 0, n - 1) for name, n in zip("ijk", SHAPE, strict=True))
    out = Buffer("out", SHAPE, i64)
    value = as_expr(as_index(apply(tree, [as_index(v) for v in (i, j, k)])))
    body = Store(out, (as_index(i), as_index(j), as_index(k)), value, k if vector else None)
    inner = body if vector else For(k, SHAPE[2], ForKind.SERIAL, body)
    fn = Function("kernel", (out,), 1, For(i, SHAPE[0], ForKind.SERIAL, For(j, SHAPE[1], ForKind.SERIAL, inner)))
    note(repr(fn))
    got = np.zeros(SHAPE, np.int64)
    Kernel(fn, level).run([got])
    np.testing.assert_array_equal(
        got, np.fromfunction(lambda *point: apply(tree, point) + 0 * point[0], SHAPE, dtype=int)
    )


def test_forms_are_computed_where_their_variables_are_bound() -> None:
    """A row's address outside the inner loop, a quotient of the outer variable too."""
    i, j = Var("i", 0, 9), Var("j", 0, 9)
    out = Buffer("out", (10, 10), i64)
    body = Store(out, (as_index(i), as_index(j)), as_expr(as_index(i) // 3 + j))
    fn = Function("kernel", (out,), 1, For(i, 10, ForKind.SERIAL, For(j, 10, ForKind.SERIAL, body)))
    text = Kernel(fn, 0).text
    outer, _, inner = text[: text.index("add nuw nsw")].rpartition("phi")
    assert "udiv" in outer
    assert "mul nsw" in outer
    assert "udiv" not in inner
    assert "mul nsw" not in inner

"""Register tiles of matrix products."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mlc.ir.graph import Builder
from mlc.ir.interp.loop import run_function
from mlc.ir.types import TensorType, f32
from mlc.ops import get
from mlc.rewrite.fuse import fuse
from mlc.targets.cpu.schedules.matmul import deep_product, tile_of
from mlc.targets.x86.record import record_for
from mlc.targets.x86.target import X86Target


@pytest.mark.parametrize("cpu, n", [("skylake-avx512", 64), ("skylake-avx512", 33), ("haswell", 24)])
def test_an_operand_that_comes_from_memory_is_read_by_one_panel_of_columns(cpu: str, n: int) -> None:
    target = record_for(cpu)
    tile = tile_of(128, n, 128, target, far=True)
    assert tile.rows > 1
    assert tile.vectors * target.lanes >= n


def test_columns_that_registers_cannot_hold_leave_the_tile_as_it_is() -> None:
    target = record_for("haswell")
    assert tile_of(128, 512, 128, target, far=True) == tile_of(128, 512, 128, target)


@pytest.mark.parametrize("m, n, k, cores", [(12, 32, 256, 1), (8, 48, 320, 2), (12, 16, 256, 1)])
def test_deep_products_are_summed_chunk_by_chunk(m: int, n: int, k: int, cores: int) -> None:
    """Panels of columns that leave the second-level cache, here one of 16 KiB."""
    target = X86Target(replace(record_for("haswell"), l1=8192, l2=16384, cores=cores), native=False)
    deep = deep_product(m, n, k, target.record, apart=True)
    assert deep is not None
    assert deep[1].chunk < k
    g = Builder("deep")
    a, b = g.input("a", TensorType((k, m), f32)), g.input("b", TensorType((k, n), f32))
    graph = fuse(g.finish(g.add(get("einsum"), [a, b], {"equation": "km,kn->mn"})))
    (node,) = graph.nodes
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(v.type.shape).astype(np.float32) for v in node.inputs]
    found = np.full((m, n), np.nan, np.float32)
    run_function(target.kernel(node, "k"), [*arrays, found])
    np.testing.assert_allclose(found, arrays[0].T @ arrays[1], atol=1e-4)
    assert deep_product(m, n, k, replace(target.record, l2=1 << 20), apart=False) is None

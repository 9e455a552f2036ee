"""Compiled regions of an accelerator against the interpreter, on random data."""

from __future__ import annotations

import numpy as np

from mlc.errors import CheckFailedError, MlcError
from mlc.harness.compare import compare, tolerance_for
from mlc.harness.feeds import Fill, Span, make_feeds
from mlc.ir.graph import Graph, Node, Value
from mlc.ir.interp import run_graph
from mlc.rewrite.region import OFFLOAD
from mlc.runtime import TensorSpec
from mlc.targets.base import Accelerator, DeviceProgram
from mlc.targets.bench import Program
from mlc.targets.driver_bench import DriverBench

SEEDS = (0, 1)
FILL = 0xA5  # byte that results hold before: what is not written is not right by chance
WIDE = Span(-(1 << 12), 1 << 12)  # of integers with more than 8 bits


def check_region(region: Graph, program: DeviceProgram, accelerator: Accelerator) -> None:
    """Run a region's program by the accelerator's driver, and compare what comes out.

    Integers must be equal; floats may differ as much as their type allows (:mod:`mlc.harness.compare`).

    Args:
        region: what was compiled, with its constants; inputs and outputs have the device's layouts.
        program: what became of it.
        accelerator: names the driver.
    Raises:
        CheckFailedError: a result differs, or the device fails; names region, result and greatest difference.
        DeviceError: the device cannot be opened here.
    """
    specs = [TensorSpec(v.name, v.type.dtype.name, v.type.shape) for v in region.inputs]
    wide = (v for v in region.inputs if v.type.dtype.kind == "i" and v.type.dtype.itemsize > 1)
    spans = {v.name: WIDE for v in wide}
    whole = Node(OFFLOAD, region.inputs, {}, region.outputs, ())
    stand = DriverBench(accelerator, exact=True).open(1)
    loaded = stand.load(Program(program.data), whole, [False] * len(region.inputs))
    try:
        for seed in SEEDS:
            feeds = make_feeds(specs, Fill.RANDOM, seed, spans=spans)
            try:
                loaded.run([_packed(v, feeds[v.name]) for v in region.inputs], FILL)
            except MlcError as error:
                raise CheckFailedError(f"{region.name}: the device fails on random data: {error.message}") from error
            expected = run_graph(region, feeds)
            for v, name, array in zip(region.outputs, region.output_names, loaded.results(), strict=True):
                got = array if v.type.layout is None else v.type.layout.unpack(array)
                found = compare(v.name, got, expected[name], tolerance_for(got.dtype))
                if not found.ok:
                    raise CheckFailedError(
                        f"{region.name}: {v.name} differs from the interpreter on random data: {found.summary()}",
                        hint="a bug of the accelerator's compiler or driver: --dump-ir shows what became of the region",
                    )
    finally:
        loaded.close()


def _packed(v: Value, array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array if v.type.layout is None else v.type.layout.pack(array))

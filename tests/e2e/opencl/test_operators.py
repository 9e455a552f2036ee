"""What the operator tests evaluate, once more by PoCL: the same results as the interpreter's.

The tests of files are run within a test, and what they evaluate becomes one model. Ordinarily that is the first
evaluation of each operator with operands of each type; the test with the marker ``slow`` takes all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from mlc.build import build_package
from mlc.ir.graph import Builder, Graph, Value
from mlc.ir.types import TensorType, dtype_of
from mlc.ops import get
from mlc.ops.registry import operators
from mlc.runtime import load_module, write_package
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import get_target
from mlc.targets.opencl.driver import OpenClDevice
from tests.unit.ops import conftest, oracle
from tests.unit.ops.oracle import Evaluation

FILES = sorted(Path(oracle.__file__).parent.glob("test_*.py"))
BATCH = 64  # operators of a model
GROUPS = 4  # of files


def evaluations(file: Path) -> list[Evaluation]:
    """Those of the tests of a file, each operator, types and attributes once."""
    found: dict[str, Evaluation] = {}

    def keep(e: Evaluation) -> None:
        found.setdefault(f"{kind(e)} {[a.shape for a in e.arrays]} {sorted(e.attrs.items())}", e)

    oracle.watchers.append(keep)
    try:
        how = ["-q", "--noconftest", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow"]
        assert pytest.main([*how, str(file)], plugins=[conftest]) == pytest.ExitCode.OK
    finally:
        oracle.watchers.remove(keep)
    return list(found.values())


def kind(e: Evaluation) -> str:
    return f"{e.op} {[a.dtype.name for a in e.arrays]}"


def first_of_each(some: Sequence[Evaluation]) -> list[Evaluation]:
    """The first evaluation of each operator with operands of each type."""
    return list({kind(e): e for e in reversed(some)}.values())


def family(file: Path) -> str:
    return file.stem.removeprefix("test_")


def model_of(some: Sequence[Evaluation]) -> tuple[Graph, dict[str, np.ndarray], list[tuple[Evaluation, np.ndarray]]]:
    """These operators side by side, their inputs, and what must come out."""
    b = Builder("operators")
    feeds: dict[str, np.ndarray] = {}
    results: list[Value] = []
    want: list[tuple[Evaluation, np.ndarray]] = []
    for k, e in enumerate(some):
        names = [f"x{k}_{j}" for j in range(len(e.arrays))]
        given = [b.input(n, TensorType(a.shape, dtype_of(a.dtype))) for n, a in zip(names, e.arrays, strict=True)]
        feeds.update(zip(names, e.arrays, strict=True))
        results += b.add(get(e.op), given, dict(e.attrs))
        want += [(e, a) for a in e.results]
    return b.finish(results), feeds, want


def check(some: Sequence[Evaluation], folder: Path) -> None:
    """A model of these operators, run by the device."""
    graph, feeds, want = model_of(some)
    target, options = get_target("opencl -device=pocl"), CompileOptions("operators", "tests", "0" * 64, verify=True)
    built = build_package(graph, target, options, Observer())
    assert not [d for d in built.offloads if not d.region]
    write_package(folder / "m.tar", built.manifest, built.params, built.members)
    with load_module(folder / "m.tar", 1) as module:
        drawn = {} if module.manifest.seed is None else {"seed": int(feeds.pop(module.manifest.seed))}
        got = module.run(feeds, **drawn).values()
    for a, (e, expected) in zip(got, want, strict=True):
        assert_same(a, expected, f"{kind(e)} {dict(e.attrs)}", max(map(largest_of, e.arrays), default=0.0))


def largest_of(a: np.ndarray) -> float:
    """Of an array's single and double floats, by magnitude."""
    return float(np.abs(a[np.isfinite(a)]).max(initial=0.0)) if a.dtype.kind == "f" and a.itemsize > 2 else 0.0


def assert_same(got: np.ndarray, want: np.ndarray, what: str, read: float) -> None:
    """The same but for rounding, also of what was ``read`` and cancels: a mean far from zero, in the last place."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape), what
    if want.dtype.kind not in "fV":  # numpy has no kind of its own for bfloat16
        np.testing.assert_array_equal(got, want, err_msg=what)
        return
    error = {"float16": 2e-3, "bfloat16": 1e-2}.get(want.dtype.name, 1e-5)
    got, want = got.astype(np.float64), want.astype(np.float64)
    atol = error * largest_of(want) + 2 * np.finfo(np.float32).eps * read
    np.testing.assert_allclose(got, want, rtol=error, atol=atol, equal_nan=True, err_msg=what)


@pytest.mark.parametrize(
    "files", [FILES[k::GROUPS] for k in range(GROUPS)], ids=lambda some: "-".join(map(family, some))
)
def test_operators_on_a_device(quick_pocl: OpenClDevice, files: list[Path], tmp_path: Path) -> None:
    """Those of some files in one program: PoCL takes most of a second for each, however small."""
    check([e for file in files for e in first_of_each(evaluations(file))], tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("file", FILES, ids=family)
def test_all_that_operators_are_tested_with_on_a_device(quick_pocl: OpenClDevice, file: Path, tmp_path: Path) -> None:
    some = evaluations(file)
    for k in range(0, len(some), BATCH):
        check(some[k : k + BATCH], tmp_path)


@pytest.mark.slow
def test_no_operator_is_missing() -> None:
    """But ``scan``, whose body is a graph: see ``test_recurrences``."""
    evaluated = {e.op for file in FILES for e in evaluations(file)}
    assert {op.name for op in operators()} - evaluated == {"scan"}

"""Kernels that were compiled before: found again by what they say, the same bits, one object of all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mlc
from mlc.api.training import wrapped
from mlc.ir.graph import Builder, Graph
from mlc.ir.types import TensorType, f32
from mlc.ops import get
from mlc.targets.functions import FunctionCache
from mlc.targets.llvm import link

X = np.random.default_rng(0).standard_normal((9, 33)).astype(np.float32)


def network(*after: str) -> Graph:
    """A product, a softmax over its rows, and some operators of one operand."""
    g = Builder("net")
    x = g.input("x", TensorType(X.shape, f32))
    w = g.constant(np.linspace(-1, 1, 33 * 17, dtype=np.float32).reshape(33, 17), "w")
    (y,) = g.add(get("matmul"), [x, w])
    (y,) = g.add(get("softmax"), [y], {"axis": 1})
    for name in after:
        (y,) = g.add(get(name), [y], {"axes": (0,), "keepdims": False} if name == "reduce_sum" else {})
    return g.finish([y], ["y"])


def compiled(graph: Graph, folder: Path | None, **options: object) -> mlc.Package:
    return mlc.compile(wrapped(graph), threads=2, functions=folder, verify_passes=True, **options)  # type: ignore[arg-type]


def results(package: mlc.Package) -> np.ndarray:
    with package.load(2) as module:
        return module.run({"x": X})["y"]


def test_what_was_compiled_before_is_used_again_and_gives_the_same_bits(tmp_path: Path) -> None:
    plain, first = compiled(network(), None), compiled(network(), tmp_path)
    count = len({s.kernel for s in first.manifest.steps})
    assert (plain.functions, first.functions) == ({}, {"found": 0, "made": count})
    again = compiled(network(), tmp_path)
    assert again.functions == {"found": count, "made": 0}
    assert again.members == first.members
    for package in (first, again):
        np.testing.assert_array_equal(results(package), results(plain))
    assert again.members["src/kernels.txt"]


def test_another_network_finds_what_both_have(tmp_path: Path) -> None:
    compiled(network(), tmp_path)
    other = compiled(network("reduce_sum"), tmp_path)
    assert other.functions["found"] >= 1
    assert other.functions["made"] >= 1
    np.testing.assert_array_equal(results(other), results(compiled(network("reduce_sum"), None)))


@pytest.mark.parametrize("changed", [{"fast_math": False}, {"opt_level": 0}, {"target": "x86 -mcpu=haswell"}])
def test_other_options_are_other_functions(changed: dict[str, object], tmp_path: Path) -> None:
    compiled(network(), tmp_path)
    assert compiled(network(), tmp_path, **changed).functions["found"] == 0


def test_what_is_damaged_is_compiled_anew(tmp_path: Path) -> None:
    count = compiled(network(), tmp_path).functions["made"]
    file = min(tmp_path.iterdir())
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert compiled(network(), tmp_path).functions == {"found": count - 1, "made": 1}
    assert compiled(network(), tmp_path).functions == {"found": count, "made": 0}


def test_without_a_linker_the_texts_are_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "compiler_for", lambda triple: None)
    first, again = (compiled(network(), tmp_path) for _ in range(2))
    assert again.functions == {"found": first.functions["made"], "made": 0}
    np.testing.assert_array_equal(results(again), results(compiled(network(), None)))


def test_a_linker_that_fails_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(link, "run_tool", lambda command: (1, "unknown option -r"))
    package = compiled(network(), tmp_path)
    assert "kernels are compiled together: unknown option -r" in caplog.text
    np.testing.assert_array_equal(results(package), results(compiled(network(), None)))


def test_marks_tell_keys_and_targets_apart(tmp_path: Path) -> None:
    one, other = FunctionCache(tmp_path, {"cpu": "a"}), FunctionCache(tmp_path, {"cpu": "b"})
    assert len({one.mark("k"), one.mark("l"), other.mark("k")}) == 3
    assert one.mark("k") == FunctionCache(tmp_path, {"cpu": "a"}).mark("k")

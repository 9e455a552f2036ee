"""Garbage is looked for rarely while a model is compiled, and afterwards as before."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from mlc.build import build_package
from mlc.errors import MlcError
from mlc.ir.graph import Builder
from mlc.ir.types import TensorType, f32
from mlc.ops import get
from mlc.pipeline.garbage import RARELY, rare_collections
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import get_target


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 11, 12)
    yield
    gc.set_threshold(*before)


def test_thresholds_come_back() -> None:
    with rare_collections():
        assert gc.get_threshold() == (RARELY, 11, 12)
        with rare_collections():
            assert gc.get_threshold() == (RARELY, 11, 12)
        assert gc.get_threshold() == (RARELY, 11, 12)
    assert gc.get_threshold() == (700, 11, 12)


def test_thresholds_come_back_after_an_error() -> None:
    with pytest.raises(MlcError), rare_collections():
        raise MlcError("no")
    assert gc.get_threshold() == (700, 11, 12)


@pytest.mark.parametrize("first", [0, RARELY + 1])
def test_what_is_rarer_stays(first: int) -> None:
    gc.set_threshold(first, 5, 5)
    with rare_collections():
        assert gc.get_threshold() == (first, 5, 5)
    assert gc.get_threshold() == (first, 5, 5)


def test_the_last_of_several_threads_puts_them_back() -> None:
    inside, left = Barrier(2), Barrier(2)

    def first() -> None:
        with rare_collections():
            inside.wait(10)
        left.wait(10)

    def second() -> tuple[int, int, int]:
        with rare_collections():
            inside.wait(10)
            left.wait(10)
            return gc.get_threshold()

    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(f) for f in (first, second)]
        assert found[1].result() == (RARELY, 11, 12)
    assert gc.get_threshold() == (700, 11, 12)


def test_compilations_collect_rarely() -> None:
    g = Builder("tiny")
    (y,) = g.add(get("relu"), [g.input("x", TensorType((4,), f32))])
    seen = set()

    class Watching(Observer):
        def stage(self, name: str) -> None:
            seen.add(gc.get_threshold())

    build_package(g.finish([y]), get_target("x86"), CompileOptions("tiny", "", "0" * 64), Watching())
    assert seen == {(RARELY, 11, 12)}
    assert gc.get_threshold() == (700, 11, 12)

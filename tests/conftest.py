"""Shared by all tests: texts that are compared with a file, ``golden/<test file>/<test>.txt`` beside the test."""

from __future__ import annotations

import gc
import os
import re
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.emulated import PROCESSOR
from tests.fuzz import register_profiles

register_profiles()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite golden texts with what the tests get now")
    parser.addoption("--few", type=int, metavar="N", help="of the cases of each test, run so many at most")
    parser.addoption("--processor", help="compile small models for this ARM processor, and run them under qemu")


def pytest_configure(config: pytest.Config) -> None:
    """Signals end tests and what they start, also where whoever started all of this told it to ignore them."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if config.getoption("--processor"):
        os.environ[PROCESSOR] = config.getoption("--processor")


@pytest.hookimpl(tryfirst=True)  # before cases are chosen by their markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of the cases of a sweep, all but one in each of so many parts are slow; with ``--few``, few of any are there."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left: set[pytest.Item] = set()
    for some in cases.values():
        sweep = some[0].get_closest_marker("sweep")
        for item in set() if sweep is None else set(some) - set(_one_of_each(some, sweep.args[0])):
            item.add_marker(pytest.mark.slow)
        if few := config.getoption("--few"):
            quick = [item for item in some if not item.get_closest_marker("slow")]
            left |= set(quick) - set(_one_of_each(quick, few))
    if left:
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]


def _one_of_each(cases: list[pytest.Item], parts: int) -> list[pytest.Item]:
    """The first case of the first part, the second of the second, and so on.

    Were they always as far apart, one parameter would often have the same value in all of them.
    """
    parts = min(parts, len(cases))
    return [cases[k * len(cases) // parts + k % (len(cases) // parts)] for k in range(parts)]


def pytest_collection_finish() -> None:
    """What is imported and collected by now stays until the end: no collection of garbage looks at it again."""
    gc.collect()
    gc.freeze()


def golden_name(test: str) -> str:
    """The name of a test as that of a file."""
    return re.sub(r"[^A-Za-z0-9_.\[\]-]", "_", test)


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What was tuned on this machine must not change what tests compile, and what they leave lies among their files."""
    own = tmp_path_factory.getbasetemp()
    monkeypatch.setenv("XDG_CACHE_HOME", str(own / "cache"))
    temporary = own / "temporary"
    temporary.mkdir(exist_ok=True)
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Iterator[Callable[[str], None]]:
    """``golden(text)`` compares a text with the test's file; a test that asks for it must call it, once."""
    file = Path(request.path).parent / "golden" / Path(request.path).stem / f"{golden_name(request.node.name)}.txt"
    calls = 0

    def compare(text: str) -> None:
        nonlocal calls
        calls += 1
        if request.config.getoption("--update-golden"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            return
        if not file.exists():
            pytest.fail(f"{file} does not exist; write it with --update-golden and look at it")
        assert text == file.read_text(encoding="utf-8"), f"differs from {file}; --update-golden rewrites it"

    yield compare
    assert calls == 1, "the test asks for its golden text, and must compare it once"

"""What docstrings show is what comes out; ``lower/test_schedule_examples.py`` runs those of schedule primitives."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import mlc

ROOT = Path(mlc.__file__).parent
APART = {"mlc.lower.schedule", "mlc.lower.stage", "mlc.lower.stage_loops"}
NAMES = {
    ".".join(file.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
    for file in ROOT.rglob("*.py")
    if ">>> " in file.read_text()
}


@pytest.mark.parametrize("name", sorted(NAMES - APART))
def test_examples_of_a_module(name: str) -> None:
    failed, _ = doctest.testmod(import_module(name))
    assert not failed

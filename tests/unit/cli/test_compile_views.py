"""What ``mlc compile`` shows of how tensors lie."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from mlc.cli.compile_views import show_layouts
from mlc.cli.console import Console
from mlc.pipeline.placements import Conversion, Placements


def shown(*conversions: Conversion) -> str:
    package: Any = SimpleNamespace(placements=Placements((), conversions))
    return show_layouts(Console(), package).splitlines()[-1]


def test_what_is_moved_and_what_is_only_read_are_summed_up_apart() -> None:
    copied, read = (Conversion("x", "c", how, "plain", (1, 2), 2048) for how in ("copy", "read"))
    assert shown() == "nothing is converted while the model runs"
    assert shown(copied) == "2.0 KiB are moved in conversions and copies a run"
    apart = "2.0 KiB are read from where they lie, which is not as the result does"
    assert shown(read) == apart
    assert shown(copied, read, read) == f"2.0 KiB are moved in conversions and copies a run, 4.0{apart[3:]}"

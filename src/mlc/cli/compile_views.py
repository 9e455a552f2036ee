"""What ``mlc compile`` shows of a model that is divided between a host and an accelerator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlc.cli.console import Console

if TYPE_CHECKING:
    from mlc.api import Package


def show_offloads(console: Console, package: Package) -> str:
    """Where every operation runs; beside what stays on the host, why."""
    rows = [
        (
            d.region or "host",
            ", ".join(d.operators),
            ", ".join(d.sources),
            _ms(d.device_seconds),
            _ms(d.host_seconds),
            d.reason,
        )
        for d in package.offloads
    ]
    heads = ("runs on", "operators", "nodes of the model", "device ms", "host ms", "why not on the device")
    return console.table(heads, rows, ("device ms", "host ms"))


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.3g}"

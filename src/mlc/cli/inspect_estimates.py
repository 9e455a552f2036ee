"""``mlc inspect MODULE.tar --estimate``: what kernels are expected to take on a processor that need not be at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlc.cli.console import Console, one_line, write_json

if TYPE_CHECKING:
    from mlc.runtime import Package


def show_estimates(console: Console, path: str, package: Package, json_file: str | None) -> None:
    """A row for each kernel, or the same as JSON."""
    from mlc.api import estimates

    found = estimates(package)
    total = sum(e.cycles * e.steps for e in found)
    document = {"kind": "estimate", "target": package.manifest.target.string, "cycles": total}
    write_json(console, json_file, "inspect", {**document, "kernels": [e.to_json() for e in found]})
    if json_file is not None:
        return
    console.data(one_line(f"{path}: {total:,.0f} cycles expected of one core, {package.manifest.target.string}"))
    rows = [
        (
            e.kernel,
            e.steps,
            f"{e.cycles / 1e3:.1f}",
            f"{100 * e.share:.0f}",
            e.bound,
            e.multiply_adds or "",
            e.instructions or "",
            "" if e.loop_least is None else f"{e.loop_least:.1f}",
            "" if e.loop_cycles is None else f"{e.loop_cycles:.1f}",
        )
        for e in found
    ]
    heads = ("steps", "kcycles", "of peak %", "products", "of instructions", "least cycles", "by llvm-mca")
    columns = ("kernel", *heads[:3], "bound by", *heads[3:])
    console.data("\n" + console.table(columns, rows, heads))
    console.note(
        "products and instructions are those of the innermost loop with the most products, least cycles those that its "
        "busiest unit takes"
    )

"""``mlc targets``: what can be compiled for, and what this machine can do with it."""

from __future__ import annotations

import click

from mlc.cli.console import Console, write_json
from mlc.cli.group import Command
from mlc.cli.options import json_flag


@click.command(
    cls=Command,
    examples="""
    mlc targets
    mlc targets --json
    """,
)
@json_flag
@click.pass_obj
def command(console: Console, json_file: str | None) -> None:
    """List the targets to compile for."""
    if json_file is None:
        show_targets(console)
        return
    from mlc.api import targets

    documents = [
        {
            "name": info.name,
            "compiles": info.compiles,
            "runs": info.runs,
            "reason": info.reason,
            "facts": {key: list(value) if isinstance(value, tuple) else value for key, value in info.facts.items()},
        }
        for info in targets()
    ]
    write_json(console, json_file, "targets", {"targets": documents})


def show_targets(console: Console) -> None:
    """The table of targets, on standard output."""
    from mlc.api import targets

    rows = []
    for info in targets():
        # attributes run to hundreds of words; --json has them
        short = {k: v for k, v in info.facts.items() if isinstance(v, (str, int)) and k != "mattr"}
        facts = ", ".join(f"{key} {value}" for key, value in short.items())
        rows.append((info.name, _word(info.compiles), _word(info.runs), info.reason or facts))
    console.data(console.table(("target", "compiles here", "runs here", "about"), rows))


def _word(yes: bool) -> str:
    return "yes" if yes else "no"

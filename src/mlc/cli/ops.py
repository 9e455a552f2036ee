"""``mlc ops``: what can be imported, from the table of converters itself."""

from __future__ import annotations

import click

from mlc.cli.console import Console, write_json
from mlc.cli.group import Command
from mlc.cli.options import json_flag


@click.command(
    cls=Command,
    examples="""
    mlc ops
    mlc ops --frontend keras
    mlc ops --frontend tflite --markdown
    mlc ops --frontend onnx --json
    """,
)
@click.option("--frontend", default="onnx", show_default=True, metavar="NAME", help="Which front end.")
@click.option("--markdown", is_flag=True, help="Print the table as Markdown, as it stands in the documentation.")
@json_flag
@click.pass_obj
def command(console: Console, frontend: str, markdown: bool, json_file: str | None) -> None:
    """List the operators that can be imported, and what is not covered of each."""
    from mlc.frontend.base import get_frontend

    found = get_frontend(frontend).supported_operators()
    rows = [(info.name, info.domain, info.since, info.via, info.limits) for info in found]
    if markdown:
        heads = ("operator", "domain", "since", "via", "not covered")
        lines = [heads, ["---"] * len(heads), *rows]
        console.data("\n".join(f"| {' | '.join(map(str, line))} |" for line in lines))
    elif json_file is None:
        console.data(console.table(("operator", "domain", "since", "via", "not covered"), rows, numbers=("since",)))
        console.note(f"{len(found)} operators")
    keys = ("name", "domain", "since", "via", "limits")
    documents = [dict(zip(keys, row, strict=True)) for row in rows]
    write_json(console, json_file, "ops", {"frontend": frontend, "operators": documents})

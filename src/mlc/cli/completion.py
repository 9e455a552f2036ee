"""``mlc completion``: a script that makes a shell complete commands and options."""

from __future__ import annotations

import click

from mlc.cli.console import Console
from mlc.cli.group import Command

SHELLS = ("bash", "zsh", "fish")


@click.command(
    cls=Command,
    examples="""
    echo 'eval "$(mlc completion bash)"' >> ~/.bashrc
    echo 'eval "$(mlc completion zsh)"' >> ~/.zshrc
    mlc completion fish > ~/.config/fish/completions/mlc.fish
    """,
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print a script that makes SHELL complete the commands and options of mlc."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    complete = kind(ctx.find_root().command, {}, "mlc", "_MLC_COMPLETE")
    # Not source(): for bash that runs bash to ask for its version, which may not even be there.
    ctx.ensure_object(Console).data(complete.source_template % complete.source_vars())

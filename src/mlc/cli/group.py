"""The command tree: subcommands imported on use, nearest matches for what is mistyped, examples in every help text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

from mlc.cli.complete import complete_parameters
from mlc.cli.console import Console
from mlc.cli.target_words import join_targets, stray_word, target_options
from mlc.errors import ExitCode, UsageError

# name -> where it is, and its line in `mlc --help`, so that help needs no imports
COMMANDS: dict[str, tuple[str, str]] = {
    "import": ("mlc.cli.import_model:command", "Import a model; check it or save it as .mlc."),
    "compile": ("mlc.cli.compile_model:command", "Compile a model into a module.tar."),
    "tune": ("mlc.cli.tune:command", "Measure schedules of a model's kernels; keep the best."),
    "measure": ("mlc.cli.measure:command", "Measure what mlc tune --build-only has built."),
    "train": ("mlc.cli.train:command", "Train a model on examples, by compiled steps."),
    "run": ("mlc.cli.run:command", "Run a module.tar: outputs, verification, timing."),
    "inspect": ("mlc.cli.inspect:command", "Show what is in a model or a module.tar."),
    "ops": ("mlc.cli.ops:command", "List the operators that can be imported."),
    "vdla": ("mlc.cli.vdla:group", "Read, write, check and simulate programs of the VDLA accelerator."),
    "devices": ("mlc.cli.devices:group", "Share boards: certificates, scheduler, boards, their state."),
    "targets": ("mlc.cli.targets:command", "List the targets to compile for."),
    "completion": ("mlc.cli.completion:command", "Print a completion script for your shell."),
}

# examples at the end of `mlc --help`
TOUR = """
mlc compile resnet18.onnx --target x86 -o resnet18.tar
mlc run resnet18.tar --verify model
mlc run resnet18.tar --bench
mlc inspect resnet18.tar
"""

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class LazyGroup(click.Group):
    """A group whose subcommands are imported when they are called.

    Args:
        table: name of a subcommand -> where it is, and its line in the group's help.
        examples: shell lines at the end of the group's help.
    """

    def __init__(self, *args: Any, table: Mapping[str, tuple[str, str]], examples: str, **kwargs: Any) -> None:
        super().__init__(*args, **{"context_settings": CONTEXT, "invoke_without_command": True, **kwargs})
        self.table = table
        self.examples = examples
        self.params.extend(_common_options())

    def invoke(self, ctx: click.Context) -> Any:
        """Shows the help where no subcommand is named and the group itself has not ended."""
        result = super().invoke(ctx)
        if ctx.invoked_subcommand is None:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(ExitCode.USAGE)
        return result

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        module, _, attribute = self.table[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.table and not name.startswith("-") and not ctx.resilient_parsing:
            hint = did_you_mean(name, self.table, f"{ctx.command_path} --help lists them")
            raise UsageError(f"there is no command {name!r}", hint=hint)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self.table.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_examples(formatter, self.examples)


class Command(click.Command):
    """A subcommand with examples.

    Args:
        examples: shell lines, shown as they are at the end of the help text.
    """

    def __init__(self, *args: Any, examples: str, **kwargs: Any) -> None:
        super().__init__(*args, **{"context_settings": CONTEXT, **kwargs})
        self.examples = examples
        complete_parameters(self.params)
        self.params.extend(_common_options())

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Lets options of a target stand behind it as words of their own."""
        options = target_options(self.params)
        try:
            return super().parse_args(ctx, join_targets(args, options))
        except click.NoSuchOption as error:
            word = stray_word(args, error.option_name) if options else None
            if word is None:
                raise
            name, _, value = word.partition("=")
            hint = f"an option of a target stands right behind it: {options[0]} NAME {name}={value or 'VALUE'}"
            raise UsageError(f"there is no option {name}", hint=hint) from None

    def invoke(self, ctx: click.Context) -> Any:
        # Not before: -v may stand after the subcommand.
        ctx.ensure_object(Console).start_logging()
        return super().invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_examples(formatter, self.examples)


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """A hint with the nearest of the known names; with all of them, or ``otherwise``, when none is near."""
    known = list(known)
    near = get_close_matches(name, known, n=2)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return otherwise or f"known: {', '.join(known)}"


def _common_options() -> list[click.Option]:
    return [
        click.Option(
            ["-v", "--verbose"], count=True, expose_value=False, callback=_verbose, help="Say more; -vv for details."
        ),
        click.Option(
            ["-q", "--quiet"],
            is_flag=True,
            expose_value=False,
            callback=_quiet,
            help="Say only errors and data.",
        ),
        click.Option(["--debug"], is_flag=True, expose_value=False, callback=_debug, help="Show tracebacks of errors."),
    ]


def _verbose(ctx: click.Context, param: click.Parameter, value: int) -> None:
    console = ctx.find_object(Console)
    if console is not None:
        console.verbose = min(2, console.verbose + value)


def _quiet(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    console = ctx.find_object(Console)
    if console is not None:
        console.quiet |= value


def _debug(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    console = ctx.find_object(Console)
    if console is not None:
        console.debug |= value


def _write_examples(formatter: click.HelpFormatter, examples: str) -> None:
    with formatter.section("Examples"):
        for line in examples.strip().splitlines():
            formatter.write(f"  {line.strip()}\n")

"""What the shell offers after an option: file names, and the values that are known."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem, split_arg_string

from mlc.errors import MlcError

Known = Callable[[click.Context], Iterable[str]]


class Completed(click.types.StringParamType):
    """A text of which some values are known, or which is the name of a file.

    Args:
        known: gives the values; asked only by the shell.
        files: file names are offered as well.
        separated: it is a list with commas, of which the last word is completed.
    """

    def __init__(self, known: Known | None = None, *, files: bool = False, separated: bool = False) -> None:
        self._known, self._files, self._separated = known, files, separated

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        head, comma, word = incomplete.rpartition(",") if self._separated else ("", "", incomplete)
        try:
            values = [] if self._known is None else list(self._known(ctx))
        except (MlcError, OSError):  # a file that cannot be read offers nothing
            values = []
        found = [CompletionItem(f"{head}{comma}{value}") for value in values if value.startswith(word)]
        return [*found, CompletionItem(incomplete, type="file")] if self._files and not found else found


class TargetText(Completed):
    """A target: its name, and its options, which may also stand behind it as words of their own (``target_words``)."""


def complete_parameters(params: Iterable[click.Parameter]) -> None:
    """Makes parameters complete what they take: by name where values are known, else files where they take files."""
    for param in params:
        if type(param.type) is not click.types.StringParamType:
            continue
        if param.name in _VALUES:
            param.type = _VALUES[param.name]
        elif isinstance(param, click.Argument) or "FILE" in (param.metavar or ""):
            param.type = Completed(files=True)


def _names(ctx: click.Context) -> list[str]:
    from mlc.targets.base import target_names

    return target_names()


def _targets(ctx: click.Context) -> list[str]:
    return [*_names(ctx), "help"]


def _explorers(ctx: click.Context) -> list[str]:
    from mlc.tuning.explorers import explorer_names

    return [*explorer_names(), "help"]


def _cost_models(ctx: click.Context) -> list[str]:
    from mlc.tuning.models.choice import COST_MODELS

    return [*COST_MODELS, "help"]


def _passes(ctx: click.Context) -> list[str]:
    from mlc.api import pass_names

    return pass_names()


def _formats(ctx: click.Context) -> list[str]:
    from mlc.frontend.base import frontend_names

    return list(frontend_names())


def _references(ctx: click.Context) -> list[str]:
    from mlc.harness.reference import REFERENCES

    return ["model", *REFERENCES, "interpreter"]


def _kernels(ctx: click.Context) -> list[str]:
    """Those of the package that stands on the command line.

    An option that lacks its value ends click's reading of the line, so the line itself is asked.
    """
    from mlc.runtime import open_package

    for word in split_arg_string(os.environ.get("COMP_WORDS", "")):
        if word.endswith(".tar") and os.path.isfile(word):
            with open_package(word) as package:
                return list(dict.fromkeys(step.kernel for step, _ in package.manifest.calls))
    return []


_VALUES: dict[str | None, Completed] = {
    "target": TargetText(_targets),
    "targets": TargetText(_names),
    "quantize_for": TargetText(_names),
    "explorer": Completed(_explorers),
    "cost_model": Completed(_cost_models),
    "disable_pass": Completed(_passes, separated=True),
    "print_ir_after": Completed(_passes, separated=True),
    "model_format": Completed(_formats),
    "asm": Completed(_kernels),
    "src": Completed(_kernels),
    "verify": Completed(_references, files=True),
    "device": Completed(lambda ctx: ["cpu", "cuda", "list", "opencl"]),
}

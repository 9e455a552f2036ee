"""Options of a target as words of their own: ``--target arm -mcpu=generic`` means ``--target "arm -mcpu=generic"``."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

import click

from mlc.cli.complete import TargetText

# One letter would be an option of the command.
_WORD = re.compile(r"-[A-Za-z]\w+")


def target_options(params: Iterable[click.Parameter]) -> list[str]:
    """Names of those options that take a target."""
    return [name for param in params if isinstance(param.type, TargetText) for name in param.opts]


def join_targets(args: Sequence[str], options: Collection[str]) -> list[str]:
    """The arguments of a command, with words ``-name=value`` right behind a target made part of it.

    >>> join_targets(["m.onnx", "--target", "arm", "-mcpu=cortex-a72", "-o", "m.tar"], ["--target"])
    ['m.onnx', '--target', 'arm -mcpu=cortex-a72', '-o', 'm.tar']

    Args:
        args: as they were typed; behind ``--`` nothing is joined.
        options: those that take a target.
    """
    done: list[str] = []
    rest = list(args)
    while rest and rest[0] != "--":
        done.append(rest.pop(0))
        if done[-1] in options and rest:
            done.append(rest.pop(0))
        elif not (done[-1].startswith("--") and done[-1].partition("=")[0] in options):
            continue
        while rest and "=" in rest[0] and _WORD.fullmatch(rest[0].partition("=")[0]):
            done[-1] += f" {rest.pop(0)}"
    return done + rest


def stray_word(args: Iterable[str], refused: str) -> str | None:
    """The word that looks like a target's option, of those that a command does not know.

    Args:
        args: what it was given.
        refused: the option that it says is none; of ``-mcpu=generic`` that is ``-m``.
    """
    found = (word for word in args if word.startswith(refused) and _WORD.fullmatch(word.partition("=")[0]))
    return next(found, None)

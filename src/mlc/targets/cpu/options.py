"""The options that targets of processors share: which one, and what it has beside what its name says."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches

from mlc.errors import UsageError


def processor_options(
    target: str, options: Mapping[str, str], known: Collection[str], own: str = ""
) -> tuple[str | None, tuple[str, ...]]:
    """The processor that the options of a target name, if any, and the features that they add or take away.

    >>> processor_options("made-up", {"mcpu": "first", "mattr": "+wide,-deep"}, {"wide", "deep"})
    ('first', ('+wide', '-deep'))

    Args:
        target: name of the target, for messages.
        options: of its string form, without those of its own.
        known: features that there are: those that a module can say it needs.
        own: what the target's own options are, for messages.
    Raises:
        UsageError: an unknown option or feature, or a feature without its sign.
    """
    unknown = set(options) - {"mcpu", "mattr"}
    if unknown:
        hint = f"it has -mcpu=NAME and -mattr=+FEATURE,-FEATURE{own and f' and {own}'}"
        raise UsageError(f"target {target} has no option -{sorted(unknown)[0]}", hint=hint)
    given = tuple(f for f in options.get("mattr", "").split(",") if f)
    for f in given:
        if f[0] not in "+-" or not f[1:].replace("-", "").replace(".", "").isalnum():
            raise UsageError(f"target {target}: -mattr has {f!r}", hint="each feature is +NAME or -NAME")
        if f[1:] not in known:
            near = get_close_matches(f[1:], known, n=3) or sorted(known)
            raise UsageError(f"target {target}: unknown feature {f[1:]!r}", hint="known: " + ", ".join(near))
    return options.get("mcpu"), given

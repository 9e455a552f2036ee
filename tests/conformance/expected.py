"""The reviewed list of cases that are expected to fail, with reasons."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from .check import Result

FILE = Path(__file__).with_name("expected_failures.json")
COMPILED_ONLY = "compiled: "  # a reason that begins so is not expected of the interpreter


@dataclass(frozen=True)
class Verdict:
    """What differs from the list.

    Args:
        fails: failures that are not on the list.
        passes: cases on the list that pass.
        strange: names on the list that are no cases.
    """

    fails: tuple[Result, ...]
    passes: tuple[str, ...]
    strange: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not (self.fails or self.passes or self.strange)


def load() -> dict[str, str]:
    """Reasons by case."""
    return dict(json.loads(FILE.read_text(encoding="utf-8"))) if FILE.exists() else {}


def judge(results: Iterable[Result], engine: str, known: Iterable[str]) -> Verdict:
    """Compare results with the list; cases that were not run are left out of it."""
    expected = {
        name: reason for name, reason in load().items() if engine == "compiled" or not reason.startswith(COMPILED_ONLY)
    }
    results = list(results)
    return Verdict(
        tuple(r for r in results if not r.passed and r.name not in expected),
        tuple(r.name for r in results if r.passed and r.name in expected),
        tuple(sorted(set(expected) - set(known))),
    )


def update(results: Iterable[Result], engine: str, interpreted: Callable[[str], Result]) -> None:
    """Rewrite the list from results, to be read before it is committed.

    Entries of cases that were not run stay. A reason that was written by hand stays as long as the case fails. A run of
    the interpreter leaves alone what only fails when compiled.

    Args:
        results: of the cases that were run.
        engine: what ran them.
        interpreted: runs a case through the interpreter, to tell failures of the compiler alone.
    """
    listed = load()
    for r in results:
        old = listed.get(r.name, "")
        if r.passed:
            if engine == "compiled" or not old.startswith(COMPILED_ONLY):
                listed.pop(r.name, None)
        elif not old or _automatic(old):
            alone = engine == "compiled" and not r.reason.startswith("unsupported: ") and interpreted(r.name).passed
            listed[r.name] = COMPILED_ONLY + r.reason if alone else r.reason
    FILE.write_text(json.dumps(dict(sorted(listed.items())), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _automatic(reason: str) -> bool:
    """Whether a reason was written by :func:`update`."""
    starts = ("unsupported: ", "output ", "crash: ", "timeout: ", "gives ")
    return reason.removeprefix(COMPILED_ONLY).startswith(starts) or "Error: " in reason

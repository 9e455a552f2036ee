"""Everything in a model that is not supported, collected into one report."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlc.errors import UnsupportedError
from mlc.frontend.onnx.registry import UnknownValueError

_NAMES_SHOWN = 3
_LINES_SHOWN = 40


@dataclass
class Problem:
    """One reason, with all nodes that share it.

    Args:
        what: the operator with its domain and version, or ``"inputs and initializers"``.
        reason: why it is not supported.
        hint: what to do about it.
        nodes: names of the nodes.
        inputs: inputs of the model that would help if they had a value.
    """

    what: str
    reason: str
    hint: str
    nodes: list[str] = field(default_factory=list)
    inputs: tuple[str, ...] = ()

    def __str__(self) -> str:
        names = ", ".join(map(repr, self.nodes[:_NAMES_SHOWN]))
        more = f" and {len(self.nodes) - _NAMES_SHOWN} more" if len(self.nodes) > _NAMES_SHOWN else ""
        count = f"{len(self.nodes)} nodes ({names}{more})" if len(self.nodes) > 1 else f"node {names}"
        return f"{self.what}, {count}: {self.reason}"


class UnsupportedModelError(UnsupportedError):
    """A model uses operators, attributes or types that are not supported: all of them.

    Args:
        problems: one entry a reason.
    """

    def __init__(self, problems: list[Problem]) -> None:
        lines = [str(p) for p in problems]
        if len(lines) > _LINES_SHOWN:
            lines = [*lines[:_LINES_SHOWN], f"... and {len(lines) - _LINES_SHOWN} more reasons"]
        message = f"not supported: {lines[0]}" if len(lines) == 1 else "\n  ".join(["not supported:", *lines])
        hints = dict.fromkeys(p.hint for p in problems if p.hint)
        super().__init__(message, hint="; ".join(hints) or "`mlc ops` lists what is supported, with limits")
        self.problems = tuple(problems)

    @property
    def inputs_to_fix(self) -> tuple[str, ...]:
        """Inputs of the model whose values, if given at import (``constants=``), would solve some of the problems."""
        return tuple(dict.fromkeys(name for p in self.problems for name in p.inputs))


class Problems:
    """Collects reasons while the import goes on."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Problem] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, what: str, node: str, error: UnsupportedError) -> None:
        """Note that ``node`` cannot be imported.

        Args:
            what: the operator, or what else it is.
            node: its name in the model.
            error: the reason.
        """
        reason = error.message
        problem = self._found.setdefault((what, reason), Problem(what, reason, error.hint))
        problem.nodes.append(node)
        if isinstance(error, UnknownValueError):
            problem.inputs = tuple(dict.fromkeys((*problem.inputs, *error.inputs)))

    def check(self) -> None:
        """Report all that was noted.

        Raises:
            UnsupportedModelError: there was anything.
        """
        if self._found:
            raise UnsupportedModelError(list(self._found.values()))

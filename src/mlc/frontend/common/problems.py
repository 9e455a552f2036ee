"""Everything in a model that is not supported, collected into one report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from mlc.errors import ImportModelError, MlcError, UnsupportedError, UsageError, VerifyError
from mlc.frontend.common.context import UnknownValueError

_NAMES_SHOWN = 3
_LINES_SHOWN = 40

# What a converter, or numpy below it, raises on settings and shapes that contradict each other. The model is to blame
# as far as the user is concerned; the cause stays attached for `--debug`.
_CONVERTER_FAULTS = (ArithmeticError, LookupError, ValueError, TypeError, MemoryError)


class Unknown:
    """Stands for the result of what is not supported, so that the walk can go on and find the rest."""


UNKNOWN = Unknown()


@dataclass
class Problem:
    """One reason, with all nodes that share it.

    Args:
        what: the operator with its domain and version; empty for what is no node.
        reason: why it is not supported.
        hint: what to do about it.
        nodes: names of the nodes, or inputs or initializers.
        inputs: inputs of the model that would help if they had a value.
        noun: what ``nodes`` are.
    """

    what: str
    reason: str
    hint: str
    nodes: list[str] = field(default_factory=list)
    inputs: tuple[str, ...] = ()
    noun: str = "node"

    def __str__(self) -> str:
        names = ", ".join(map(repr, self.nodes[:_NAMES_SHOWN]))
        more = f" and {len(self.nodes) - _NAMES_SHOWN} more" if len(self.nodes) > _NAMES_SHOWN else ""
        where = f"{len(self.nodes)} {self.noun}s ({names}{more})" if len(self.nodes) > 1 else f"{self.noun} {names}"
        return f"{self.what}, {where}: {self.reason}" if self.what else f"{where}: {self.reason}"


class UnsupportedModelError(UnsupportedError):
    """A model uses operators, attributes or types that are not supported: all of them.

    Args:
        problems: one entry a reason.
        besides: what else keeps the model from being imported.
    """

    def __init__(self, problems: list[Problem], besides: MlcError | None = None) -> None:
        lines = [str(p) for p in problems]
        if len(lines) > _LINES_SHOWN:
            lines = [*lines[:_LINES_SHOWN], f"... and {len(lines) - _LINES_SHOWN} more reasons"]
        message = f"not supported: {lines[0]}" if len(lines) == 1 else "\n  ".join(["not supported:", *lines])
        hints = dict.fromkeys(p.hint for p in problems if p.hint)
        if besides is not None:
            message += f"\n  besides, {besides.message}" if len(lines) > 1 else f"; besides, {besides.message}"
            hints[besides.hint] = None
        super().__init__(message, hint="; ".join(hints))
        self.problems = tuple(problems)

    @property
    def inputs_to_fix(self) -> tuple[str, ...]:
        """Inputs of the model whose values, if given at import (``constants=``), would solve some of the problems."""
        return tuple(dict.fromkeys(name for p in self.problems for name in p.inputs))


@contextmanager
def located(noun: str, place: Callable[[], str], settings: str) -> Iterator[None]:
    """Errors of a converter learn where in the model they arose; what is not supported passes as it is.

    Args:
        noun: what the format calls a step of a model, with which places begin; errors that have one keep it.
        place: says where.
        settings: what the format calls what is fixed about a step.
    Raises:
        ImportModelError: in place of everything else that a wrong model leads to.
    """
    try:
        yield
    except UnsupportedError:
        raise
    except ImportModelError as error:
        if not error.message.startswith(f"{noun} "):
            error.message = f"{place()}: {error.message}"
        raise
    except (VerifyError, UsageError) as error:
        raise ImportModelError(f"{place()}: {error.message}", hint=error.hint) from error
    except _CONVERTER_FAULTS as error:
        reason = str(error) or type(error).__name__
        raise ImportModelError(f"{place()}: operands and {settings} do not fit together: {reason}") from error


class Problems:
    """Collects reasons while the import goes on."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], Problem] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, error: UnsupportedError, name: str, what: str = "", noun: str = "node") -> None:
        """Note that something cannot be imported.

        Args:
            error: the reason.
            name: the node's name in the model.
            what: its operator.
            noun: what it is if it is no node.
        """
        reason = error.message.removeprefix(f"{noun} {name!r}: ")
        problem = self._found.setdefault((what, noun, reason), Problem(what, reason, error.hint, noun=noun))
        problem.nodes.append(name)
        if isinstance(error, UnknownValueError):
            problem.inputs = tuple(dict.fromkeys((*problem.inputs, *error.inputs)))

    def check(self, besides: MlcError | None = None) -> None:
        """Report all that was noted.

        Args:
            besides: what else is to be reported with it.
        Raises:
            UnsupportedModelError: there was anything.
        """
        if self._found:
            raise UnsupportedModelError(list(self._found.values()), besides)

"""What users type as the values of options, read wholly or refused; each refusal shows the form that is meant."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import fields, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mlc.cli.group import did_you_mean
from mlc.errors import UsageError

if TYPE_CHECKING:
    import numpy.typing as npt

    from mlc.frontend.limits import Limits
    from mlc.harness.feeds import Span

T = TypeVar("T")

_MAX_EXTENT = (1 << 63) - 1
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b)?", re.IGNORECASE)
_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_TVMC_SHAPE = re.compile(r"\s*(\S+?)\s*:\s*\[([^\]]*)\]\s*,?")


def shape(text: str) -> tuple[str, tuple[int, ...]]:
    """``name=1,3,224,224``; the name may hold ``=`` and ``:``, and ``name=`` is a scalar."""
    name, extents = _split(text, "--shape", "NAME=1,3,224,224", separators="=:")
    return name, _extents(extents, f"--shape {text}", "NAME=1,3,224,224")


def tvmc_shapes(text: str) -> list[tuple[str, tuple[int, ...]]]:
    """``name:[1,3,224,224] other:[1,16]``, as tvmc's ``--input-shapes``; nothing of it may be left over.

    Raises:
        UsageError: it cannot be understood.
    """
    form = '"NAME:[1,3,224,224] OTHER:[1,16]"'
    found, at = [], 0
    while at < len(text.rstrip()):
        match = _TVMC_SHAPE.match(text, at)
        if match is None:
            raise UsageError(f"--input-shapes: {text[at:].strip()!r} cannot be understood", hint=f"expected {form}")
        found.append((match[1], _extents(match[2], f"--input-shapes {match[0].strip()}", form)))
        at = match.end()
    if not found:
        raise UsageError("--input-shapes: no shape is given", hint=f"expected {form}")
    return found


def layout(text: str) -> tuple[str, str]:
    """``name:NCHW``, or ``name:NHWC->NCHW``; the name may hold ``:``."""
    return _split(text, "--input-layout", "NAME:NCHW", separators=":")


def dim(text: str) -> tuple[str, int]:
    """``batch=1``."""
    name, number = _split(text, "--dim", "batch=1")
    return name, _integer(number, f"--dim {text}", "batch=1")


def constant(text: str) -> tuple[str, npt.ArrayLike]:
    """``name=3``, ``name=[1,2]``, ``name=true`` or ``name=file.npy``; numbers take the element type of the input.

    Raises:
        UsageError: it cannot be understood.
    """
    form = "NAME=3, NAME=[1,2], NAME=true or NAME=file.npy"
    name, value = _split(text, "--const", form)
    if value.endswith(".npy"):
        from mlc.harness.arrays import read_npy

        return name, read_npy(value)
    try:
        number = json.loads(value, parse_constant=_refuse)
    except (ValueError, RecursionError):
        number = None
    if not isinstance(number, (bool, int, float, list)):
        raise UsageError(f"--const {text}: {value!r} is no value", hint=f"expected {form}")
    return name, number


def limits(changes: Iterable[str]) -> Limits:
    """``nodes=200000``, ``file_bytes=4G``: the default limits with some of them changed.

    Raises:
        UsageError: there is no such limit, or its value is no size.
    """
    from mlc.frontend.limits import DEFAULT_LIMITS

    known = [f.name for f in fields(DEFAULT_LIMITS)]
    values = {}
    for text in changes:
        name, value = _split(text, "--limit", "nodes=200000")
        if name not in known:
            raise UsageError(f"--limit {text}: there is no limit {name!r}", hint=did_you_mean(name, known))
        values[name] = size(value, f"--limit {text}")
    return replace(DEFAULT_LIMITS, **values)


def size(text: str, what: str = "the size") -> int:
    """Bytes: ``1500000``, ``512M``, ``1.5GiB``; K, M, G and T are powers of 1024.

    Raises:
        UsageError: it is no size.
    """
    match = _SIZE.fullmatch(text.strip()) if text.isascii() and len(text) < 32 else None
    if match is None:
        raise UsageError(f"{what}: {text!r} is no size", hint="expected a number of bytes, or one like 512M or 1.5GiB")
    # Fractions, so that large whole numbers stay exact.
    return int(Fraction(match[1]) * _SIZE_UNITS[match[2].lower()])


def span(text: str) -> tuple[str | None, Span]:
    """``0:255`` for all inputs, ``name=0:255`` for one.

    Raises:
        UsageError: it is no range.
    """
    from mlc.harness.feeds import Span

    form = "LOW:HIGH or NAME=LOW:HIGH, as in 0:255"
    name, _, ends = text.rpartition("=")
    low, colon, high = ends.partition(":")
    try:
        ends_ = float(low), float(high)
    except ValueError:
        ends_ = (1.0, 0.0)
    # also refuses NaN and infinities
    if not colon or not -1e308 <= ends_[0] <= ends_[1] <= 1e308:
        raise UsageError(f"--range {text}: {ends!r} is no range", hint=f"expected {form}")
    return name or None, Span(*ends_)


def named_file(text: str, option: str = "--inputs") -> tuple[str | None, str]:
    """``in.npz``, or ``name=file.npy``; names and paths may hold ``=``.

    Raises:
        UsageError: it is neither.
    """
    if text.endswith(".npz"):
        return None, text
    # The path is the shorter part: names of tensors hold '=' even more rarely than paths do.
    name, separator, path = text.rpartition("=")
    if not separator or not name or not path.endswith(".npy"):
        raise UsageError(f"{option} {text}: cannot be understood", hint="expected FILE.npz or NAME=FILE.npy")
    return name, path


class Whole(click.ParamType):
    """An option that takes a whole number from ``least`` to ``most``."""

    name = "number"

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(value)
        except ValueError:
            number = self._least - 1
        if not self._least <= number <= self._most:
            self.fail(f"{value!r} is not a whole number from {self._least} to {self._most}", param, ctx)
        return number


class Real(click.ParamType):
    """An option that takes a number of at least 0."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        # also refuses NaN and infinities
        if not 0 <= number <= 1e300:
            self.fail(f"{value!r} is not a number of at least 0", param, ctx)
        return number


def merged(option: str, pairs: Iterable[tuple[str, T]]) -> dict[str, T]:
    """One mapping of all values of a repeated option; a name given twice is refused.

    Raises:
        UsageError: one is.
    """
    found: dict[str, T] = {}
    for name, value in pairs:
        if name in found:
            raise UsageError(f"{option}: {name!r} is given twice")
        found[name] = value
    return found


def comma_separated(texts: Iterable[str]) -> tuple[str, ...]:
    """The words of ``a,b`` and of repeated options together."""
    return tuple(word.strip() for text in texts for word in text.split(",") if word.strip())


def _split(text: str, option: str, form: str, separators: str = "=") -> tuple[str, str]:
    """Name and value around the last separator; of several kinds of separators, the first that occurs."""
    for separator in separators:
        name, found, value = text.rpartition(separator)
        if found and name:
            return name, value.strip()
    raise UsageError(f"{option} {text}: cannot be understood", hint=f"expected {form}")


def _extents(text: str, what: str, form: str) -> tuple[int, ...]:
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
    if not text.strip():
        return ()
    return tuple(_integer(part.strip(), what, form) for part in text.split(","))


def _integer(text: str, what: str, form: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > _MAX_EXTENT:
        raise UsageError(f"{what}: {text!r} is no extent", hint=f"expected whole numbers, as in {form}")
    return int(text)


def _refuse(name: str) -> float:
    raise ValueError(name)

"""Knobs: the choices that a schedule leaves open, and which values of a choice are neighbours (OpEvo §3).

A template is an ordinary schedule function that asks for its choices, each with the value that it would take untuned::

    rows = knobs.discrete("rows", (1, 2, 4, 6), default=6)
    chunks, chunk = knobs.factors("k", 512, 2, default=(8, 64))
    knobs.require(rows * vectors <= 14, "the sums of a tile do not fit the registers")

:class:`Knobs` answers with a given configuration, with the defaults where it says nothing, and remembers what was
asked: that is the :class:`Space`. Within a space a configuration is a row of indices, one a knob, and many of them are
an integer array ``[N, knobs]``, which is what explorers and cost models work on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import permutations
from math import log2, prod
from typing import Any, Protocol

import numpy as np

from mlc.errors import ScheduleError

Value = int | float | str | bool | tuple[Any, ...]
Config = Mapping[str, Value]

TEMPLATE = "template"  # the knob that names the template of a group; see :mod:`mlc.targets.groups.template`
USUAL = "usual"  # its value where that is the one that fits
MAX_ITEMS = 6  # of a permutation: 720 orders


class Knob(Protocol):
    """One choice.

    Attributes:
        name: unique within a space.
        values: everything that can be chosen; an index into them stands for a value.
    """

    @property
    def name(self) -> str: ...

    @property
    def values(self) -> Sequence[Value]: ...

    @property
    def width(self) -> int:
        """Columns of ``table``."""
        ...

    @property
    def table(self) -> np.ndarray:
        """Numbers that describe each value to a cost model, float32 ``[values, width]``."""
        ...

    def neighbours(self, index: int) -> tuple[int, ...]:
        """Indices of the values next to one; symmetric, and every value can be reached from every other."""
        ...


@dataclass(frozen=True)
class Factors:
    """Ways to write ``extent`` as a product of ``parts`` factors; neighbours differ in the place of one prime factor.

    Args:
        name: of the knob.
        extent: the product, at least 1.
        parts: how many factors.
        most: greatest value of a factor, by position from the end (``-1`` is the innermost).
    """

    name: str
    extent: int
    parts: int
    most: tuple[tuple[int, int], ...] = ()

    @cached_property
    def values(self) -> tuple[tuple[int, ...], ...]:
        limit = dict(self.most)
        found = _factorisations(self.extent, self.parts)
        return tuple(f for f in found if all(f[k] <= n for k, n in limit.items()))

    @property
    def width(self) -> int:
        return self.parts

    @cached_property
    def table(self) -> np.ndarray:
        return np.log2(np.array(self.values, np.float32).reshape(-1, self.parts))

    @cached_property
    def _index(self) -> dict[tuple[int, ...], int]:
        return {f: k for k, f in enumerate(self.values)}

    @cached_property
    def _primes(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(prime_factors(self.extent)))

    def neighbours(self, index: int) -> tuple[int, ...]:
        here = self.values[index]
        found: dict[int, None] = {}
        for p in self._primes:
            for i in range(self.parts):
                if here[i] % p:
                    continue
                for j in range(self.parts):
                    if i != j:
                        moved = list(here)
                        moved[i] //= p
                        moved[j] *= p
                        k = self._index.get(tuple(moved))
                        if k is not None:
                            found[k] = None
        return tuple(found)


@dataclass(frozen=True)
class Permutation:
    """Orders of some items; neighbours differ by one exchange of two of them."""

    name: str
    items: tuple[Value, ...]

    @cached_property
    def values(self) -> tuple[tuple[Value, ...], ...]:
        return tuple(permutations(self.items))

    @property
    def width(self) -> int:
        return len(self.items)

    @cached_property
    def table(self) -> np.ndarray:
        places = [[order.index(item) for item in self.items] for order in self.values]
        return np.array(places, np.float32).reshape(-1, self.width)

    @cached_property
    def _index(self) -> dict[tuple[Value, ...], int]:
        return {order: k for k, order in enumerate(self.values)}

    def neighbours(self, index: int) -> tuple[int, ...]:
        here = self.values[index]
        found = []
        for i in range(len(here)):
            for j in range(i):
                order = list(here)
                order[i], order[j] = order[j], order[i]
                found.append(self._index[tuple(order)])
        return tuple(found)


@dataclass(frozen=True)
class Discrete:
    """One of some numbers, in ascending order; the next smaller and the next greater are neighbours."""

    name: str
    values: tuple[int | float, ...]

    @property
    def width(self) -> int:
        return 1

    @cached_property
    def table(self) -> np.ndarray:
        return np.array([[log2(1 + abs(v)) * (1 if v >= 0 else -1)] for v in self.values], np.float32)

    def neighbours(self, index: int) -> tuple[int, ...]:
        return tuple(k for k in (index - 1, index + 1) if 0 <= k < len(self.values))


@dataclass(frozen=True)
class Categorical:
    """One of some things without an order; all others are neighbours."""

    name: str
    values: tuple[Value, ...]

    @property
    def width(self) -> int:
        return len(self.values)

    @cached_property
    def table(self) -> np.ndarray:
        return np.eye(len(self.values), dtype=np.float32)

    def neighbours(self, index: int) -> tuple[int, ...]:
        return tuple(k for k in range(len(self.values)) if k != index)


class Knobs:
    """Answers the questions of a template.

    Args:
        config: values by name; the template's defaults hold for all others.

    Attributes:
        asked: every knob in order of asking.
        defaults: the untuned value of each.
        expected: what the template expects all of it to take with the defaults of what is not asked yet, in a unit of
            its own, of which less is better; nothing where it expects nothing.
    """

    def __init__(self, config: Config | None = None) -> None:
        self.config = dict(config or {})
        self.asked: dict[str, Knob] = {}
        self.defaults: dict[str, Value] = {}
        self.expected: float | None = None

    def factors(
        self, name: str, extent: int, parts: int, *, default: Sequence[int], most: Mapping[int, int] | None = None
    ) -> tuple[int, ...]:
        """Factors of ``extent``, outermost first; ``most`` limits some of them, by position from the end."""
        limits = tuple(sorted((k if k < 0 else k - parts, n) for k, n in (most or {}).items()))
        found: tuple[int, ...] = self._ask(Factors(name, extent, parts, limits), tuple(default))
        return found

    def permutation(self, name: str, items: Sequence[Value], *, default: Sequence[Value] | None = None) -> Any:
        """An order of at most six items.

        Raises:
            ScheduleError: there are more.
        """
        if len(items) > MAX_ITEMS:
            raise ScheduleError(f"knob {name}: {len(items)} items have too many orders; at most {MAX_ITEMS}")
        return self._ask(Permutation(name, tuple(items)), tuple(items if default is None else default))

    def discrete(self, name: str, values: Sequence[int], *, default: int) -> int:
        """One of some numbers; the default is one of them, whether given there or not."""
        found: int = self._ask(Discrete(name, tuple(sorted({*values, int(default)}))), default)
        return found

    def category(self, name: str, values: Sequence[Value], *, default: Value | Callable[[], Value]) -> Any:
        """One of some things; the default, or what finds it where it depends on other choices."""
        return self._ask(Categorical(name, tuple(values)), default)

    def require(self, condition: bool, reason: str) -> None:
        """Refuse the configuration unless a condition holds.

        Raises:
            ScheduleError: it does not.
        """
        if not condition:
            raise ScheduleError(f"configuration refused: {reason}")

    def require_all_asked(self) -> None:
        """Refuse a configuration that names a knob which the template does not have: it was made for another.

        Raises:
            ScheduleError: names the knob.
        """
        for name in self.config:
            self.require(name in self.asked, f"there is no knob {name}")

    def _ask(self, knob: Knob, default: Any) -> Any:
        known = self.asked.get(knob.name)
        if known is not None and known != knob:
            raise ScheduleError(f"knob {knob.name} is asked for twice, with different values")
        default = default() if callable(default) else default
        if default not in knob.values:
            raise ScheduleError(f"knob {knob.name}: its default {default} is none of its values")
        self.asked[knob.name] = knob
        self.defaults[knob.name] = default
        if knob.name not in self.config:
            return default
        value = frozen(self.config[knob.name])
        if value not in knob.values:
            shown = ", ".join(str(v) for v in knob.values[:8]) + (" …" if len(knob.values) > 8 else "")
            raise ScheduleError(f"knob {knob.name} has no value {value}; it has {shown}")
        return value

    def space(self) -> Space:
        """What was asked, as a space."""
        return Space(tuple(self.asked.values()), dict(self.defaults))


@dataclass(frozen=True, eq=False)
class Space:
    """All configurations of a template.

    Args:
        knobs: the choices.
        default: the untuned configuration.
    """

    knobs: tuple[Knob, ...]
    default: Config = field(default_factory=dict)

    @property
    def size(self) -> int:
        """How many configurations there are, refused ones included."""
        return prod(len(k.values) for k in self.knobs)

    @cached_property
    def counts(self) -> np.ndarray:
        """Values of each knob, int64 ``[knobs]``."""
        return np.array([len(k.values) for k in self.knobs], np.int64)

    @cached_property
    def _tables(self) -> list[dict[Value, int]]:
        return [{v: k for k, v in enumerate(knob.values)} for knob in self.knobs]

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """``n`` configurations drawn evenly, with replacement, int64 ``[n, knobs]``."""
        return rng.integers(0, self.counts, (n, len(self.knobs)), dtype=np.int64)

    def row(self, config: Config) -> np.ndarray:
        """Indices of a configuration, int64 ``[knobs]``; knobs that it does not name take their defaults.

        Raises:
            ScheduleError: a knob has no such value.
        """
        row = []
        for knob, table in zip(self.knobs, self._tables, strict=True):
            value = frozen(config.get(knob.name, self.default[knob.name]))
            if value not in table:
                raise ScheduleError(f"knob {knob.name} has no value {value}")
            row.append(table[value])
        return np.array(row, np.int64)

    def nearest(self, config: Config) -> np.ndarray:
        """What comes nearest to a configuration of another space of the same template, int64 ``[knobs]``.

        Of an extent that is another one, the factors but for the outermost are kept as far as they can be; numbers are
        compared by their logarithms; where nothing is near, and for knobs that it does not name, the defaults hold.
        """
        return np.array(
            [
                _nearest(knob, table, frozen(config.get(knob.name, self.default[knob.name])), self.default[knob.name])
                for knob, table in zip(self.knobs, self._tables, strict=True)
            ],
            np.int64,
        )

    def config(self, row: Sequence[int] | np.ndarray) -> dict[str, Value]:
        """The configuration that a row of indices stands for."""
        return {knob.name: knob.values[int(k)] for knob, k in zip(self.knobs, row, strict=True)}

    def column(self, rows: np.ndarray, name: str, part: Any = None) -> np.ndarray:
        """Values of a numeric knob for many configurations, ``[N]``.

        Args:
            rows: int64 ``[N, knobs]``.
            name: of the knob.
            part: which of several factors, or the item of an order whose place is asked for.
        """
        at = next(k for k, knob in enumerate(self.knobs) if knob.name == name)
        knob = self.knobs[at]
        if part is None:
            picked = np.array(knob.values)
            picked = picked.astype(np.int64) if picked.dtype == bool else picked
        elif isinstance(knob, Permutation):
            picked = np.array([order.index(part) for order in knob.values])
        else:
            picked = np.array([v[part] if isinstance(v, tuple) else v for v in knob.values])
        column: np.ndarray = picked[rows[:, at]]
        return column

    def index(self, row: Sequence[int] | np.ndarray) -> int:
        """The number of a configuration in ``range(size)``; the last knob counts fastest."""
        number = 0
        for count, k in zip(self.counts.tolist(), row, strict=True):
            number = number * count + int(k)
        return number

    def at(self, index: int) -> np.ndarray:
        """The row of a number, the inverse of :meth:`index`."""
        row = np.zeros(len(self.knobs), np.int64)
        for k in range(len(self.knobs) - 1, -1, -1):
            index, row[k] = divmod(index, int(self.counts[k]))
        return row

    def neighbours(self, row: np.ndarray) -> Iterator[np.ndarray]:
        """Every configuration in which one knob has moved to a neighbouring value."""
        for at, knob in enumerate(self.knobs):
            for k in knob.neighbours(int(row[at])):
                moved = row.copy()
                moved[at] = k
                yield moved

    def describe(self, rows: np.ndarray) -> np.ndarray:
        """Configuration features: the tables of all knobs side by side, float32 ``[N, sum of widths]``."""
        return np.concatenate([k.table[rows[:, i]] for i, k in enumerate(self.knobs)], axis=1, dtype=np.float32)


def _nearest(knob: Knob, table: Mapping[Value, int], value: Value, default: Value) -> int:
    """The index of the value of a knob that comes nearest to a value of a like one."""
    if value in table:
        return table[value]
    if isinstance(knob, Factors) and isinstance(value, tuple) and len(value) == knob.parts:
        inner = np.log2(np.array(value[1:], np.float64))
        return int(np.abs(knob.table[:, 1:] - inner).sum(axis=1).argmin())
    if isinstance(knob, Discrete) and isinstance(value, (int, float)):
        here = Discrete(knob.name, (value,)).table
        return int(np.abs(knob.table - here).sum(axis=1).argmin())
    return table[default]


def space_of(template: Callable[[Knobs], object]) -> Space:
    """The space of a template: what it asks for with all defaults."""
    knobs = Knobs()
    template(knobs)
    return knobs.space()


def frozen(value: Any) -> Any:
    """A value as read from JSON, with tuples for lists."""
    return tuple(frozen(v) for v in value) if isinstance(value, (list, tuple)) else value


def prime_factors(n: int) -> list[int]:
    """Prime factors with repetition, ascending."""
    found, p = [], 2
    while p * p <= n:
        while n % p == 0:
            found.append(p)
            n //= p
        p += 1 if p == 2 else 2
    return [*found, n] if n > 1 else found


def divisors(n: int) -> list[int]:
    """All divisors, ascending."""
    return list(_divisors(n))


@lru_cache(4096)  # extents recur, and the large ones take long
def _divisors(n: int) -> tuple[int, ...]:
    found = [1]
    for prime, times in Counter(prime_factors(n)).items():
        found = [d * prime**k for d in found for k in range(times + 1)]
    return tuple(sorted(found))


def _factorisations(n: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (n,)
        return
    for k in divisors(n):
        for rest in _factorisations(n // k, parts - 1):
            yield (k, *rest)

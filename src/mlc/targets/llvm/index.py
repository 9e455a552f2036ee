"""Index arithmetic: canonical forms to ``i64`` values and pointers, emitted as far out as their variables allow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlc.ir import loop
from mlc.ir.index import Atom, Dynamic, Linear, Quotient, Remainder, Var
from mlc.targets.llvm.text import memory_type

if TYPE_CHECKING:
    from mlc.ir.expr import Expr


class Level:
    """One loop body: what is emitted at its top, and can be reused anywhere inside it.

    Args:
        lines: of the function so far.
        tile: whether the loop carries a register tile.
    """

    def __init__(self, lines: list[Any], tile: bool = False) -> None:
        self.top: list[Any] = []
        lines.append(self.top)
        self.cache: dict[str, str] = {}
        self.atoms: dict[Atom, str] = {}  # values of what depends on no loop further in
        self.bases: dict[tuple[object, ...], str] = {}  # addresses by buffer and terms, for accesses right in this body
        self.tile = tile


class IndexEmitter:
    """The part of a function emitter that deals with indices."""

    lines: list[Any]
    levels: list[Level]
    depth: dict[Var, int]
    names: dict[Var, str]
    pointers: dict[int, str]

    if TYPE_CHECKING:

        def fresh(self, hint: str = "v") -> str: ...

        def pure(self, text: str) -> str: ...

        def integer(self, e: Expr) -> str: ...

        def declare(self, line: str) -> None: ...

    def at(self, level: int | None, text: str) -> str:
        """Emit at the top of a loop level, or right here when ``level`` is ``None``."""
        if level is None:
            return self.pure(text)
        for outer in self.levels[: level + 1]:
            if text in outer.cache:
                return outer.cache[text]
        name = self.fresh("x")
        self.levels[level].top.append(f"  {name} = {text}")
        self.levels[level].cache[text] = name
        return name

    def level_of(self, atom: Atom) -> int | None:
        """The innermost level that an atom depends on; ``None`` for run-time values, which stay in place."""
        if isinstance(atom, Var):
            return self.depth[atom]
        if isinstance(atom, Dynamic):
            return None
        return max((self.depth[v] for v in atom.vars), default=0) if atom.fixed else None

    def atom(self, atom: Atom) -> str:
        """The value of an atom."""
        if isinstance(atom, Var):
            return self.names[atom]
        if isinstance(atom, Dynamic):
            return self.integer(atom.expr)
        level = self.level_of(atom)
        if level is None:
            return self._divided(atom, None)
        known = self.levels[level].atoms
        if atom not in known:
            known[atom] = self._divided(atom, level)
        return known[atom]

    def _divided(self, atom: Quotient | Remainder, level: int | None) -> str:
        value = self.index(atom.form)
        d = atom.divisor
        least, _ = atom.form.bounds()
        quotient = isinstance(atom, Quotient)
        if least >= 0:
            return self.at(level, f"{'udiv' if quotient else 'urem'} i64 {value}, {d}")
        # floor semantics: r = ((x srem d) + d) srem d; q = (x - r) / d
        r = self.at(level, f"srem i64 {value}, {d}")
        r = self.at(level, f"add nsw i64 {r}, {d}")
        r = self.at(level, f"urem i64 {r}, {d}")
        if not quotient:
            return r
        return self.at(level, f"sdiv exact i64 {self.at(level, f'sub nsw i64 {value}, {r}')}, {d}")

    def by_level(self, index: Linear) -> list[tuple[int | None, list[tuple[Atom, int]]]]:
        """Terms grouped by the level they depend on, outermost first, run-time values last."""
        groups: dict[int | None, list[tuple[Atom, int]]] = {}
        for atom, c in index.terms.items():
            groups.setdefault(self.level_of(atom), []).append((atom, c))
        return sorted(groups.items(), key=lambda g: 1 << 30 if g[0] is None else g[0])

    def partial(self, level: int | None, terms: list[tuple[Atom, int]]) -> str:
        """The sum of some terms."""
        total = ""
        for atom, c in terms:
            value = self.atom(atom)
            scaled = value if c == 1 else self.at(level, f"mul nsw i64 {value}, {c}")
            total = scaled if not total else self.at(level, f"add nsw i64 {total}, {scaled}")
        return total

    def index(self, index: Linear) -> str:
        """The value of a form."""
        total = ""
        last: int | None = 0
        for level, terms in self.by_level(index):
            last = level
            part = self.partial(level, terms)
            total = part if not total else self.at(level, f"add nsw i64 {total}, {part}")
        if not total:
            return str(index.const)
        return self.at(last, f"add nsw i64 {total}, {index.const}") if index.const else total

    def pointer(self, buffer: loop.Buffer, offset: Linear) -> str:
        """Address of an element: one pointer a loop level, the constant last.

        Partial sums may leave the buffer (a negative constant comes last), hence no ``inbounds``.
        """
        t = memory_type(buffer.dtype)
        key = (id(buffer), bool(offset.const), *offset.terms.items())
        at = self.levels[-1].bases.get(key)
        if at is None:
            at = self._base(t, buffer, offset)
            # what is known at run time only is there only where it was computed
            if all(self.level_of(atom) is not None for atom in offset.terms):
                self.levels[-1].bases[key] = at
        if not offset.const:
            return at
        return self.pure(f"getelementptr {t}, ptr {at}, i64 {offset.const}")

    def _base(self, t: str, buffer: loop.Buffer, offset: Linear) -> str:
        """The address without the constant."""
        at = self.pointers[id(buffer)]
        for level, terms in self.by_level(offset):
            at = self.at(level, f"getelementptr {t}, ptr {at}, i64 {self.partial(level, terms)}")
            if level is not None and (self.levels[level].tile or offset.const):
                # LLVM's strength reduction would keep a pointer for every constant offset, more than there are
                # registers, and takes a fifth of the compilation for it; behind this its view ends, and the offsets
                # stay in the instructions
                self.declare("declare ptr @llvm.launder.invariant.group.p0(ptr)")
                at = self.at(level, f"call ptr @llvm.launder.invariant.group.p0(ptr {at})")
        return at

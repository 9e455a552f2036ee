"""Which buffers become SSA values: ``register`` scope, constant indices, every element always written alike."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from mlc.ir import loop
from mlc.ir.expr import loads
from mlc.ir.index import Linear, Var, as_index, weighted
from mlc.lower.rewrite import exprs_of
from mlc.targets.llvm.intrinsic import VectorIntrinsic

Elements = tuple[int, ...]  # of a buffer, in the order of lanes
Slot = tuple[int, Elements, int]  # (id of the buffer, which of its elements, lanes; 0 lanes for a scalar)
Lanes = Var | tuple[Var, ...] | None  # what counts the lanes of an access; of several variables the last counts fastest
Place = tuple[loop.Buffer, tuple[Linear, ...], Lanes]

_WITH_PLACES = frozenset({loop.Store, loop.If, loop.ForRange, loop.Prefetch, loop.Evaluate})


class Accesses:
    """What the statements of a function read and write: found once, asked for many times.

    Args:
        body: of the function.
    """

    def __init__(self, body: loop.Stmt) -> None:
        self.body = body
        # by identity, so what is told by it is kept
        self._of: dict[int, tuple[loop.Stmt, tuple[Place, ...]]] = {}
        self._offsets: dict[tuple[int, int], tuple[tuple[Linear, ...], Linear]] = {}
        self._strides: dict[int, tuple[loop.Buffer, tuple[int, ...]]] = {}

    def of(self, s: loop.Stmt) -> tuple[Place, ...]:
        """Every load, and last the store, prefetch or result of an intrinsic, of a statement itself."""
        if type(s) not in _WITH_PLACES:
            return ()
        found = self._of.get(id(s))
        if found is None:
            found = self._of[id(s)] = s, tuple(accesses(s))
        return found[1]

    def offset(self, buffer: loop.Buffer, indices: tuple[Linear, ...]) -> Linear:
        """Offset in elements of an access."""
        key = id(buffer), id(indices)
        found = self._offsets.get(key)
        if found is None:
            if id(buffer) not in self._strides:
                self._strides[id(buffer)] = buffer, buffer.strides()
            found = self._offsets[key] = indices, weighted(indices, self._strides[id(buffer)][1])
        return found[1]


class Slots:
    """The register slots of one function.

    A buffer qualifies when every access to it has a constant offset once the lanes are taken out, no two stores overlap
    without being the same, every load stays inside one store, and none is made by other threads than the buffer's own.
    Buffers that do not qualify live in memory. An intrinsic stores a block of rows at once, whose lanes need not be
    neighbours; nor need those of a load from there.

    Args:
        places: of the function's statements.
    """

    def __init__(self, places: Accesses) -> None:
        body = places.body
        self._places = places
        self._keys: dict[tuple[int, int, int], tuple[Elements, int] | None] = {}
        stores: dict[int, set[tuple[Elements, int]]] = {}
        reads: dict[int, set[tuple[Elements, int]]] = {}
        refused = _shared(body, None, {}, places)
        registers = {id(s.buffer) for s in loop.walk(body) if type(s) is loop.Allocate and s.buffer.scope == "register"}
        for s in loop.walk(body):
            for k, (buffer, indices, lane) in enumerate(reversed(places.of(s))):
                if id(buffer) not in registers:
                    continue
                key = self._key(buffer, indices, lane)
                if key is None:
                    refused.add(id(buffer))
                else:
                    into = stores if writes(s) and k == 0 else reads
                    into.setdefault(id(buffer), set()).add(key)
        # of an element of a buffer: the store around it
        self._owner: dict[tuple[int, int], tuple[Elements, int]] = {}
        for b, keys in stores.items():
            for key in keys:
                if any(self._owner.setdefault((b, e), key) != key for e in key[0]):
                    refused.add(b)
        for b, keys in reads.items():
            if any(len({self._owner.get((b, e)) for e in key[0]}) > 1 for key in keys):
                refused.add(b)
        self.buffers = registers - refused

    def _key(self, buffer: loop.Buffer, indices: tuple[Linear, ...], lane: Lanes) -> tuple[Elements, int] | None:
        asked = id(buffer), id(indices), id(lane)
        if asked not in self._keys:
            self._keys[asked] = slot_key(self._places.offset(buffer, indices), lane)
        return self._keys[asked]

    def slot(self, buffer: loop.Buffer, indices: tuple[Linear, ...], lane: Lanes) -> Slot | None:
        """The slot that a store writes, or ``None`` when the buffer is in memory."""
        if id(buffer) not in self.buffers:
            return None
        key = self._key(buffer, indices, lane)
        assert key is not None
        return (id(buffer), *key)

    def part(self, buffer: loop.Buffer, indices: tuple[Linear, ...], lane: Lanes) -> tuple[Slot, Elements, int] | None:
        """What a load reads: a slot, which of its lanes in their order, and how many (0 for a scalar).

        ``None`` when the buffer is in memory.
        """
        found = self.slot(buffer, indices, lane)
        if found is None:
            return None
        b, read, lanes = found
        held, of = self._owner.get((b, read[0]), (read, lanes))
        return (b, held, of), tuple(held.index(e) for e in read), lanes

    def written(self, s: loop.Stmt) -> list[Slot]:
        """Slots that a statement assigns and that live longer than it, in program order."""
        inner = {id(a.buffer) for a in loop.walk(s) if type(a) is loop.Allocate}
        found: dict[Slot, None] = {}
        for stmt in loop.walk(s):
            if not writes(stmt):
                continue
            buffer, indices, lane = self._places.of(stmt)[-1]
            if id(buffer) in self.buffers and id(buffer) not in inner:
                slot = self.slot(buffer, indices, lane)
                if slot is not None:
                    found[slot] = None
        return list(found)


def _shared(s: loop.Stmt, region: loop.For | None, homes: dict[int, loop.For | None], places: Accesses) -> set[int]:
    """Register buffers that are used in a function of the region's own but allocated around it.

    Args:
        s: what is searched.
        region: the loop around it that becomes a function: the outermost parallel one, or one that is outlined.
        homes: the region that each register buffer in scope was allocated in.
        places: of the function's statements.
    """
    if type(s) is loop.Allocate and s.buffer.scope == "register":
        homes[id(s.buffer)] = region
    found = {id(b) for b, _, _ in places.of(s) if homes.get(id(b), region) is not region}
    if type(s) is loop.For and ((s.kind is loop.ForKind.PARALLEL and region is None) or outlined(s) is not None):
        region = s
    for c in loop.sub_statements(s):
        found |= _shared(c, region, homes, places)
    return found


def outlined(s: loop.For) -> loop.For | None:
    """A loop that is to be a function of its own (``pragma.outline``), without the mark; ``None`` for any other."""
    body = s.body
    if type(body) is not loop.Seq or not body.stmts or type(body.stmts[0]) is not loop.Evaluate:
        return None
    if body.stmts[0].name != "pragma.outline":
        return None
    return loop.For(s.var, s.extent, s.kind, loop.seq(body.stmts[1:]), s.thread)


def slot_key(offset: Linear, lane: Lanes) -> tuple[Elements, int] | None:
    """(elements, lanes) of an access at a constant offset; ``None`` for any other, or for one whose lanes are apart.

    Rows of a block may be.
    """
    terms = offset.terms
    if not terms:
        return (offset.const,), 0
    if isinstance(lane, Var):
        alone = len(terms) == 1 and terms.get(lane) == 1
        return (tuple(range(offset.const, offset.const + lane.hi + 1)), lane.hi + 1) if alone else None
    axes = lane or ()
    if any(t not in axes for t in terms):
        return None
    steps = [[k * terms.get(a, 0) for k in range(a.hi + 1)] for a in axes]
    elements = tuple(offset.const + sum(at) for at in product(*steps))
    return elements, len(elements)


def accesses(s: loop.Stmt) -> Iterator[Place]:
    """Every load, and last the store, prefetch or result of an intrinsic, of a statement itself."""
    lane = s.lane if type(s) is loop.Store else None
    for e in exprs_of(s):
        for ld in loads(e):
            yield ld.source, ld.indices, lane
    if type(s) is loop.Store:
        yield s.buffer, s.indices, lane
    elif type(s) is loop.Prefetch:
        yield s.buffer, s.indices, None
    elif type(s) is loop.Evaluate and isinstance(s.intrinsic, VectorIntrinsic):
        _, out, *ins = s.args
        for a in ins:
            yield a.buffer, a.indices, None
        axes = s.intrinsic.op.axes
        last = sum((as_index(a) * step for a, step in zip(axes, out.strides, strict=True)), out.indices[-1])
        yield out.buffer, (*out.indices[:-1], last), axes if len(axes) > 1 else axes[0]


def writes(s: loop.Stmt) -> bool:
    """Whether the last place of a statement is one that it writes."""
    return type(s) is loop.Store or (type(s) is loop.Evaluate and isinstance(s.intrinsic, VectorIntrinsic))

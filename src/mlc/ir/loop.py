"""The loop AST: what a schedule lowers to and the only thing a target's code generator sees.

A vector statement is a :class:`Store` with a *lane* variable: its value is computed for every lane first, then stored.
Memory scopes are open names defined by targets (``global``, ``local``, ``register``, ``shared`` …), never an enum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import prod
from typing import TYPE_CHECKING, Any

from mlc.ir.expr import Expr
from mlc.ir.index import ZERO, Linear, Var
from mlc.ir.text import Printable
from mlc.ir.types import DType

if TYPE_CHECKING:
    from mlc.ir.intrinsic import TensorIntrinsic


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Elements between neighbours along each axis of a row-major array."""
    out: list[int] = []
    step = 1
    for n in reversed(shape):
        out.append(step)
        step *= n
    return tuple(reversed(out))


class ForKind(StrEnum):
    """How the iterations of a loop are carried out."""

    SERIAL = "serial"
    PARALLEL = "parallel"
    VECTORIZED = "vectorized"
    UNROLLED = "unrolled"
    THREAD = "thread"
    VTHREAD = "vthread"


BLOCK_AXES = ("blockIdx.z", "blockIdx.y", "blockIdx.x")
THREAD_AXES = ("threadIdx.z", "threadIdx.y", "threadIdx.x")
"""Axes of a grid of blocks and of the threads of a block, slowest first; loops of kind ``THREAD`` are bound to them."""


@dataclass(slots=True, eq=False, repr=False)
class Buffer:
    """A dense row-major array in some memory.

    Args:
        name: unique within a function, but for copies of a tile that live one after the other.
        shape: physical extents.
        dtype: element type.
        scope: memory it lives in.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    scope: str = "global"

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def strides(self) -> tuple[int, ...]:
        """Elements between neighbours along each axis."""
        return dense_strides(self.shape)

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}[{','.join(map(str, self.shape))}]"


class Stmt(Printable):
    """Base of statements."""

    __slots__ = ()


@dataclass(slots=True, eq=False, repr=False)
class For(Stmt):
    """``for var in range(extent)``; ``var`` starts at 0.

    ``thread`` names the axis that a loop of kind ``THREAD`` is bound to. The iterations of such loops run side by
    side: those over an axis of ``THREAD_AXES`` are the threads of a block, which share buffers that are allocated
    around these loops, and meet at barriers.
    """

    var: Var
    extent: int
    kind: ForKind
    body: Stmt
    thread: str = ""


@dataclass(slots=True, eq=False, repr=False)
class ForRange(Stmt):
    """``for var in range(begin, end)`` with bounds known at run time (opaque routines)."""

    var: Var
    begin: Expr
    end: Expr
    body: Stmt


@dataclass(slots=True, eq=False, repr=False)
class Seq(Stmt):
    """Statements in order."""

    stmts: tuple[Stmt, ...]


@dataclass(slots=True, eq=False, repr=False)
class Store(Stmt):
    """``buffer[indices] = value``, for every value of ``lane`` at once where there is one.

    An ``asynchronous`` one is a copy that is only begun: its thread sees it after a :class:`Wait`, others after a
    barrier behind that one. Until then nobody may touch the place.
    """

    buffer: Buffer
    indices: tuple[Linear, ...]
    value: Expr
    lane: Var | None = None
    asynchronous: bool = False


@dataclass(slots=True, eq=False, repr=False)
class If(Stmt):
    """A branch; ``orelse`` may be absent."""

    cond: Expr
    then: Stmt
    orelse: Stmt | None = None


@dataclass(slots=True, eq=False, repr=False)
class Allocate(Stmt):
    """A buffer that lives for the duration of ``body``; its contents are undefined at first."""

    buffer: Buffer
    body: Stmt


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """A small tensor inside a buffer, an operand of an intrinsic.

    Args:
        buffer: where it lies.
        indices: of its first element.
        strides: elements between its neighbours along each of its own axes.
    """

    buffer: Buffer
    indices: tuple[Linear, ...]
    strides: tuple[int, ...]

    @property
    def offset(self) -> Linear:
        """Of the first element, counted in elements from the start of the buffer."""
        steps = zip(self.indices, self.buffer.strides(), strict=True)
        return sum((ix * step for ix, step in steps), ZERO)

    def __repr__(self) -> str:
        return f"{self.buffer.name}[{', '.join(map(str, self.indices))}]"


@dataclass(slots=True, eq=False, repr=False)
class Evaluate(Stmt):
    """An intrinsic for its effect, a synchronisation, or a fact about the loop around it (``pragma.…``).

    Args:
        name: of the intrinsic.
        args: for a tensor intrinsic its kind, then an :class:`Access` for its output and for each input.
        intrinsic: the tensor intrinsic, where it is one.
    """

    name: str
    args: tuple[Any, ...]
    intrinsic: TensorIntrinsic | None = None


@dataclass(slots=True, eq=False, repr=False)
class Prefetch(Stmt):
    """Fetch the cache line of ``buffer[indices]`` into the cache of the given level; indices may leave the buffer."""

    buffer: Buffer
    indices: tuple[Linear, ...]
    level: int


@dataclass(slots=True, eq=False, repr=False)
class Barrier(Stmt):
    """All threads of a block meet, and see what each has written to memory of ``scope`` before."""

    scope: str


@dataclass(slots=True, eq=False, repr=False)
class Shuffle(Stmt):
    """``buffer[indices] = source[at]`` of another thread, whose number in the warp has one bit flipped.

    All threads of a block come to it together; what they exchange is private to each.

    Args:
        buffer, indices: where a thread puts what it gets.
        source, at: what it gives.
        flip: the bit, a power of two: how far away the other thread is along ``threadIdx.x``.
    """

    buffer: Buffer
    indices: tuple[Linear, ...]
    source: Buffer
    at: tuple[Linear, ...]
    flip: int


@dataclass(slots=True, eq=False, repr=False)
class Commit(Stmt):
    """The asynchronous copies that a thread has begun since the last one become a group, maybe an empty one."""


@dataclass(slots=True, eq=False, repr=False)
class Wait(Stmt):
    """A thread waits until all of its groups of copies are over, except for so many of the latest."""

    groups: int


@dataclass(slots=True, eq=False, repr=False)
class Function(Printable):
    """A kernel.

    Args:
        name: symbol.
        params: buffers passed in, inputs before outputs.
        outputs: how many of the last parameters are written.
        body: what it does.
        attrs: facts for the code generator and reports (``flops``, ``bytes`` …).
    """

    name: str
    params: tuple[Buffer, ...]
    outputs: int
    body: Stmt
    attrs: dict[str, Any] = field(default_factory=dict)


NOTHING = Seq(())


def seq(stmts: Sequence[Stmt]) -> Stmt:
    """Statements in order, flattened; a single one stays itself."""
    out: list[Stmt] = []
    for s in stmts:
        if type(s) is Seq:
            out += s.stmts
        else:
            out.append(s)
    return out[0] if len(out) == 1 else Seq(tuple(out))


def sub_statements(s: Stmt) -> tuple[Stmt, ...]:
    """Direct sub-statements."""
    if type(s) is Store:  # nearly all statements are
        return ()
    if type(s) is For or type(s) is Allocate or type(s) is ForRange:
        return (s.body,)
    if type(s) is Seq:
        return s.stmts
    if type(s) is If:
        return (s.then,) if s.orelse is None else (s.then, s.orelse)
    return ()


def walk(s: Stmt) -> Iterator[Stmt]:
    """Every statement, outer before inner, in program order."""
    stack = [s]
    while stack:
        node = stack.pop()
        yield node
        if type(node) is not Store:
            stack += sub_statements(node)[::-1]


def rebuild(s: Stmt, fn: Callable[[Stmt], Stmt]) -> Stmt:
    """The same statement over rewritten sub-statements; itself when none changed."""
    if type(s) is Store:  # nearly all statements are
        return s
    if isinstance(s, For):
        body = fn(s.body)
        return s if body is s.body else For(s.var, s.extent, s.kind, body, s.thread)
    if isinstance(s, Seq):
        new = [fn(c) for c in s.stmts]
        return s if all(a is b for a, b in zip(new, s.stmts, strict=True)) else seq(new)
    if isinstance(s, If):
        then = fn(s.then)
        orelse = None if s.orelse is None else fn(s.orelse)
        return s if then is s.then and orelse is s.orelse else If(s.cond, then, orelse)
    if isinstance(s, Allocate):
        body = fn(s.body)
        return s if body is s.body else Allocate(s.buffer, body)
    if isinstance(s, ForRange):
        body = fn(s.body)
        return s if body is s.body else ForRange(s.var, s.begin, s.end, body)
    return s


def is_nothing(s: Stmt | None) -> bool:
    """Whether a statement does nothing at all; facts about a loop without a body are nothing, too."""
    if type(s) is Evaluate:
        return s.name.startswith("pragma.")
    return s is None or (type(s) is Seq and all(map(is_nothing, s.stmts)))

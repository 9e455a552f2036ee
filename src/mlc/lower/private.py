"""Large buffers of parallel loops go to the workspace: a thread's stack is small.

A buffer that is allocated inside a parallel loop belongs to one iteration, and lives on the stack of the thread that
runs it. Where all of them take more than a stack should hold, the largest get one place an iteration, allocated around
the loop; where that would be much more than the kernel's tensors, the loop runs one iteration after the other instead.

Stage in: loops for a processor, lowered. Stage out: the same, with the buffers moved.

Example, with ``p`` too large for a stack::

    parallel i in 0..4:                     alloc p: f32[4,9999]
      alloc p: f32[9999]           →        parallel i in 0..4:
      for j in 0..9999: p[j] = x[i]           for j in 0..9999: p[i, j] = x[i]
"""

from __future__ import annotations

from collections.abc import Mapping

from mlc.ir.index import Linear, as_index
from mlc.ir.loop import Allocate, Buffer, For, ForKind, Function, Stmt, rebuild, walk
from mlc.lower.rewrite import Place, map_places

STACK_BYTES = 1 << 20  # of one function; more of them may be active, and the smallest stacks of threads have 8 MB
_ALWAYS_AFFORDABLE = 64 << 20  # bytes of workspace, however small the kernel's tensors are
_AFFORDABLE = 4  # times the kernel's tensors


def spare_stack(fn: Function, most: int = STACK_BYTES) -> Function:
    """Move buffers out of parallel loops so that each iteration keeps at most ``most`` bytes on its thread's stack.

    Args:
        fn: a kernel; itself comes back where nothing is too large.
        most: bytes that may stay on the stack.
    """
    affordable = max(_ALWAYS_AFFORDABLE, _AFFORDABLE * sum(b.nbytes for b in fn.params))
    body = _moved(fn.body, most, affordable)
    return fn if body is fn.body else Function(fn.name, fn.params, fn.outputs, body, fn.attrs)


def _moved(s: Stmt, most: int, affordable: int) -> Stmt:
    if isinstance(s, For) and s.kind is ForKind.PARALLEL:
        large = _too_large(s.body, most)
        if not large:
            return s
        if s.extent * sum(_bytes(b) for b in large) > affordable:
            return _allocated(large, For(s.var, s.extent, ForKind.SERIAL, _serial(s.body), s.thread))
        return _allocated(large, s, each=True)
    if isinstance(s, Allocate) and s.buffer.scope == "local" and s.buffer.nbytes > most:
        shared = Buffer(s.buffer.name, s.buffer.shape, s.buffer.dtype)
        return Allocate(shared, _moved(_renamed(s.body, {s.buffer: (shared, ())}), most, affordable))
    return rebuild(s, lambda c: _moved(c, most, affordable))


def _too_large(body: Stmt, most: int) -> list[Buffer]:
    """The largest buffers allocated in a loop, such that those that are left fit; copies of bodies share them."""
    inside = dict.fromkeys(c.buffer for c in walk(body) if isinstance(c, Allocate) and c.buffer.scope != "register")
    left = sum(map(_bytes, inside))
    large: list[Buffer] = []
    for b in sorted(inside, key=lambda b: -_bytes(b)):
        if left <= most:
            break
        large.append(b)
        left -= _bytes(b)
    return large


def _allocated(large: list[Buffer], loop: For, *, each: bool = False) -> Stmt:
    """A loop with its large buffers around it, for all iterations together or a place for each."""
    extents = (loop.extent,) if each else ()
    before = (as_index(loop.var),) if each else ()
    places: dict[Buffer, Place] = {b: (Buffer(b.name, (*extents, *b.shape), b.dtype), before) for b in large}
    body = _renamed(_without(loop.body, set(large)), places)
    out: Stmt = For(loop.var, loop.extent, loop.kind, body, loop.thread)
    for shared, _ in places.values():
        out = Allocate(shared, out)
    return out


def _bytes(b: Buffer) -> int:
    return -(-b.nbytes // 64) * 64  # every buffer is aligned to a cache line


def _serial(s: Stmt) -> Stmt:
    """Parallel loops inside of one that no longer is: they were serial before."""
    if isinstance(s, For) and s.kind is ForKind.PARALLEL:
        return For(s.var, s.extent, ForKind.SERIAL, _serial(s.body), s.thread)
    return rebuild(s, _serial)


def _without(s: Stmt, buffers: set[Buffer]) -> Stmt:
    if isinstance(s, Allocate) and s.buffer in buffers:
        return _without(s.body, buffers)
    return rebuild(s, lambda c: _without(c, buffers))


def _renamed(s: Stmt, places: Mapping[Buffer, Place]) -> Stmt:
    """Every access to a buffer redirected to another, with indices put before its own."""

    def place(b: Buffer, indices: tuple[Linear, ...]) -> Place:
        if b not in places:
            return b, indices
        shared, before = places[b]
        return shared, (*before, *indices)

    return map_places(s, place)

"""In what the C-like languages of devices differ; all else is :mod:`mlc.targets.gpu.emit`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from mlc.ir.loop import Buffer


@dataclass(frozen=True)
class Collective:
    """What the threads of a warp do together.

    Args:
        call: a statement; of operand ``k``, the output first, ``{k}`` is a pointer to its first element, and ``{k.d}``
            how far its neighbours along axis ``d`` are; ``{#d}`` is how many there are of the output's.
        functions: that the statement calls, whole definitions by name, in order.
    """

    call: str
    functions: Mapping[str, str]


@dataclass(frozen=True)
class VectorMath:
    """Operators and functions of a language that take vectors of floats as they take numbers.

    Vectors of half precision are computed with in single precision, as numbers are.

    Args:
        widths: numbers of elements that vectors have.
        splat: a vector all of whose elements are ``{value}``; ``{vector}`` is its type.
        mad: what defines ``mlc_mad(a, b, c)``: a product and a sum, as one operation where that is fast.
        choose: ``{a}`` or ``{b}``, element by element, as ``{cond}``, a comparison of vectors, is true or not.
        largest, smallest, sigmoid: definitions of functions ``{name}`` on ``{vector}``, with the meanings of
            :mod:`mlc.ir.expr`.
        load_half, store_half: ``{n}`` elements in half precision, ``{at}`` a pointer to global memory, ``{value}``.
        round_half: the definition of a function ``{name}``, which rounds a vector of ``{n}`` to half precision.
    """

    widths: tuple[int, ...]
    splat: str
    mad: str
    choose: str
    largest: str
    smallest: str
    sigmoid: str
    load_half: str
    store_half: str
    round_half: str


@dataclass(frozen=True)
class Dialect:
    """A language.

    Args:
        types: its names of element types as they lie in memory; those that are missing it does not have. Booleans are
            bytes, floats of 16 bits are unsigned integers.
        conversions: functions ``mlc_from_f16`` (its bits to a float) and ``mlc_to_f16`` (a float rounded, as bits), and
            the same for ``bf16``.
        copies: functions ``mlc_copy_<n>`` (so many bytes from global to shared memory, while other things are done),
            ``mlc_copy_<n>_or_zero`` (or as many zeros), ``mlc_commit`` and ``mlc_wait_<groups>``; none where there are
            no such copies.
        collectives: what the threads of a warp can do together, by names of intrinsics.
        unsigned: its names of unsigned integers by their bits.
        kernel: what a kernel's definition begins with; ``{x}``, ``{y}`` and ``{z}`` are threads of a block, and
            ``{threads}`` all of them.
        device: what any other function's begins with.
        parameter: a pointer to global memory; ``{type}`` and ``{name}``.
        constant: the same, which is only read.
        shared: a shared array; ``{type}``, ``{name}``, ``{size}``.
        most_shared: bytes of a block's shared arrays that can be declared so; if there are more, they are parts of an
            array ``dynamic``, as large as a launch says: ``part`` has ``{type}``, ``{name}``, ``{at}`` (bytes).
        index: where a thread stands, by axes of a grid.
        blocks: how many a grid has at most along x, y and z.
        barrier: all threads of a block meet.
        shuffle: what the thread with one bit of its number flipped has, ``{value}`` and ``{flip}``; empty where threads
            cannot exchange what is in registers.
        vectors: numbers of elements that are loaded and stored at once.
        load: so many elements: ``{n}``, ``{type}`` (of the vector), ``{at}`` (a pointer).
        store: the same, with ``{value}``.
        vector: its type, ``{type}`` (of an element), ``{n}``.
        make: one of its elements, ``{vector}``, ``{type}`` (of an element), ``{values}``.
        lane: an element of it, ``{value}``, ``{k}`` (hexadecimal).
        single: the suffix of functions in single precision.
        infinity, nan: their literals.
        preamble: what a text begins with.
        unroll: what stands before a loop to be written out; empty where it is to stay like others.
        loop: the same before any other one.
        math: on vectors; without, each lane of a vector is computed for itself.
    """

    types: Mapping[str, str]
    conversions: Mapping[str, str]
    copies: Mapping[str, str]
    collectives: Mapping[str, Collective]
    unsigned: Mapping[int, str]
    kernel: str
    device: str
    parameter: str
    constant: str
    shared: str
    index: Mapping[str, str]
    blocks: tuple[int, int, int]
    barrier: str
    shuffle: str
    vectors: tuple[int, ...]
    load: str
    store: str
    vector: str
    make: str
    lane: str
    single: str
    infinity: str
    nan: str
    preamble: str
    unroll: str = "#pragma unroll"
    loop: str = ""
    math: VectorMath | None = None
    most_shared: float = inf
    dynamic: str = ""
    part: str = ""

    def has(self, b: Buffer) -> bool:
        return b.dtype.name in self.types

"""A small emitter of textual LLVM IR (LLVM 22) for functions over vectors, written with Python's operators.

``y = x * x + 1.0`` over values emits two instructions and hands back the name of the second. Products and sums carry
the ``contract`` flag: they fuse to one instruction where the processor has a fused multiply-add, and stay two where it
has not, instead of becoming calls to ``fma``. A formula written with them must be right either way.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Element types by their LLVM names, and the integer that has the bits of each floating one.
BITS_OF = {"float": "i32", "double": "i64"}
FLOAT_OF = {bits: kind for kind, bits in BITS_OF.items()}
INTEGER_PREDICATE = {"olt": "slt", "ogt": "sgt", "oeq": "eq"}
WIDTH = {"i1": 1, "i32": 32, "i64": 64, "float": 32, "double": 64}


@dataclass(slots=True, eq=False)
class Value:
    """An SSA value or constant: one number of type ``kind`` in every lane.

    Python numbers on the right side of an operator become constants of the same kind (rounded to single precision for
    ``float``). Comparisons are ordered: false where an operand is NaN; ``&``, ``|``, ``^``, ``<<`` and the logical
    ``>>`` are for integers, the first three for conditions too.
    """

    emitter: Emitter
    kind: str
    text: str

    def _binary(self, op: str, other: ValueLike) -> Value:
        e = self.emitter
        flags = " contract" if op in ("fadd", "fsub", "fmul") else ""
        return e.emit(self.kind, f"{op}{flags} {e.type_of(self.kind)} {self.text}, {e.value(self.kind, other).text}")

    def _arithmetic(self, op: str, other: ValueLike) -> Value:
        return self._binary("f" + op if self.kind in BITS_OF else op, other)

    def __add__(self, other: ValueLike) -> Value:
        return self._arithmetic("add", other)

    def __sub__(self, other: ValueLike) -> Value:
        return self._arithmetic("sub", other)

    def __mul__(self, other: ValueLike) -> Value:
        return self._arithmetic("mul", other)

    def __truediv__(self, other: ValueLike) -> Value:
        return self._binary("fdiv", other)

    def __neg__(self) -> Value:
        return self.emitter.emit(self.kind, f"fneg {self.emitter.type_of(self.kind)} {self.text}")

    def __and__(self, other: ValueLike) -> Value:
        return self._binary("and", other)

    def __or__(self, other: ValueLike) -> Value:
        return self._binary("or", other)

    def __xor__(self, other: ValueLike) -> Value:
        return self._binary("xor", other)

    def __lshift__(self, count: ValueLike) -> Value:
        return self._binary("shl", count)

    def __rshift__(self, count: ValueLike) -> Value:
        return self._binary("lshr", count)

    def shift_signed(self, count: int) -> Value:
        """Shift right, repeating the sign bit."""
        return self._binary("ashr", count)

    def _compare(self, predicate: str, other: ValueLike) -> Value:
        e = self.emitter
        op = f"fcmp {predicate}" if self.kind in BITS_OF else f"icmp {INTEGER_PREDICATE[predicate]}"
        return e.emit("i1", f"{op} {e.type_of(self.kind)} {self.text}, {e.value(self.kind, other).text}")

    def __lt__(self, other: ValueLike) -> Value:
        return self._compare("olt", other)

    def __gt__(self, other: ValueLike) -> Value:
        return self._compare("ogt", other)

    def equals(self, other: ValueLike) -> Value:
        """Whether both are equal (zeros are, whatever their signs)."""
        return self._compare("oeq", other)

    def bits(self) -> Value:
        """The bits of a floating value, as an integer of the same width."""
        return self._cast("bitcast", BITS_OF[self.kind])

    def as_float(self) -> Value:
        """The floating value that has these bits."""
        return self._cast("bitcast", FLOAT_OF[self.kind])

    def to(self, kind: str) -> Value:
        """Conversion by value: between the floating types, to and from signed integers, to a narrower integer.

        A floating value has to be within the integer's range.
        """
        match self.kind in BITS_OF, kind in BITS_OF:
            case True, True:
                op = "fpext" if WIDTH[kind] > WIDTH[self.kind] else "fptrunc"
            case True, False:
                op = "fptosi"
            case False, True:
                op = "sitofp"
            case _:
                op = "trunc"
        return self._cast(op, kind)

    def _cast(self, op: str, kind: str) -> Value:
        e = self.emitter
        return e.emit(kind, f"{op} {e.type_of(self.kind)} {self.text} to {e.type_of(kind)}")

    def __abs__(self) -> Value:
        mask = (1 << (WIDTH[self.kind] - 1)) - 1
        return (self.bits() & mask).as_float()

    def sign(self) -> Value:
        """The sign bit of a floating value, in its place within an integer that is 0 otherwise."""
        return self.bits() & (1 << (WIDTH[self.kind] - 1))

    def flip(self, sign: Value) -> Value:
        """The floating value with its sign bit inverted where ``sign`` (as from :meth:`sign`) is set."""
        return (self.bits() ^ sign).as_float()

    def at_most(self, limit: float) -> Value:
        """The lesser of the value and ``limit``; NaN stays NaN."""
        bound = self.emitter.value(self.kind, limit)
        return (bound < self).select(bound, self)

    def at_least(self, limit: float) -> Value:
        """The greater of the value and ``limit``; NaN stays NaN."""
        bound = self.emitter.value(self.kind, limit)
        return (bound > self).select(bound, self)

    def select(self, yes: ValueLike, no: ValueLike) -> Value:
        """``yes`` in the lanes where this condition holds, ``no`` elsewhere; one of them a :class:`Value`."""
        e = self.emitter
        kind = yes.kind if isinstance(yes, Value) else no.kind if isinstance(no, Value) else ""
        both = ", ".join(f"{e.type_of(kind)} {e.value(kind, side).text}" for side in (yes, no))
        return e.emit(kind, f"select {e.type_of('i1')} {self.text}, {both}")


ValueLike = Value | float


class Emitter:
    """Writes the body of one function over vectors of ``lanes`` lanes, scalars when that is 1."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.declarations: dict[str, None] = {}  # in the order of their first use
        self._slots: list[str] = []
        self._lines: list[str] = []
        self._names = 0
        self._block = "entry"

    def type_of(self, kind: str) -> str:
        """The LLVM type of a value of that kind."""
        return kind if self.lanes == 1 else f"<{self.lanes} x {kind}>"

    def emit(self, kind: str, instruction: str) -> Value:
        """Append an instruction and name its result."""
        name = self._new_name("%v")
        self._lines.append(f"  {name} = {instruction}")
        return Value(self, kind, name)

    def value(self, kind: str, number: ValueLike) -> Value:
        """The constant of that kind with ``number`` in every lane; a :class:`Value` is passed through."""
        if isinstance(number, Value):
            return number
        literal = float_literal(kind, number) if kind in BITS_OF else str(int(number))
        return Value(self, kind, literal if self.lanes == 1 else f"splat ({kind} {literal})")

    def polynomial(self, x: Value, coefficients: Sequence[float]) -> Value:
        """``sum(c * x**k)``, lowest power first, by Horner's rule."""
        *rest, last = coefficients
        result = self.value(x.kind, last)
        for c in reversed(rest):
            result = result * x + c
        return result

    def paired_polynomial(self, x: Value, coefficients: Sequence[float]) -> Value:
        """As :meth:`polynomial`, by Horner's rule in ``x**2`` over pairs: one instruction more, in half as many steps.

        Better where one long polynomial is all there is to wait for.
        """
        pairs = [self.polynomial(x, coefficients[k : k + 2]) for k in range(0, len(coefficients), 2)]
        square = x * x
        result = pairs.pop()
        for pair in reversed(pairs):
            result = result * square + pair
        return result

    def call_each(self, function: str, operands: Sequence[Value]) -> Value:
        """A scalar function of the C library, called for one lane after the other.

        The lanes go through a slot of the stack, so that the code is one short loop, however many there are.
        """
        kind = operands[0].kind
        self.declarations[f"declare {kind} @{function}({', '.join([kind] * len(operands))})"] = None
        if self.lanes == 1:
            return self.emit(kind, f"call {kind} @{function}({_arguments(operands)})")
        slots = [self._slot(v) for v in operands]
        before, loop, after = self._block, self._new_name("lane"), self._new_name("after")
        lane, following = self._new_name("%i"), self._new_name("%i")
        self._branch(f"label %{loop}", loop)
        self._lines.append(f"  {lane} = phi i32 [ 0, %{before} ], [ {following}, %{loop} ]")
        addresses = [self.emit("ptr", f"getelementptr {kind}, ptr {slot}, i32 {lane}").text for slot in slots]
        scalars = [self.emit(kind, f"load {kind}, ptr {address}") for address in addresses]
        result = self.emit(kind, f"call {kind} @{function}({_arguments(scalars)})")
        self._lines.append(f"  store {kind} {result.text}, ptr {addresses[0]}")
        self._lines.append(f"  {following} = add i32 {lane}, 1")
        more = self.emit("i1", f"icmp ult i32 {following}, {self.lanes}")
        self._branch(f"i1 {more.text}, label %{loop}, label %{after}", after)
        return self.emit(kind, f"load {self.type_of(kind)}, ptr {slots[0]}")

    def replace_rarely(self, condition: Value, usual: Value, rare: Callable[[], Value]) -> Value:
        """``usual``, with ``rare()`` in the lanes where the condition holds; that is computed only if there are any."""
        if self.lanes == 1:
            some = condition
        else:
            mask = self.emit("i1", f"bitcast {self.type_of('i1')} {condition.text} to i{self.lanes}")
            some = self.emit("i1", f"icmp ne i{self.lanes} {mask.text}, 0")
        before, odd, done = self._block, self._new_name("rare"), self._new_name("usual")
        self._branch(f"i1 {some.text}, label %{odd}, label %{done}", odd)
        mended = condition.select(rare(), usual)
        last = self._block
        self._branch(f"label %{done}", done)
        return self.emit(
            usual.kind,
            f"phi {self.type_of(usual.kind)} [ {usual.text}, %{before} ], [ {mended.text}, %{last} ]",
        )

    def function(self, symbol: str, parameters: Sequence[Value], result: Value) -> str:
        """The text of the whole function, inlined wherever it is called."""
        kind = self.type_of(result.kind)
        body = "\n".join([*self._slots, *self._lines])
        head = ", ".join(f"{self.type_of(p.kind)} {p.text}" for p in parameters)
        return (
            f"define internal {kind} @{symbol}({head}) alwaysinline nounwind {{\nentry:\n{body}\n"
            f"  ret {kind} {result.text}\n}}\n"
        )

    def _slot(self, value: Value) -> str:
        """A stack slot that holds the value; it is allocated on entry, where inlining keeps it out of loops."""
        name = f"%slot{len(self._slots)}"
        self._slots.append(f"  {name} = alloca {self.type_of(value.kind)}")
        self._lines.append(f"  store {self.type_of(value.kind)} {value.text}, ptr {name}")
        return name

    def _new_name(self, stem: str) -> str:
        self._names += 1
        return f"{stem}{self._names}"

    def _branch(self, targets: str, following: str) -> None:
        """End the block with a branch and begin the block ``following``."""
        self._lines += [f"  br {targets}", f"{following}:"]
        self._block = following


def _arguments(values: Sequence[Value]) -> str:
    return ", ".join(f"{v.kind} {v.text}" for v in values)


def float_literal(kind: str, number: float) -> str:
    """The number as LLVM writes it exactly: the bits of a double, for a ``float`` those of the nearest one."""
    if kind == "float":
        (number,) = struct.unpack("<f", struct.pack("<f", number))
    (bits,) = struct.unpack("<Q", struct.pack("<d", number))
    return f"0x{bits:016X}"

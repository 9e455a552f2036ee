"""Instructions on whole vectors, declared as tensor intrinsics and written as LLVM IR."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mlc.ir.intrinsic import TensorIntrinsic
from mlc.ir.loop import Buffer


@dataclass(frozen=True)
class Address:
    """Where an operand begins.

    Args:
        buffer: that it lies in.
        text: the pointer.
        strides: elements between its neighbours along each of its axes.
    """

    buffer: Buffer
    text: str
    strides: tuple[int, ...] = ()


class VectorSink(Protocol):
    """What the text of an intrinsic is written to.

    Attributes:
        flags: of LLVM for additions and multiplications of floats, ``contract`` where both may be one; with a blank.
    """

    flags: str

    def pure(self, text: str) -> str:
        """The name of the result of an instruction without effects."""
        ...

    def declare(self, line: str) -> None:
        """Declare a function of LLVM's."""
        ...

    def read(self, at: Address, type: str) -> str:
        """The name of what is loaded from an address as an LLVM type, of any alignment."""
        ...

    def fetch(self, at: Address, text: str) -> str:
        """The name of what an instruction reads from an address."""
        ...

    def run(self, text: str) -> None:
        """Emit an instruction for its effect."""
        ...

    def fresh(self, hint: str = "v") -> str:
        """A name for a result."""
        ...


@dataclass(frozen=True)
class Matrix:
    """A register of rows, which no instruction on vectors reads: it goes to memory first.

    Args:
        type: LLVM's name of such values.
        nbytes: that it takes in memory, its rows one after another.
        zero: writes a new one, all zeros.
        store: writes one to memory, given a value and a pointer.
    """

    type: str
    nbytes: int
    zero: Callable[[VectorSink], str]
    store: Callable[[VectorSink, str, str], None]


@dataclass(frozen=True, eq=False)
class VectorIntrinsic(TensorIntrinsic):
    """A tensor intrinsic whose output is the lanes of one vector, which may be registers.

    Lanes count the elements of the output row-major. Where it has several axes, it has to be registers.

    Args:
        write: given a sink, the vector held so far and the address of each input, writes one update and gives the name
            of the new vector.
        write_next: the same for a use whose first input lies one step of its first axis behind that of another use,
            given the address of that one's: both take the same vector there. ``None`` where they cannot.
        matrix: the kind of register that its output is held in, where that is no vector's; then it has to be registers.
    """

    write: Callable[[VectorSink, str, Sequence[Address]], str]
    write_next: Callable[[VectorSink, str, Sequence[Address]], str] | None = None
    matrix: Matrix | None = None

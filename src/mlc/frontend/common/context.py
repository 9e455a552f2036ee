"""What converters of any format append core operators through: names, budgets, folding, values of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.folding import Folder
from mlc.frontend.common.names import shortened
from mlc.frontend.limits import DEFAULT_LIMITS, Limits
from mlc.ir.graph import Attrs, Builder, Operator, Value
from mlc.ir.types import TensorType, u64
from mlc.ops import get
from mlc.ops.shape import name_before

MOST_ROOTS = 16  # inputs that a value is said to depend on


class UnknownValueError(UnsupportedError):
    """An operand that must be known at compile time depends on inputs of the model.

    Args:
        inputs: names of those inputs; giving them values (``--const name=value``) makes the operand known.
    """

    def __init__(self, message: str, *, hint: str = "", inputs: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint=hint)
        self.inputs = inputs


@dataclass(frozen=True)
class Mark:
    """A state of a :class:`Context`: nodes so far, bytes of constants, and random streams in use."""

    nodes: int
    made_bytes: int
    streams: Mapping[float | None, int]


class Context:
    """What a converter may use: it appends nodes and knows which values are constants.

    Args:
        builder: the graph that grows.
        limits: budgets of the import.
    """

    def __init__(self, builder: Builder, limits: Limits = DEFAULT_LIMITS) -> None:
        self.builder = builder
        self.limits = limits
        self.name = ""
        self.source = ""
        self._stored: dict[int, np.ndarray] = {}  # the model's own constants; what equals them in size is not charged
        self._stored_bytes = 0
        self._made_bytes = 0
        self._folder = Folder()
        self.run_seed: Value | None = None  # the graph's input that random numbers are drawn by, once one is needed
        self._keys: dict[float | None, Value] = {}
        self._streams: dict[float | None, int] = {}
        self._roots: dict[Value, tuple[int, ...]] = {}  # positions of a few of the inputs that a value depends on

    def begin(self, name: str, source: str = "") -> None:
        """Convert the node called ``name`` from now on; ``source`` is the node of the model file that it belongs to."""
        self.name = name
        self.source = source or name

    def call(self, value: Value, name: str) -> None:
        """Give a value the name of the model's tensor that it is, and what it is a transpose of one that tells so."""
        value.name = name
        last = self.builder.nodes[-1] if self.builder.nodes else None
        if last is None or last.outputs[0] is not value or last.op is not get("transpose"):
            return
        (moved,) = last.inputs
        if moved.name.startswith(f"{self.name}/"):  # no tensor of the model
            moved.name = self.builder.unique(name_before(name, last.attrs["perm"]))

    def note_stored(self, array: np.ndarray) -> None:
        """Tell of an array that the model file holds: constants that it becomes cost nothing."""
        if id(array) not in self._stored:
            self._stored[id(array)] = array
            self._stored_bytes += array.nbytes

    def const(self, value: Value | None) -> np.ndarray | None:
        """The array of a value known at import, else ``None``."""
        return None if value is None else self.builder.constants.get(value)

    def require_const(self, value: Value | None, what: str) -> np.ndarray:
        """The array of a value that must be known at import.

        Raises:
            UnknownValueError: it depends on the model's inputs.
        """
        (array,) = self.require_consts([value], what)
        return array

    def require_consts(self, values: Sequence[Value | None], what: str) -> list[np.ndarray]:
        """The arrays of values that must all be known at import.

        Raises:
            UnknownValueError: one depends on the model's inputs; all those inputs are named.
        """
        arrays = [self.const(value) for value in values]
        if any(array is None for array in arrays):
            unknown = (value for value, array in zip(values, arrays, strict=True) if array is None)
            inputs = tuple(dict.fromkeys(name for value in unknown for name in self.depends_on(value)))
            hint = "make it an initializer, or run the model through a constant-folding exporter"
            if inputs:
                hint = "give it a value at compile time: " + " ".join(f"--const {name}=VALUE" for name in inputs)
            verb, they = ("depends", "it") if len(values) == 1 else ("depend", "they")
            raise UnknownValueError(
                f"{what} {verb} on the model's inputs; {they} must be known at compile time", hint=hint, inputs=inputs
            )
        return [array for array in arrays if array is not None]

    def depends_on(self, value: Value | None) -> tuple[str, ...]:
        """Names of the model's inputs that a value is computed from, at most ``MOST_ROOTS`` of them."""
        if value is None:
            return ()
        return tuple(self.builder.inputs[k].name for k in self._known_roots().get(value, ()))

    def _known_roots(self) -> dict[Value, tuple[int, ...]]:
        if not self._roots:
            self._roots = {v: (k,) for k, v in enumerate(self.builder.inputs) if v is not self.run_seed}
        return self._roots

    def _note_roots(self, outs: Sequence[Value], ins: Sequence[Value]) -> None:
        roots = self._known_roots()
        known = {roots[v] for v in ins if v in roots}
        if known:  # mostly one and the same tuple, which is then shared
            found = known.pop() if len(known) == 1 else tuple(sorted({k for some in known for k in some})[:MOST_ROOTS])
            roots.update(dict.fromkeys(outs, found))

    def constant(self, array: Any, dtype: Any = None, name: str = "const") -> Value:
        """A new constant.

        Raises:
            ImportModelError: it is beyond the limits ``constant_bytes`` or ``constants_bytes``.
        """
        made = np.asarray(array, dtype=dtype)
        if id(made) not in self._stored:
            self.check_constant(made.shape, made.itemsize)
            self._made_bytes += made.nbytes
        return self.builder.constant(made, self._inner(name))

    def check_constant(self, shape: Iterable[int], itemsize: int) -> None:
        """Refuse a constant that is too large; to be asked before numpy allocates it.

        Args:
            shape: extents.
            itemsize: bytes an element.
        Raises:
            ImportModelError: it is beyond the limits ``constant_bytes`` or ``constants_bytes``.
        """
        size = prod(int(n) for n in shape) * itemsize
        # a repacked weight may be as large as the weight itself
        if size > self._stored_bytes:
            self.limits.check("constant_bytes", size, "a constant made by the import")
        if self._made_bytes + size > 2 * self._stored_bytes:
            self.limits.check("constants_bytes", self._made_bytes + size, "all constants made by the import")

    def randomness(self, seed: float | None) -> tuple[Value, int]:
        """A key for random numbers, and a stream of it that is given to nobody else.

        Args:
            seed: what the node says; without one the key is the seed of the run, an input of the graph.
        """
        key = self._keys.get(seed)
        if key is None and seed is None:
            key = self.run_seed = self.builder.input("seed", TensorType((), u64))
        elif key is None:
            # the highest bit keeps keys of nodes apart from the seeds that runs are given
            key = self.constant(np.float32(seed).view(np.uint32) | np.uint64(1 << 63), np.uint64)
        self._keys[seed] = key
        stream = self._streams.get(seed, 0)
        self._streams[seed] = stream + 1
        return key, stream

    def add(self, op: Operator | str, inputs: Iterable[Value], **attrs: Any) -> Value:
        """Append a one-output operator, or fold it at once when it is small and all inputs are constants."""
        (out,) = self.add_many(op, inputs, attrs)
        return out

    def add_many(self, op: Operator | str, inputs: Iterable[Value], attrs: Attrs) -> tuple[Value, ...]:
        """Append an operator and give all its outputs, named after the node; the importer renames final outputs."""
        operator = get(op) if isinstance(op, str) else op
        ins = tuple(inputs)
        known = [self.builder.constants.get(v) for v in ins]
        sources = (self.source,) if self.source else ()
        outs = self.builder.add(operator, ins, attrs, names=[self._inner(operator.name)] * 3, sources=sources)
        for v in outs:
            check_type(v.type, self.limits, "the result")
        if len(self.builder.nodes) > self.limits.operators:
            self.limits.check("operators", len(self.builder.nodes), "core operators so far")
        if all(a is not None for a in known):
            values = self._folder.fold(self.builder.nodes[-1], [a for a in known if a is not None])
            if values is not None:
                self.builder.nodes.pop()
                self.builder.constants.update(zip(outs, values, strict=True))
                return outs
        self._note_roots(outs, ins)
        return outs

    def mark(self) -> Mark:
        """Where the graph stands, to come back to by :meth:`reset`."""
        return Mark(len(self.builder.nodes), self._made_bytes, dict(self._streams))

    def reset(self, mark: Mark) -> None:
        """Forget what was appended since ``mark``; constants stay, and go away if nothing uses them."""
        del self.builder.nodes[mark.nodes :]
        self._made_bytes = mark.made_bytes
        self._streams = dict(mark.streams)

    def stand_in(self, value: Value, type: TensorType) -> Value:
        """A value that no node makes: what a round of a recurrence sees of ``value``."""
        made = Value(self.builder.unique(value.name), type)
        self._note_roots([made], [value])
        return made

    def _inner(self, name: str) -> str:
        return shortened(f"{self.name}/{name}") if self.name else name


def check_type(type: TensorType, limits: Limits, what: str) -> None:
    """Refuse a tensor of absurd extent, rank or size, before anything is allocated for it.

    Raises:
        ImportModelError: it is beyond the limits ``rank`` or ``tensor_bytes``, or an extent is negative.
    """
    # an extent of 0 must not hide a large one beside it: index arithmetic is done with all of them
    size = prod([n or 1 for n in type.shape]) * type.dtype.itemsize
    if min(type.shape, default=0) >= 0 and size <= limits.tensor_bytes and len(type.shape) <= limits.rank:
        return
    limits.check("rank", len(type.shape), f"{what}: rank")
    if min(type.shape) < 0:
        raise ImportModelError(f"{what}: negative extent in shape {list(type.shape)}")
    limits.check("tensor_bytes", size, f"{what} ({type})")

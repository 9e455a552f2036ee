"""The table of ONNX converters and what each is given.

A converter is one function an operator: ``(ctx, node, inputs) -> outputs``. It reads attributes from ``node`` and
appends core operators through ``ctx``. Which versions of the operator it understands is declared beside its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.limits import DEFAULT_LIMITS, Limits
from mlc.frontend.onnx.folding import Folder
from mlc.frontend.onnx.names import shortened
from mlc.ir.graph import Attrs, Builder, Operator, Value
from mlc.ir.types import TensorType, u64
from mlc.ops import get

MOST_ROOTS = 16  # inputs that a value is said to depend on


@dataclass(frozen=True)
class OnnxNode:
    """A node of the model, with attributes as Python values.

    Args:
        name: the node's name, or ``op_type_<position>`` when it has none.
        op_type: operator.
        domain: ``""`` for ai.onnx.
        opset: version of that domain that the model imports.
        attrs: ints, floats, strings, tuples of them, numpy arrays, or ``onnx.GraphProto``.
        outputs: names of the outputs; ``""`` where one is not wanted.
    """

    name: str
    op_type: str
    domain: str
    opset: int
    attrs: dict[str, Any]
    outputs: tuple[str, ...]

    def attr(self, name: str, default: Any = None) -> Any:
        return self.attrs.get(name, default)


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
        self.node: OnnxNode | None = None
        self.source = ""
        self._stored: dict[int, np.ndarray] = {}  # the model's own constants; what equals them in size is not charged
        self._stored_bytes = 0
        self._made_bytes = 0
        self._folder = Folder()
        self.run_seed: Value | None = None  # the graph's input that random numbers are drawn by, once one is needed
        self._keys: dict[float | None, Value] = {}
        self._streams: dict[float | None, int] = {}
        self._roots: dict[Value, tuple[int, ...]] = {}  # positions of a few of the inputs that a value depends on

    def begin(self, node: OnnxNode, source: str = "") -> None:
        """Convert ``node`` from now on; ``source`` is the node of the model file that it belongs to."""
        self.node = node
        self.source = source or node.name

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
        return shortened(f"{self.node.name}/{name}") if self.node is not None else name


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


ConvertFn = Callable[[Context, OnnxNode, list[Any]], Sequence[Value | None]]


@dataclass(frozen=True)
class Converter:
    """A converter and what it covers.

    Args:
        op_type: ONNX operator.
        domain: its domain.
        since: first opset whose definition this converter understands.
        convert: the function; optional inputs that are absent are ``None``.
        limits: what is not covered, in words, printed by ``mlc ops``.
    """

    op_type: str
    domain: str
    since: int
    convert: ConvertFn
    limits: str = ""


@dataclass
class ConverterTable:
    """Converters by (domain, operator)."""

    entries: dict[tuple[str, str], Converter] = field(default_factory=dict)

    def find(self, domain: str, op_type: str) -> Converter | None:
        return self.entries.get(("" if domain == "ai.onnx" else domain, op_type))


CONVERTERS = ConverterTable()


def converter(
    op_type: str, *more: str, domain: str = "", since: int = 1, limits: str = ""
) -> Callable[[ConvertFn], ConvertFn]:
    """Decorator that enters a converter for one or more operators of one shape."""

    def wrap(fn: ConvertFn) -> ConvertFn:
        for name in (op_type, *more):
            key = (domain, name)
            if key in CONVERTERS.entries:
                raise ValueError(f"converter for {name} is registered twice")
            CONVERTERS.entries[key] = Converter(name, domain, since, fn, limits)
        return fn

    return wrap

"""Workloads from their texts: the inverse of :func:`mlc.rewrite.group.workload_key`.

A record of a trial names its workload by this text, so a reader needs no model to know what was measured. What the text
only tells by a digest, the literals of one element inside a group, stands beside it.

The text of a file may be anything: what is read has to print as the same text again, and budgets bound what it can ask
for.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn, TypeVar

import numpy as np

from mlc.errors import VerifyError, WorkloadError
from mlc.ir.graph import RULE_ERRORS, FusionKind, Node, Value, check_attrs, fill_attrs
from mlc.ir.layout import Fuse, Layout, Margin, Pad, Primitive, Reorder, Split
from mlc.ir.types import ALL_DTYPES, TensorType
from mlc.ops import get
from mlc.rewrite.fuse import cost_of
from mlc.rewrite.group import make_group, workload_key
from mlc.rewrite.profile import Profiler

MAX_TEXT = 1 << 18  # characters
MAX_NODES = 512
MAX_OPERANDS = 1024
MAX_EXPRESSION = 1 << 15  # scalar operations of a group's results with everything inlined; see FuseLimits
MAX_EXTENT = 1 << 24  # of a dimension, and of every number of a layout
MAX_ELEMENTS = 1 << 36  # of a tensor as it lies in memory
MAX_RANK = 32
MAX_DEPTH = 12  # of tuples in the text of attributes
MAX_ITEMS = 256  # of such a tuple
MAX_STRING = 256  # characters

# primitives of layouts by name, with how many numbers they take; of a permutation it takes any number
_PRIMITIVES: Mapping[str, tuple[Callable[..., Primitive], int | None]] = {
    "split": (Split, 2),
    "fuse": (Fuse, 2),
    "pad": (Pad, 3),
    "margin": (Margin, 3),
    "reorder": (lambda *perm: Reorder(perm), None),
}

_T = TypeVar("_T")
_WORDS = {"True": True, "False": False, "None": None}
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER = re.compile(r"-?[0-9]{1,19}")
_STRING = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, eq=False)
class Workload:
    """A group and what decides its layouts and its schedule: the arguments of ``workload_key``.

    Args:
        node: the group; its values are row-major.
        types: of its inputs, with layouts; constants are row-major.
        constant: which inputs are constants.
        row_major: whether all that reads its results takes row-major tensors only.
    """

    node: Node
    types: tuple[TensorType, ...]
    constant: tuple[bool, ...]
    row_major: bool


@dataclass(frozen=True)
class _Literal:
    """An operand that is a constant inside the group."""

    type: TensorType
    digest: str


def parse_workload(text: str, literals: Iterable[bytes] = ()) -> Workload:
    """What a workload's text says.

    Args:
        text: as ``workload_key`` gives it.
        literals: the bytes of the constants of one element that the text names by digests, in any order.
    Raises:
        WorkloadError: the text is none of a workload, is beyond a budget, or names a literal that is not among
            ``literals``; it is that of a user's own operator, which only the user's program knows, of an accelerator's
            operation, or of an opaque routine.
    """
    if len(text) > MAX_TEXT:
        raise WorkloadError(f"a workload of {len(text)} characters, the limit is {MAX_TEXT}")
    first, *lines = text.split("\n")
    if len(lines) > MAX_NODES + 1:
        raise WorkloadError(f"a workload of {len(lines) - 1} operators, the limit is {MAX_NODES}")
    types, constant, row_major = _ends(_Scanner(first))
    known = {hashlib.sha256(data).hexdigest(): data for data in literals}
    try:
        node = _group(types, lines, known)
        if workload_key(node, types, constant, row_major) != text:
            raise WorkloadError("a workload that does not print as it was written")
    except WorkloadError:
        raise
    except RULE_ERRORS as error:
        raise WorkloadError(f"a workload that makes no sense: {error}") from error
    return Workload(node, types, constant, row_major)


def _group(types: tuple[TensorType, ...], lines: list[str], known: Mapping[str, bytes]) -> Node:
    calls = [_call(_Scanner(line)) for line in lines[:-1]]
    if not calls:
        raise WorkloadError("a workload without operators")
    values = [Value(f"in{k}", TensorType(t.shape, t.dtype)) for k, t in enumerate(types)]
    found = dict.fromkeys(a for _, operands, _, _ in calls for a in operands if isinstance(a, _Literal))
    inside = {literal: Value(f"literal{k}", literal.type) for k, literal in enumerate(found)}
    constants = {value: _array(literal, known) for literal, value in inside.items()}
    values += inside.values()

    def operand(at: int | _Literal) -> Value:
        if isinstance(at, _Literal):
            return inside[at]
        if not 0 <= at < len(values) or values[at] in constants:
            raise WorkloadError(f"%{at} is no value")
        return values[at]

    nodes = []
    for name, operands, given, results in calls:
        op = get(name)
        if op.kind is FusionKind.OPAQUE or op.express is None:
            raise WorkloadError(f"{name} is an opaque routine, which has no schedule")
        attrs = fill_attrs(op, given)
        check_attrs(op, attrs)
        ins = tuple(map(operand, operands))
        inferred = [(t.shape, t.dtype) for t in op.infer([v.type for v in ins], attrs)]
        if inferred != [(t.shape, t.dtype) for t in results]:
            raise WorkloadError(f"{name} gives no ({', '.join(map(str, results))})")
        outs = tuple(Value(f"v{len(values) + k}", t) for k, t in enumerate(results))
        values += outs
        nodes.append(Node(op, ins, attrs, outs))
    scanner = _Scanner(lines[-1])
    scanner.expect("return ")
    returned = tuple(operand(k) for k in scanner.several(scanner.value, ""))
    if not returned or not {v for n in nodes for v in n.outputs}.issuperset(returned):
        raise WorkloadError("a workload returns what its operators make")
    size = cost_of(nodes, [n for n in nodes if not set(returned).isdisjoint(n.outputs)], Profiler()).size
    if size > MAX_EXPRESSION:
        raise WorkloadError(f"a workload of {size} operations an element, the limit is {MAX_EXPRESSION}")
    return make_group(nodes, constants, 0, returned)


def _array(literal: _Literal, known: Mapping[str, bytes]) -> np.ndarray:
    data = known.get(literal.digest)
    if data is None:
        raise WorkloadError(f"the literal {literal.type}:{literal.digest[:8]}… of a workload is not known")
    if literal.type.size != 1 or literal.type.layout is not None or len(data) != literal.type.dtype.itemsize:
        raise WorkloadError(f"a literal of a workload is typed {literal.type} and has {len(data)} bytes")
    return np.frombuffer(data, literal.type.dtype.numpy).reshape(literal.type.shape)


def _ends(scanner: _Scanner) -> tuple[tuple[TensorType, ...], tuple[bool, ...], bool]:
    """``(f32[1,8], const f32[8]) -> any``."""

    def given() -> tuple[bool, TensorType]:
        return scanner.accept("const "), scanner.type()

    scanner.expect("(")
    inputs = scanner.several(given, ")")
    scanner.expect(" -> ")
    row_major = scanner.accept("row-major")
    if not row_major:
        scanner.expect("any")
    if scanner.accept(" on "):
        raise WorkloadError("an operation of an accelerator, whose choices depend on its constants")
    scanner.end()
    return tuple(t for _, t in inputs), tuple(c for c, _ in inputs), row_major


def _call(scanner: _Scanner) -> tuple[str, list[int | _Literal], dict[str, Any], list[TensorType]]:
    """``add(%0, f32[]:<digest>) () -> f32[1,8]``: operator, operands, attributes and types of the results."""

    def operand() -> int | _Literal:
        if scanner.at("%"):
            return scanner.value()
        type_ = scanner.type()
        scanner.expect(":")
        return _Literal(type_, scanner.match(_DIGEST, "a digest"))

    name = scanner.match(_WORD, "an operator")
    if scanner.at("<"):
        raise WorkloadError(f"{name} is a user's own operator, which only the user's program knows")
    scanner.expect("(")
    operands = scanner.several(operand, ")")
    if len(operands) > MAX_OPERANDS:
        raise WorkloadError(f"{name} of {len(operands)} operands, the limit is {MAX_OPERANDS}")
    scanner.expect(" ")
    attrs: dict[str, Any] = {}
    for pair in scanner.tuple_():
        match pair:
            case (str(key), tagged):
                attrs[key] = _attribute(tagged)
            case _:
                raise WorkloadError(f"{name} has attributes that are no pairs of name and value")
    scanner.expect(" -> ")
    results = scanner.several(scanner.type, "")
    return name, operands, attrs, results


def _attribute(tagged: Any) -> Any:
    """The value of ``("int", 3)`` and the like (:func:`mlc.rewrite.keys.attr_key`)."""
    match tagged:
        case ("tuple", tuple(items)):
            return tuple(map(_attribute, items))
        case ("float", str(text)):
            try:
                return float.fromhex(text)
            except (ValueError, OverflowError):
                pass
        case ("NoneType", None):
            return None
        case (("bool" | "int" | "str") as kind, value) if type(value).__name__ == kind:
            return value
    raise WorkloadError("an attribute of a workload is of no kind that its text can tell")


class _Scanner:
    """Reads one line from left to right."""

    def __init__(self, line: str) -> None:
        self._line = line
        self._at = 0

    def refuse(self, wanted: str) -> NoReturn:
        found = self._line[self._at : self._at + 24]
        raise WorkloadError(f"no workload: {wanted} expected at {found!r}")

    def at(self, text: str) -> bool:
        return self._line.startswith(text, self._at)

    def accept(self, text: str) -> bool:
        there = self.at(text)
        self._at += len(text) * there
        return there

    def expect(self, text: str) -> None:
        if not self.accept(text):
            self.refuse(repr(text))

    def end(self) -> None:
        if self._at < len(self._line):
            self.refuse("the end")

    def match(self, pattern: re.Pattern[str], wanted: str) -> str:
        found = pattern.match(self._line, self._at)
        if found is None:
            self.refuse(wanted)
        self._at = found.end()
        return found[0]

    def number(self, least: int, most: int) -> int:
        found = int(self.match(_NUMBER, "a number"))
        if not least <= found <= most:
            raise WorkloadError(f"{found} in a workload, {least} to {most} are allowed")
        return found

    def value(self) -> int:
        self.expect("%")
        return self.number(0, MAX_EXTENT)

    def several(self, item: Callable[[], _T], end: str, separator: str = ", ") -> list[_T]:
        """Items up to ``end``, or to the end of the line where that is empty."""
        found: list[_T] = []
        if end and self.accept(end):
            return found
        while True:
            found.append(item())
            if not self.accept(separator):
                break
        if end:
            self.expect(end)
        else:
            self.end()
        return found

    def type(self) -> TensorType:
        """``f32[1,64,8,8]@split(1, 8).reorder(0,1,3,4,2)``."""
        name = self.match(_WORD, "an element type")
        if name not in ALL_DTYPES:
            raise WorkloadError(f"{name!r} is no element type")
        self.expect("[")
        shape = tuple(self.several(self._extent, "]", ","))
        self._check(shape)
        if not self.accept("@"):
            return TensorType(shape, ALL_DTYPES[name])
        try:
            layout = Layout(shape)
            if not self.accept("plain"):
                while True:
                    layout = Layout(shape, (*layout.primitives, self._primitive()))
                    self._check(layout.physical_shape)
                    if not self.accept("."):
                        break
        except VerifyError as error:
            raise WorkloadError(error.message) from error
        return TensorType(shape, ALL_DTYPES[name], layout)

    def _extent(self) -> int:
        return self.number(0, MAX_EXTENT)

    def _primitive(self) -> Primitive:
        name = self.match(_WORD, "a primitive of a layout")
        make, count = _PRIMITIVES.get(name, (None, None))
        if make is None:
            raise WorkloadError(f"{name!r} is no primitive of a layout")
        self.expect("(")
        numbers = self.several(self._extent, ")", "," if count is None else ", ")
        if count is not None and len(numbers) != count:
            raise WorkloadError(f"{name} takes {count} numbers, given {len(numbers)}")
        return make(*numbers)

    @staticmethod
    def _check(shape: tuple[int, ...]) -> None:
        if len(shape) > MAX_RANK or prod(max(n, 1) for n in shape) > MAX_ELEMENTS:
            raise WorkloadError(f"a tensor of {shape[:MAX_RANK]} in a workload is too large")

    def tuple_(self, depth: int = 0) -> tuple[Any, ...]:
        """The text of a tuple of strings, whole numbers, words and tuples."""
        self.expect("(")
        found: list[Any] = []
        while not self.accept(")"):
            if found:
                self.expect(", ")
            if depth == MAX_DEPTH or len(found) == MAX_ITEMS:
                raise WorkloadError("attributes of a workload are too deep or too many")
            found.append(self.tuple_(depth + 1) if self.at("(") else self._leaf())
            if len(found) == 1 and self.accept(",)"):
                break
        return tuple(found)

    def _leaf(self) -> Any:
        if self.at("'") or self.at('"'):
            text = self.match(_STRING, "a string")
            if len(text) > MAX_STRING:
                raise WorkloadError(f"a string of {len(text)} characters in a workload, the limit is {MAX_STRING}")
            try:
                return ast.literal_eval(text)
            except SyntaxError:
                self.refuse("a string")
        if (word := _WORD.match(self._line, self._at)) is not None and word[0] in _WORDS:
            self._at = word.end()
            return _WORDS[word[0]]
        return self.number(-(1 << 63), (1 << 63) - 1)

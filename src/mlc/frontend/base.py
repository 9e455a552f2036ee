"""What a front end is, and how one is found.

A front end reads one format of model file into a graph. The built-in ones are in a literal table, so that a bare
checkout works; others come from the entry-point group ``mlc.frontends``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

import numpy.typing as npt

from mlc.errors import ImportModelError, UsageError
from mlc.frontend.files import read_head
from mlc.frontend.limits import DEFAULT_LIMITS, Limits
from mlc.frontend.sniff import describe
from mlc.frontend.survey import Survey
from mlc.ir.graph import Builder, Graph, Value

GROUP = "mlc.frontends"
BUILT_IN = {
    "keras": "mlc.frontend.keras:KerasFrontend",
    "mlc": "mlc.frontend.saved:SavedFrontend",
    "onnx": "mlc.frontend.onnx:OnnxFrontend",
    "python": "mlc.define.frontend:PythonFrontend",
    "tflite": "mlc.frontend.tflite:TfliteFrontend",
}


@dataclass(frozen=True)
class TensorInfo:
    """An input or output of a model.

    Args:
        name: the model's own name.
        shape: extents.
        dtype: element type, e.g. ``f32``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class FixedInput(TensorInfo):
    """An input that was given a value at import.

    Args:
        data: the value's bytes, row-major; nothing of one that is larger than ``KEPT_BYTES``.
    """

    data: bytes = b""


KEPT_BYTES = 1 << 16
"""Of the value of an input that was fixed: small ones are remembered, so that references can be run with them."""


@dataclass(frozen=True)
class ModelSource:
    """Where a graph came from.

    Args:
        format: name of the front end.
        path: the file, or empty when the model was given as bytes.
        name: the model's own name.
        producer: program that wrote it, with its version.
        sha256: of the model file, in hexadecimal; external data is not covered.
        inputs: what the graph takes, dynamic dimensions resolved.
        outputs: what it gives.
        opsets: versions of the operator sets in use, by domain.
        metadata: what else the file says about itself.
        constants: inputs that were given a value at import and so are no longer inputs.
        quantised: whether this program has made 8-bit integers of a model in floating point.
        layouts: inputs that are taken in another order of axes than the model's own, by name: ``NHWC->NCHW``.
        states: inputs for what a run leaves to the next one, with what they hold before the first; no data for zeros.
        updates: outputs by name, and the input whose next value each is, and whose memory it may be given.
    """

    format: str
    path: str
    name: str
    producer: str
    sha256: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    opsets: Mapping[str, int] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    constants: tuple[FixedInput, ...] = ()
    quantised: bool = False
    layouts: Mapping[str, str] = field(default_factory=dict)
    states: tuple[FixedInput, ...] = ()
    updates: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ImportedModel:
    """A graph and where it came from."""

    graph: Graph
    source: ModelSource


@dataclass(frozen=True)
class OperatorInfo:
    """An operator that a front end can import, as printed by ``mlc ops``.

    Args:
        name: as the format calls it.
        domain: its name space; empty for the format's own.
        since: first version that is understood.
        limits: what is not covered, in words.
        via: ``converter``, or ``function`` when it is expanded from its own definition in other operators.
    """

    name: str
    domain: str = ""
    since: int = 1
    limits: str = ""
    via: str = "converter"


class Frontend(Protocol):
    """A format of model files.

    Attributes:
        name: what users type.
        suffixes: usual file endings, with the dot.
    """

    name: str
    suffixes: tuple[str, ...]

    def matches(self, head: bytes, path: Path) -> bool:
        """Whether a file with these first bytes is of this format; the content counts, not the suffix."""
        ...

    def accepts(self, model: object) -> bool:
        """Whether a live object is a model of this format, which ``load`` takes in place of a path."""
        ...

    def load(
        self,
        path: Any,
        *,
        shapes: Mapping[str, Sequence[int]] | None = None,
        dims: Mapping[str, int] | None = None,
        constants: Mapping[str, npt.ArrayLike] | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> ImportedModel:
        """Import a file, or an object that is accepted; see the front end's own ``load`` for the errors."""
        ...

    def survey(self, path: str | os.PathLike[str], limits: Limits = DEFAULT_LIMITS) -> Survey:
        """What is in a file, whether or not it can be imported."""
        ...

    def supported_operators(self) -> list[OperatorInfo]:
        """Every operator that can be imported, by name."""
        ...


class CustomOperator(Protocol):
    """An operator of the user's own, which models of a format call by its name.

    Attributes:
        name: as models call it.
        domain: its name space; empty where any will do that is not the format's own.
    """

    name: str
    domain: str

    def add(
        self, g: Builder, inputs: Sequence[Value], attrs: Mapping[str, Any], *, sources: Sequence[str] = ()
    ) -> Sequence[Value]:
        """Appends it to a graph, and gives its results."""
        ...


@runtime_checkable
class Extensible(Protocol):
    """A front end whose models may call operators of the user's own."""

    def with_operators(self, operators: Sequence[CustomOperator]) -> Self:
        """The front end that knows them."""
        ...


def _found() -> dict[str, str]:
    """Name -> ``module:class`` of every front end.

    Raises:
        UsageError: two packages claim one name.
    """
    table = dict(BUILT_IN)
    for point in metadata.entry_points(group=GROUP):
        if table.setdefault(point.name, point.value) != point.value:
            raise UsageError(f"front end {point.name!r} is registered twice: {table[point.name]} and {point.value}")
    return table


def frontend_names() -> list[str]:
    """Names of all front ends."""
    return sorted(_found())


def get_frontend(name: str) -> Frontend:
    """The front end called ``name``; a built-in one, if there is such, whatever other packages register.

    Raises:
        UsageError: there is none; names the known ones.
    """
    table = BUILT_IN if name in BUILT_IN else _found()
    if name not in table:
        near = get_close_matches(name, table, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(table))}"
        raise UsageError(f"no front end {name!r}", hint=hint)
    return _made(table[name])


def frontend_accepting(model: object) -> Frontend:
    """The front end that takes a live model, an object of some framework.

    Raises:
        UsageError: there is none.
    """
    found = next((f for f in _all() if f.accepts(model)), None)
    if found is not None:
        return found
    raise UsageError(
        f"an object of the class {type(model).__module__}.{type(model).__qualname__} is no model",
        hint="give the path of a model file, or a keras.Model",
    )


def _all() -> Iterator[Frontend]:
    """Every front end, the built-in ones first: looking for others in all installed packages takes milliseconds."""
    yield from (_made(BUILT_IN[name]) for name in sorted(BUILT_IN))
    yield from (_made(place) for name, place in sorted(_found().items()) if name not in BUILT_IN)


def _made(place: str) -> Frontend:
    """A front end from its ``module:class``."""
    module, _, attribute = place.partition(":")
    frontend: Frontend = getattr(import_module(module), attribute)()
    return frontend


def guess_frontend(path: str | os.PathLike[str]) -> Frontend:
    """The front end for a file, by its content; those of other packages get what no built-in one knows.

    Raises:
        UsageError: the file cannot be opened.
        ImportModelError: no front end knows its format.
    """
    file = Path(path)
    head = read_head(file)
    found = next((f for f in _all() if f.matches(head, file)), None)
    if found is not None:
        return found
    looks = describe(head)
    known = ", ".join(frontend_names())
    raise ImportModelError(
        f"{os.fspath(path)}: not a model file" + (f": looks like {looks}" if looks else ""),
        hint=f"known formats: {known}",
    )

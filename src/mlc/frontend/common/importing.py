"""What importing a file begins and ends with, whatever its format."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from mlc.errors import MlcError, UsageError
from mlc.frontend.base import KEPT_BYTES, FixedInput, TensorInfo
from mlc.frontend.files import open_regular, read_exactly
from mlc.frontend.limits import Limits
from mlc.ir.graph import Builder, Graph, Node, Value
from mlc.ir.types import dtype_of


def read_file(path: str | os.PathLike[str], limits: Limits) -> bytes:
    """The bytes of a model file.

    Raises:
        UsageError: it cannot be opened.
        ImportModelError: it is beyond the limit ``file_bytes``.
    """
    descriptor, size = open_regular(path)
    try:
        limits.check("file_bytes", size, "the model file")
        return read_exactly(descriptor, 0, size)
    finally:
        os.close(descriptor)


@contextmanager
def naming(label: str) -> Iterator[None]:
    """Puts the file's name before the message of every error of ours; ``label`` is empty where there is no file."""
    try:
        yield
    except MlcError as error:
        if label and not error.message.startswith(label):
            error.message = f"{label}: {error.message}"
        raise


def check_constant_names(
    names: Sequence[str], shapes: Mapping[str, Sequence[int]], constants: Mapping[str, npt.ArrayLike]
) -> None:
    """Refuse values for inputs that do not exist, or that were given a shape as well.

    Raises:
        UsageError: there is such a value.
    """
    for name in constants:
        if name not in names:
            known = ", ".join(map(repr, names)) or "none"
            raise UsageError(f"no input {name!r} to give a value", hint=f"inputs: {known}")
        if name in shapes:
            raise UsageError(f"input {name!r}: given both a value and a shape", hint="the value has the shape")


def fixed_input(name: str, array: np.ndarray) -> FixedInput:
    """What is remembered of an input that was given a value."""
    data = array.tobytes() if array.nbytes <= KEPT_BYTES else b""
    return FixedInput(name, array.shape, dtype_of(array.dtype).name, data)


def tensor_info(name: str, value: Value) -> TensorInfo:
    """What is remembered of an input or output."""
    return TensorInfo(name, value.type.shape, value.type.dtype.name)


def finish(builder: Builder, outputs: Sequence[Value], names: Sequence[str], seed: Value | None = None) -> Graph:
    """The graph of what was built, without the nodes and constants that nothing uses.

    Args:
        builder: what was built.
        outputs: of the graph.
        names: of the outputs.
        seed: an input that goes, too, if nothing uses it.
    """
    builder.nodes = _needed(builder.nodes, outputs)
    used = {v for node in builder.nodes for v in node.inputs} | set(outputs)
    builder.constants = {v: array for v, array in builder.constants.items() if v in used}
    builder.inputs = [v for v in builder.inputs if v is not seed or v in used]
    return builder.finish(outputs, names)


def _needed(nodes: Sequence[Node], outputs: Iterable[Value]) -> list[Node]:
    wanted = set(outputs)
    kept: list[Node] = []
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.outputs):
            kept.append(node)
            wanted.update(node.inputs)
    return kept[::-1]

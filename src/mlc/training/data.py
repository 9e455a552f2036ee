"""What a model learns from: arrays whose first axis counts examples, or batches that somebody makes as they are needed.

Arrays may be mapped files: a batch reads its rows, and converts no others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np

from mlc.errors import UsageError
from mlc.ir.graph import Value
from mlc.ir.types import TensorType

SAMPLED = 64  # examples whose bytes tell one set of data from another


class Batches(Protocol):
    """What a run takes its batches from: arrays by the names of a step's operands."""

    @property
    def batch(self) -> int:
        """Examples in a step."""

    @property
    def steps(self) -> int:
        """Batches of an epoch."""

    def shuffled(self, seed: int, epoch: int, first: int = 0) -> Iterator[dict[str, np.ndarray]]:
        """The batches of an epoch from the ``first`` on; the same ones whenever seed and epoch are."""

    def identity(self) -> str:
        """What tells these examples from others, so that a checkpoint is not gone on from with those."""


@dataclass(frozen=True, eq=False)
class Stream:
    """Batches that are made while a model learns, by whoever trains it.

    Args:
        steps: batches of an epoch.
        batches: gives those of an epoch, counted from 0, each with an array for every input of the model, by its name,
            and one more, what is to be predicted. A run that is resumed has the same bits only if it gives the same
            batches for an epoch every time; those done before are asked for and dropped.

    >>> Stream(1, lambda epoch: [{"x": np.zeros((8, 3), np.float32), "y": np.zeros(8, np.int64)}]).steps
    1
    """

    steps: int
    batches: Callable[[int], Iterable[Mapping[str, np.ndarray]]]


@dataclass(frozen=True, eq=False)
class Streamed:
    """A stream whose batches are checked as they come.

    Args:
        stream: makes them.
        inputs: of the model.
        target: the type of what predictions are compared with.
        name: that the step knows it by.
        where: what messages call the data.
    """

    stream: Stream
    inputs: Sequence[Value]
    target: TensorType
    name: str
    where: str

    @property
    def batch(self) -> int:
        """Examples in a step."""
        return self.target.shape[0]

    @property
    def steps(self) -> int:
        """Batches of an epoch."""
        return self.stream.steps

    def shuffled(self, seed: int, epoch: int, first: int = 0) -> Iterator[dict[str, np.ndarray]]:
        """The batches of an epoch from the ``first`` on; their order is the stream's own.

        Raises:
            UsageError: there are fewer than promised, or one does not fit.
        """
        count = 0
        for count, arrays in enumerate(islice(self.stream.batches(epoch), self.steps), 1):
            if count <= first:
                continue
            where = f"{self.where}, batch {count} of epoch {epoch + 1}"
            given = {n: np.asarray(a) for n, a in arrays.items()}
            one = examples_of(given, self.inputs, self.target, self.name, where)
            if len(one) != self.batch:
                raise UsageError(f"{where}: holds {len(one)} examples, not {self.batch}")
            yield one.rows(np.arange(self.batch))
        if count < self.steps:
            raise UsageError(f"{self.where}: epoch {epoch + 1} had {count} batches, {self.steps} were promised")

    def identity(self) -> str:
        """How many batches there are: more is not known of them."""
        return f"{self.steps} batches"


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs and what is to be predicted from them.

    Args:
        arrays: one an operand of the step, by its name; all have as many examples.
        dtypes: the element types that the step takes.
        batch: examples in a step.
    """

    arrays: Mapping[str, np.ndarray]
    dtypes: Mapping[str, np.dtype]
    batch: int

    def __len__(self) -> int:
        return min(len(a) for a in self.arrays.values())

    @property
    def steps(self) -> int:
        """Whole batches; the examples left over are other ones in every epoch."""
        return len(self) // self.batch

    def shuffled(self, seed: int, epoch: int, first: int = 0) -> Iterator[dict[str, np.ndarray]]:
        """The batches of an epoch from the ``first`` on, in an order that the seed and the epoch decide."""
        order = np.random.default_rng([seed, epoch]).permutation(len(self))
        for k in range(first, self.steps):
            rows = np.sort(order[k * self.batch : (k + 1) * self.batch])  # files are read forwards
            yield self.rows(rows)

    def in_order(self) -> Iterator[tuple[dict[str, np.ndarray], int]]:
        """All batches with how many of their examples count: the last one is filled up with the first examples."""
        for begin in range(0, len(self), self.batch):
            count = min(self.batch, len(self) - begin)
            rows = np.arange(begin, begin + self.batch) % len(self)
            yield self.rows(rows), count

    def rows(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Some examples, in the element types of the step."""
        return {n: np.ascontiguousarray(a[numbers], self.dtypes[n]) for n, a in self.arrays.items()}

    def identity(self) -> str:
        """A digest of how many examples there are, and of some of them."""
        digest = hashlib.sha256(str(len(self)).encode())
        some = np.unique(np.linspace(0, len(self) - 1, SAMPLED).astype(np.int64))
        for name, array in sorted(self.rows(some).items()):
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(array.tobytes())
        return digest.hexdigest()

    def split(self, share: float) -> tuple[Examples, Examples]:
        """The examples but for the last ``share`` of them, and those."""
        cut = len(self) - max(1, round(len(self) * share))
        parts = ({n: a[:cut] for n, a in self.arrays.items()}, {n: a[cut:] for n, a in self.arrays.items()})
        return Examples(parts[0], self.dtypes, self.batch), Examples(parts[1], self.dtypes, self.batch)


def examples_of(
    arrays: Mapping[str, np.ndarray], inputs: Sequence[Value], target: TensorType, name: str, where: str
) -> Examples:
    """Arrays of a file as what a model learns from.

    Args:
        arrays: by name; those of the model's inputs, and one other, which is to be predicted.
        inputs: of the model.
        target: the type of what predictions are compared with.
        name: that the step knows it by.
        where: the file, for messages.
    Raises:
        UsageError: an array is missing, there is more than one other, or one does not fit.
    """
    known = {v.name: v.type for v in inputs}
    missing = [n for n in known if n not in arrays]
    if missing:
        raise UsageError(
            f"{where}: no array is called {', '.join(map(repr, missing))} as the model's input is",
            hint=f"it holds {', '.join(map(repr, arrays)) or 'nothing'}",
        )
    others = [n for n in arrays if n not in known]
    if len(others) != 1:
        raise UsageError(
            f"{where}: besides the inputs there must be one array, what is to be predicted; there are "
            + (", ".join(map(repr, others)) or "none")
        )
    fitted = {n: _fitted(arrays[n], type, n, where) for n, type in known.items()}
    fitted[name] = _fitted(arrays[others[0]], target, others[0], where)
    dtypes = {n: type.dtype.numpy for n, type in {**known, name: target}.items()}
    counts = {n: len(a) for n, a in fitted.items()}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{count} of {others[0] if n == name else n!r}" for n, count in counts.items())
        raise UsageError(f"{where}: numbers of examples differ: {told}")
    batch = target.shape[0]
    if min(counts.values()) < batch:
        raise UsageError(f"{where}: {min(counts.values())} examples are less than a batch of {batch}")
    return Examples(fitted, dtypes, batch)


def _fitted(array: np.ndarray, type: TensorType, name: str, where: str) -> np.ndarray:
    """Examples in the shape of an operand.

    Raises:
        UsageError: they are of another shape or kind.
    """
    have = array.shape[1:]
    if len(array.shape) == len(type.shape) + 1 and have[-1:] == (1,) and have[:-1] == type.shape[1:]:
        array, have = array[..., 0], have[:-1]  # labels in a column
    kinds = "fiub" if type.dtype.is_float else "iub"
    if have != type.shape[1:] or array.dtype.kind not in kinds:
        one = f"{type.dtype}[{','.join(map(str, type.shape[1:]))}]"
        raise UsageError(f"{where}: {name!r} holds {array.dtype}{list(have)} an example, {one} is needed")
    return array

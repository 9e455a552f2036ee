"""What a model learns from: arrays whose first axis counts examples, in batches of a fixed size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mlc.errors import UsageError
from mlc.ir.graph import Value
from mlc.ir.types import TensorType


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs and what is to be predicted from them.

    Args:
        arrays: one an operand of the step, by its name; all have as many examples.
        batch: examples in a step.
    """

    arrays: Mapping[str, np.ndarray]
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
            yield {name: np.ascontiguousarray(a[rows]) for name, a in self.arrays.items()}

    def in_order(self) -> Iterator[tuple[dict[str, np.ndarray], int]]:
        """All batches with how many of their examples count: the last one is filled up with the first examples."""
        for begin in range(0, len(self), self.batch):
            count = min(self.batch, len(self) - begin)
            rows = np.arange(begin, begin + self.batch) % len(self)
            yield {name: np.ascontiguousarray(a[rows]) for name, a in self.arrays.items()}, count

    def split(self, share: float) -> tuple[Examples, Examples]:
        """The examples but for the last ``share`` of them, and those."""
        cut = len(self) - max(1, round(len(self) * share))
        parts = ({n: a[:cut] for n, a in self.arrays.items()}, {n: a[cut:] for n, a in self.arrays.items()})
        return Examples(parts[0], self.batch), Examples(parts[1], self.batch)


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
    counts = {n: len(a) for n, a in fitted.items()}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{count} of {others[0] if n == name else n!r}" for n, count in counts.items())
        raise UsageError(f"{where}: numbers of examples differ: {told}")
    batch = target.shape[0]
    if min(counts.values()) < batch:
        raise UsageError(f"{where}: {min(counts.values())} examples are less than a batch of {batch}")
    return Examples(fitted, batch)


def _fitted(array: np.ndarray, type: TensorType, name: str, where: str) -> np.ndarray:
    """Examples in the element type of an operand.

    Raises:
        UsageError: they are of another shape or kind.
    """
    wanted = type.dtype.numpy
    have = array.shape[1:]
    if len(array.shape) == len(type.shape) + 1 and have[-1:] == (1,) and have[:-1] == type.shape[1:]:
        array, have = array[..., 0], have[:-1]  # labels in a column
    kinds = "fiub" if type.dtype.is_float else "iub"
    if have != type.shape[1:] or array.dtype.kind not in kinds:
        one = f"{type.dtype}[{','.join(map(str, type.shape[1:]))}]"
        raise UsageError(f"{where}: {name!r} holds {array.dtype}{list(have)} an example, {one} is needed")
    return array if array.dtype == wanted else array.astype(wanted)

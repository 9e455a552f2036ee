"""From a tensor as it lies in memory back to its logical index space, with numpy alone.

The compiler decides layouts (blocked, padded, permuted); the package says how to undo them, as a short list of steps:
``("reshape", shape)``, ``("transpose", axes)``, ``("slice", ((begin, end), ...))``, one pair an axis, and ``("fold",
(axis, stride))``, which puts the tiles of an axis together that lie ``stride`` apart on the next one. So a debugger, or
the layer-by-layer check, needs no layout algebra.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from mlc.errors import PackageError
from mlc.fields import Fields, as_integer, as_integers, as_list, as_text, wrong

UnpackStep = tuple[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Physical:
    """How a tensor lies in memory, where that is not row-major.

    Args:
        layout: the layout as the compiler prints it; for people only.
        shape: extents in memory, row-major.
        unpack: steps that lead from an array of ``shape`` to the logical array.

    Example: f32[1,20,3] in blocks of 16 channels, padded to 32, is
    ``Physical("NC16c", (1, 2, 3, 16), (("transpose", (0, 1, 3, 2)), ("reshape", (1, 32, 3)),
    ("slice", ((0, 1), (0, 20), (0, 3)))))``.
    """

    layout: str
    shape: tuple[int, ...]
    unpack: tuple[UnpackStep, ...]

    def logical_shape(self, where: str = "unpack") -> tuple[int, ...]:
        """The shape after all steps.

        Args:
            where: path of this layout, for messages.
        Raises:
            PackageError: a step does not fit the shape before it.
        """
        shape = self.shape
        for i, (kind, argument) in enumerate(self.unpack):
            if kind == "reshape":
                fits, after = prod(argument) == prod(shape), argument
            elif kind == "transpose":
                fits = sorted(argument) == list(range(len(shape)))
                after = tuple(shape[axis] for axis in argument) if fits else ()
            elif kind == "fold":
                axis, stride = argument
                fits = 0 <= axis < len(shape) - 1 and 1 <= stride <= shape[axis + 1] and shape[axis] > 0
                after = (
                    (*shape[:axis], (shape[axis] - 1) * stride + shape[axis + 1], *shape[axis + 2 :]) if fits else ()
                )
            else:
                fits = len(argument) == len(shape) and all(
                    begin <= end <= extent for (begin, end), extent in zip(argument, shape, strict=True)
                )
                after = tuple(end - begin for begin, end in argument)
            if not fits:
                raise PackageError(f"{where}[{i}]: {kind} {list(argument)} does not fit shape {list(shape)}")
            shape = after
        return shape

    def undo(self, array: np.ndarray) -> np.ndarray:
        """The logical array from one that lies in memory like this.

        Args:
            array: any shape with as many elements as ``shape``.
        Returns:
            an array of the logical shape; a view where numpy can make one.
        """
        array = array.reshape(self.shape)
        for kind, argument in self.unpack:
            if kind == "reshape":
                array = array.reshape(argument)
            elif kind == "transpose":
                array = array.transpose(argument)
            elif kind == "fold":
                array = _folded(array, *argument)
            else:
                array = array[tuple(slice(begin, end) for begin, end in argument)]
        return array

    def to_json(self) -> dict[str, Any]:
        return {
            "layout": self.layout,
            "shape": list(self.shape),
            "unpack": [[kind, [list(a) if kind == "slice" else a for a in argument]] for kind, argument in self.unpack],
        }

    @classmethod
    def from_json(cls, value: object, where: str) -> Physical:
        fields = Fields(value, where)
        physical = cls(
            fields.take("layout", as_text),
            fields.take("shape", as_integers),
            fields.take("unpack", lambda steps, place: as_list(steps, place, _step)),
        )
        fields.end()
        return physical


def _step(value: object, where: str) -> UnpackStep:
    if not isinstance(value, list) or len(value) != 2:
        raise wrong(where, "a pair of a step and its argument", value)
    kind, argument = value
    if kind == "slice":
        return kind, as_list(argument, where, _range)
    if kind not in ("reshape", "transpose", "fold"):
        raise wrong(where, "reshape, transpose, slice or fold", kind)
    numbers = as_integers(argument, where)
    if kind == "fold" and len(numbers) != 2:
        raise wrong(where, "an axis and a stride", argument)
    return kind, numbers


def _folded(array: np.ndarray, axis: int, stride: int) -> np.ndarray:
    """Tiles put together: what the next one has as well is left out of each but the last."""
    tiles = np.moveaxis(array, (axis, axis + 1), (0, 1))
    begins = tiles[:, :stride].reshape(-1, *tiles.shape[2:])
    return np.moveaxis(np.concatenate([begins, tiles[-1, stride:]]), 0, axis)


def _range(value: object, where: str) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise wrong(where, "a pair of begin and end", value)
    return as_integer(value[0], where), as_integer(value[1], where)

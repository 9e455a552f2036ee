"""Types of a model's inputs, with every dynamic dimension given a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mlc.errors import ImportModelError, UsageError
from mlc.frontend.common.context import check_type
from mlc.frontend.limits import Limits
from mlc.ir.types import DType, TensorType, bf16, dtype_of

Dim = int | str | None  # an extent, a symbol, or nothing known


_MOST_SHOWN = 40  # open dimensions in a message


class OpenShapesError(UsageError):
    """Dimensions of inputs are not known at compile time."""


@dataclass(frozen=True)
class Declared:
    """An input as the model declares it.

    Args:
        name: of the tensor.
        dtype: element type.
        dims: extents, symbols or nothing; ``None`` when not even the rank is known.
    """

    name: str
    dtype: DType
    dims: tuple[Dim, ...] | None

    def __str__(self) -> str:
        if self.dims is None:
            return f"{self.dtype} of unknown rank"
        return f"{self.dtype}[{','.join('?' if d is None else str(d) for d in self.dims)}]"


def resolve_shapes(
    inputs: Sequence[Declared],
    shapes: Mapping[str, Sequence[int]],
    dims: Mapping[str, int],
    limits: Limits,
) -> dict[str, TensorType]:
    """The type of every input.

    Args:
        inputs: as declared.
        shapes: whole shapes by input name.
        dims: values of symbols; those that follow from ``shapes`` need not be repeated.
        limits: budgets.
    Raises:
        OpenShapesError: dimensions are left open: all of them, with the flags to add.
        UsageError: an unknown name, or a contradiction.
        ImportModelError: an extent is negative or beyond the limits.
    """
    _check_names(inputs, shapes, dims)
    symbols = _symbols(inputs, shapes, dims)
    types: dict[str, TensorType] = {}
    missing: list[str] = []
    flags: list[str] = []
    for d in inputs:
        if d.name in shapes:
            shape = tuple(int(n) for n in shapes[d.name])
        elif d.dims is None:
            missing.append(f"input {d.name!r}: no shape at all")
            flags.append(f"--shape {d.name}=1,3,224,224")
            continue
        else:
            known = [symbols.get(n) if isinstance(n, str) else n for n in d.dims]
            _list_missing(d, known, missing, flags)
            if None in known:
                continue
            shape = tuple(n for n in known if n is not None)
        types[d.name] = TensorType(shape, d.dtype)
        if any(n < 0 for n in shape):
            position = next(k for k, n in enumerate(shape) if n < 0)
            raise ImportModelError(
                f"input {d.name!r}: dimension {position} is {shape[position]}",
                hint=f"if it stands for a dynamic one, give the shape: --shape {_example(d, known=shape)}",
            )
        check_type(types[d.name], limits, f"input {d.name!r}")
    if missing:
        shown, more = missing[:_MOST_SHOWN], len(missing) - _MOST_SHOWN
        wanted = list(dict.fromkeys(flags))
        raise OpenShapesError(
            "shapes must be fixed at compile time: " + "; ".join(shown) + (f"; and {more} more" if more > 0 else ""),
            hint="add "
            + " ".join(wanted[:_MOST_SHOWN])
            + (" ..." if len(wanted) > _MOST_SHOWN else "")
            + " (with your sizes)",
        )
    return types


def _list_missing(d: Declared, known: Sequence[int | None], missing: list[str], flags: list[str]) -> None:
    assert d.dims is not None
    open_dims = [k for k, n in enumerate(known) if n is None]
    for k in open_dims:
        symbol = d.dims[k]
        missing.append(f"input {d.name!r}: dimension {k} is {'unnamed' if symbol is None else repr(symbol)}")
    if any(d.dims[k] is None for k in open_dims):
        flags.append(f"--shape {_example(d, known)}")
    else:
        flags += [f"--dim {d.dims[k]}=1" for k in open_dims]


def _example(d: Declared, known: Sequence[int | None]) -> str:
    return f"{d.name}=" + ",".join(str(n) if n is not None and n >= 0 else "1" for n in known)


def _check_names(inputs: Sequence[Declared], shapes: Mapping[str, Sequence[int]], dims: Mapping[str, int]) -> None:
    names = [d.name for d in inputs]
    for name, shape in shapes.items():
        if name not in names:
            raise UsageError(f"no input {name!r} to give a shape", hint=_list_inputs(inputs))
        if any(int(n) != n or n < 0 for n in shape):
            raise UsageError(f"input {name!r}: shape {list(shape)} has an extent that is no size")
    symbols = {n for d in inputs for n in d.dims or () if isinstance(n, str)}
    for symbol, value in dims.items():
        if symbol not in symbols:
            known = ", ".join(sorted(map(repr, symbols))) or "none"
            raise UsageError(f"no dimension {symbol!r} in the model's inputs", hint=f"symbolic dimensions: {known}")
        if value < 0:
            raise UsageError(f"dimension {symbol!r} cannot be {value}")


def _list_inputs(inputs: Sequence[Declared]) -> str:
    return "inputs: " + (", ".join(f"{d.name!r} {d}" for d in inputs) or "none")


def _symbols(
    inputs: Sequence[Declared], shapes: Mapping[str, Sequence[int]], dims: Mapping[str, int]
) -> dict[str, int]:
    """Values of symbolic dimensions from both kinds of flags, which must agree with the model and each other."""
    symbols = {name: int(value) for name, value in dims.items()}
    for d in inputs:
        if d.name not in shapes or d.dims is None:
            continue
        shape = [int(n) for n in shapes[d.name]]
        if len(shape) != len(d.dims):
            raise UsageError(f"input {d.name!r} is {d} in the model, the shape {shape} has rank {len(shape)}")
        for k, (declared, given) in enumerate(zip(d.dims, shape, strict=True)):
            if isinstance(declared, str):
                if symbols.setdefault(declared, given) != given:
                    raise UsageError(
                        f"input {d.name!r}: dimension {declared!r} is given as {given} and as {symbols[declared]}"
                    )
            # a negative extent is some exporters' way of saying "any"
            elif declared is not None and 0 <= declared != given:
                raise UsageError(f"input {d.name!r} is {d} in the model, the given shape has {given} at position {k}")
    return symbols


def check_constant_input(declared: Declared, value: object) -> np.ndarray:
    """A value for an input that is to be a constant, checked against its declaration.

    Args:
        declared: the input.
        value: an array of its very type, or of that which stands for it in files of arrays; or a number, truth value or
            nested list of them, which takes its element type.
    Raises:
        UsageError: element type or shape differ, or a number does not fit the element type.
    """
    array = _unplain(declared, value) if isinstance(value, (np.ndarray, np.generic)) else _typed(declared, value)
    fits = declared.dims is None or (
        array.ndim == len(declared.dims)
        and all(not isinstance(n, int) or n in (have, -1) for n, have in zip(declared.dims, array.shape, strict=True))
    )
    if array.dtype.name != declared.dtype.numpy.name or not fits:
        raise UsageError(
            f"input {declared.name!r} is {declared}, the constant given for it is "
            f"{array.dtype.name}[{','.join(map(str, array.shape))}]"
        )
    return np.array(array, dtype=dtype_of(array.dtype).numpy)


def _unplain(declared: Declared, array: np.ndarray | np.generic) -> np.ndarray | np.generic:
    """An array of numpy's own type as one of the declared type, where files of arrays lack that."""
    dtype = declared.dtype
    if array.dtype != (np.float32 if dtype is bf16 else dtype.carrier.numpy):
        return array
    with np.errstate(all="ignore"):
        typed = array.astype(dtype.numpy)
    if dtype.is_int and array.size:
        least, most = int(array.min()), int(array.max())
        if least < dtype.min_value or most > dtype.max_value:
            values = f"values from {least} to {most}"
            raise UsageError(f"input {declared.name!r} is {declared}, the constant given for it has {values}")
    return typed


def _typed(declared: Declared, value: object) -> np.ndarray:
    """Python numbers as an array of the declared element type; only floats may be rounded."""
    try:
        array = np.asarray(value)
        with np.errstate(all="ignore"):
            typed = array.astype(declared.dtype.numpy)
        exact = declared.dtype.is_float or bool(np.all(typed == array))
    except (ValueError, TypeError, OverflowError):
        exact = False
    if not exact or array.dtype.kind not in "biuf":
        raise UsageError(f"input {declared.name!r} is {declared}, the constant given for it is {value!r:.60}")
    return typed

"""Many inputs in one file: the samples that a quantisation is calibrated with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mlc.errors import UsageError
from mlc.runtime.dtypes import describe, from_plain, numpy_dtype
from mlc.runtime.tensor_spec import TensorSpec


def split_samples(specs: Sequence[TensorSpec], arrays: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Feeds of a model from arrays that hold several.

    Along its first axis an array holds as many samples as fit: for an input ``[1, 3, 224, 224]`` both
    ``[32, 3, 224, 224]`` and ``[32, 1, 3, 224, 224]`` are 32. Floats of other widths are converted, and for
    types that ``.npz`` lacks numpy's own stand.

    Args:
        specs: the model's inputs.
        arrays: an array for each, by name.
    Returns:
        one mapping a sample.
    Raises:
        UsageError: an input is missing or unknown, an array has the wrong shape or type or holds no sample, or two of
            them hold different numbers.
    """
    known = ", ".join(f"{spec.name!r} {spec}" for spec in specs)
    for name in arrays:
        if name not in {spec.name for spec in specs}:
            raise UsageError(f"samples are given for {name!r}, which is not an input", hint=f"the inputs: {known}")
    stacks: dict[str, np.ndarray] = {}
    for spec in specs:
        if spec.name not in arrays:
            raise UsageError(f"there are no samples for the input {spec.name!r}", hint=f"the inputs: {known}")
        stacks[spec.name] = _stacked(spec, arrays[spec.name])
    counts = {name: len(stack) for name, stack in stacks.items()}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{count} for {name!r}" for name, count in counts.items())
        raise UsageError(f"the inputs have different numbers of samples: {told}", hint="give each the same number")
    return [
        {name: np.array(stack[k], order="C") for name, stack in stacks.items()}
        for k in range(min(counts.values(), default=0))
    ]


def _stacked(spec: TensorSpec, array: np.ndarray) -> np.ndarray:
    """``[samples, *spec.shape]``."""
    dtype, shape = numpy_dtype(spec.dtype), spec.shape
    batch = shape[0] if shape else 0
    if array.shape[1:] == shape and array.shape[0]:
        stack = array
    elif batch and array.ndim == len(shape) and array.shape[1:] == shape[1:] and array.shape[0] % batch == 0:
        stack = array.reshape(-1, *shape)
    else:
        stack = array[:0]
    if not len(stack):
        several = f"[samples, {', '.join(map(str, shape))}]"
        raise UsageError(
            f"the samples for {spec.name!r} are {describe(array.dtype, array.shape)}, which are no {spec}",
            hint=f"expected {several}, or batches of {batch} one after the other" if batch else f"expected {several}",
        )
    stack = from_plain(stack, dtype)
    if stack.dtype == dtype:
        return stack
    if not (dtype.kind == stack.dtype.kind == "f"):
        raise UsageError(
            f"the samples for {spec.name!r} are {stack.dtype}, the input is {spec.dtype}",
            hint=f"convert them with .astype({dtype.name!r})",
        )
    return stack.astype(dtype)

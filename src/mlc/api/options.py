"""What compiling and tuning make of their arguments alike."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mlc.api.models import Model
from mlc.errors import OutputError, UnsupportedError, UsageError
from mlc.runtime.manifest import SYMBOLS, is_prefix
from mlc.runtime.native import available_cores
from mlc.settings import WEIGHT_TYPES, CompileOptions

if TYPE_CHECKING:
    from mlc.targets.base import Target

# Threads that share the kernels of a slice of a batch: it has few tasks for more, which would wait for one another.
SLICED_THREADS = 8
SLICES = "slices"  # the pass, as mlc.pipeline.passes names it, which takes long to import


def compile_options(
    model: Model,
    name: str | None,
    opt_level: int,
    disabled_passes: Sequence[str],
    fast_math: bool,
    *,
    verify: bool = False,
    check_regions: bool = False,
    list_layouts: bool = False,
    keep_assembly: bool = False,
    weights: str | None = None,
    bf16: bool = False,
    fp16: bool = False,
    keep_f32: Sequence[str] = (),
    max_kernels: int | None = None,
    memory: int | None = None,
    max_memory: int | None = None,
    functions: str | os.PathLike[str] | None = None,
    threads: int | None = None,
) -> CompileOptions:
    """How to compile a model, from the arguments of the public functions.

    Args:
        name: that the user gave; the model's own, and symbols that begin with ``mlc``, unless given.
        model, opt_level, disabled_passes, fast_math, verify, check_regions, list_layouts, keep_assembly, weights, bf16,
            fp16, keep_f32, max_kernels, memory, max_memory, functions, threads: as for ``compile``.
    Raises:
        UsageError: no C identifier can begin with the name; weights cannot be stored in such a type.
    """
    if weights is not None and weights not in WEIGHT_TYPES:
        raise UsageError(f"weights cannot be stored as {weights!r}", hint=f"they can be {', '.join(WEIGHT_TYPES)}")
    if name is not None and not is_prefix(name):
        raise UsageError(
            f"the name {name!r} cannot begin a C identifier, as it does in the calls of the package",
            hint="use letters, digits and _, 64 at most, the first a letter; for example detector",
        )
    if (available_cores() if threads is None else threads) > SLICED_THREADS:
        disabled_passes = (*disabled_passes, SLICES)
    return CompileOptions(
        name=name or model.info.name or Path(model.info.path).stem or "model",
        source=model.info.path,
        sha256=model.info.sha256,
        opt_level=opt_level,
        disabled_passes=tuple(disabled_passes),
        fast_math=fast_math,
        verify=verify,
        symbols=name or SYMBOLS,
        check_regions=check_regions,
        list_layouts=list_layouts,
        keep_assembly=keep_assembly,
        weights=weights or "",
        bf16=bf16,
        fp16=fp16,
        keep_f32=tuple(keep_f32),
        max_kernels=max_kernels,
        quantised=model.info.quantised,
        memory=memory,
        max_memory=max_memory,
        updates=model.info.updates,
        functions=None if functions is None else Path(functions),
    )


def require_products(
    machine: Target,
    target: str,
    weights: str | None,
    *,
    bf16: bool,
    fp16: bool,
    keep_f32: Sequence[str] = (),
    allow_emulation: bool = False,
) -> None:
    """Whether a target can do what is asked of products.

    Args:
        machine: the target.
        target: what the user calls it.
        weights, bf16, fp16, keep_f32, allow_emulation: as for ``compile``.
    Raises:
        UsageError: nothing is computed in bf16 that could be emulated, or in f16 that something could be kept from.
        UnsupportedError: it stores weights as they are, or has no products of bf16, or nothing to gain by f16.
    """
    from mlc.targets.base import Whole

    if allow_emulation and not bf16:
        raise UsageError("there is nothing to emulate", hint="--allow-emulation is for --bf16")
    if keep_f32 and not fp16:
        raise UsageError("there is nothing to be kept in float32", hint="--keep-f32 is for --fp16")
    if fp16 and not isinstance(machine.accelerator, Whole) and not machine.sums_in_half():
        raise UnsupportedError(
            f"the target {target!r} computes no faster in half precision",
            hint="--fp16 is for the targets cuda and opencl, and for arm with sums in it, too: arm -mcpu=cortex-a76 "
            "-sums=f16; --bf16 and --weights are for all processors",
        )
    if fp16 and (weights is not None or bf16):
        raise UsageError("--fp16 contradicts --weights and --bf16", hint="leave one of them out")
    if (weights is not None or bf16) and isinstance(machine.accelerator, Whole):
        raise UnsupportedError(
            f"the target {target!r} multiplies by weights as they are", hint="leave --weights and --bf16 out"
        )
    if bf16 and not allow_emulation and not machine.multiplies_bf16():
        raise UnsupportedError(
            f"the processor of target {target!r} has no instruction for products of bf16",
            hint="--allow-emulation widens them, which is no faster than f32; --weights bf16 works anywhere",
        )


def make_folder(folder: Path) -> None:
    """Makes a folder, and those that it lies in, where they are not there.

    Raises:
        OutputError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be made: {error.strerror}", hint="name a folder to be created") from error

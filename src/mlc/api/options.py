"""What compiling and tuning make of their arguments alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mlc.api.models import Model
from mlc.errors import OutputError, UsageError
from mlc.runtime.manifest import SYMBOLS, is_prefix
from mlc.settings import WEIGHT_TYPES, CompileOptions


def compile_options(
    model: Model,
    name: str | None,
    opt_level: int,
    disabled_passes: Sequence[str],
    fast_math: bool,
    *,
    verify: bool = False,
    check_regions: bool = False,
    keep_assembly: bool = False,
    weights: str | None = None,
) -> CompileOptions:
    """How to compile a model, from the arguments of the public functions.

    Args:
        name: that the user gave; the model's own, and symbols that begin with ``mlc``, unless given.
        model, opt_level, disabled_passes, fast_math, verify, check_regions, keep_assembly, weights: as for ``compile``.
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
        keep_assembly=keep_assembly,
        weights=weights or "",
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

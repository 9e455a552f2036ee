"""Objects to one, and one to a shared library, with a C compiler for the platform where there is one."""

from __future__ import annotations

import logging
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mlc.errors import ToolchainError
from mlc.runtime.toolchain import compiler_for, run_tool

_LOGGER = logging.getLogger("mlc")


def shared_library(obj: bytes, triple: str) -> bytes | None:
    """``model.so`` from ``model.o``; ``None`` where nothing here links for the target.

    A package does without it, so what goes wrong in making it is a warning and no error.

    Args:
        obj: a relocatable object.
        triple: what it was generated for.
    """
    compiler = compiler_for(triple)
    if compiler is None:
        return None
    try:
        with tempfile.TemporaryDirectory(prefix="mlc-link-") as folder:
            source, result = Path(folder) / "model.o", Path(folder) / "model.so"
            source.write_bytes(obj)
            options = ("-shared", "-Wl,--build-id=none", "-o", str(result), str(source), "-lm", "-lpthread")
            status, said = run_tool((*compiler, *options))
            if status != 0:
                raise ToolchainError(f"{compiler[0]} failed: {said}")
            return result.read_bytes()
    except (OSError, subprocess.TimeoutExpired, ToolchainError) as error:
        _LOGGER.warning("the package has no model.so: %s", error)
        return None


def can_join(triple: str) -> bool:
    """Whether something here puts objects for a platform together."""
    return compiler_for(triple) is not None


def joined(objects: Sequence[bytes], triple: str) -> bytes | None:
    """Relocatable objects as one; ``None``, with a warning, where that fails.

    Args:
        triple: a platform for which :func:`can_join`.
    """
    compiler = compiler_for(triple)
    assert compiler is not None
    with tempfile.TemporaryDirectory(prefix="mlc-link-") as folder:
        files = []
        for k, obj in enumerate(objects):
            file = Path(folder) / f"{k}.o"
            file.write_bytes(obj)
            files.append(str(file))
        result = Path(folder) / "model.o"
        status, said = run_tool((*compiler, "-r", "-nostdlib", "-o", str(result), *files))
        if status == 0:
            return result.read_bytes()
        _LOGGER.warning("kernels are compiled together: %s", said)
        return None

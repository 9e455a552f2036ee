"""An object to a shared library, with a C compiler for the platform where there is one."""

from __future__ import annotations

import logging
import subprocess
import tempfile
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

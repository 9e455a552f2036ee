"""An object to a shared library, with the system's C compiler where there is one."""

from __future__ import annotations

import logging
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from mlc.errors import ToolchainError

_LOGGER = logging.getLogger("mlc")

_SECONDS = 60


def shared_library(obj: bytes, triple: str) -> bytes | None:
    """``model.so`` from ``model.o``; ``None`` where this machine cannot link for the target.

    A package does without it, so what goes wrong in making it is a warning and no error.

    Args:
        obj: a relocatable object.
        triple: what it was generated for.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or platform.machine() != triple.partition("-")[0]:
        return None
    try:
        return _linked(compiler, obj)
    except (OSError, subprocess.TimeoutExpired, ToolchainError) as error:
        _LOGGER.warning("the package has no model.so: %s", error)
        return None


def _linked(compiler: str, obj: bytes) -> bytes:
    with tempfile.TemporaryDirectory(prefix="mlc-link-") as folder:
        source, result = Path(folder) / "model.o", Path(folder) / "model.so"
        source.write_bytes(obj)
        command = [compiler, "-shared", "-Wl,--build-id=none", "-o", str(result), str(source), "-lm", "-lpthread"]
        done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
        if done.returncode != 0:
            lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise ToolchainError(f"{compiler} failed: {lines[-1] if lines else done.returncode}")
        return result.read_bytes()

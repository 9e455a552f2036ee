"""An object to a shared library, with the system's C compiler where there is one."""

from __future__ import annotations

import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from mlc.errors import ToolchainError

_SECONDS = 60


def shared_library(obj: bytes, triple: str) -> bytes | None:
    """``model.so`` from ``model.o``; ``None`` where this machine cannot link for the target.

    Args:
        obj: a relocatable object.
        triple: what it was generated for.
    Raises:
        ToolchainError: there is a linker, and it failed.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or platform.machine() != triple.partition("-")[0]:
        return None
    with tempfile.TemporaryDirectory(prefix="mlc-link-") as folder:
        source, result = Path(folder) / "model.o", Path(folder) / "model.so"
        source.write_bytes(obj)
        command = [compiler, "-shared", "-Wl,--build-id=none", "-o", str(result), str(source), "-lm", "-lpthread"]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise ToolchainError(f"{compiler} took more than {_SECONDS} s to link the model") from error
        if done.returncode != 0:
            lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise ToolchainError(f"{compiler} could not link the model: {lines[-1] if lines else done.returncode}")
        return result.read_bytes()

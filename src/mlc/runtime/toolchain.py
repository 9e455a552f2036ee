"""Tools that a package for another machine takes: a C compiler that links for it, and an emulator of it."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec

_SECONDS = 600  # the ziglang package builds its C library the first time that it is asked for it


def machine_of(triple: str) -> str:
    """The processor family that an LLVM triple names, as ``uname -m`` has it: ``x86_64``, ``aarch64``."""
    return triple.partition("-")[0]


def is_here(triple: str) -> bool:
    """Whether this machine is of that family."""
    return platform.machine() == machine_of(triple)


def compiler_for(triple: str, *, static: bool = False) -> tuple[str, ...] | None:
    """The command that compiles and links C programs for a platform under Linux; ``None`` where there is none.

    This machine's own is the system's compiler. For others it is a cross compiler for the platform's C library
    (``aarch64-linux-gnu-gcc``, Debian's package ``gcc-aarch64-linux-gnu``; ``aarch64-linux-musl-gcc``), then the one in
    the Python package ``ziglang``.

    Args:
        triple: of the platform, whose last part names its C library: ``gnu`` or ``musl``.
        static: whether programs take nothing from the machine that they run on, its C library not either.
    """
    machine, libc = machine_of(triple), triple.rpartition("-")[2]
    here = ("cc", "gcc", "clang") if is_here(triple) and libc == "gnu" else ()
    for name in (*here, f"{machine}-linux-{libc}-gcc"):
        found = shutil.which(name)
        if found is not None:
            return (found, "-static") if static else (found,)
    if find_spec("ziglang") is None:
        return None
    # glibc cannot be linked statically by zig, musl can
    return (sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-{'musl' if static else libc}")


def emulator_for(triple: str, cpu: str) -> tuple[str, ...] | None:
    """The command that runs a program of another processor family here: qemu's user mode.

    Args:
        triple: of the platform.
        cpu: LLVM's name of the processor; where qemu does not know it, its processor with everything runs the program.
    """
    machine = machine_of(triple)
    found = shutil.which(f"qemu-{machine}-static") or shutil.which(f"qemu-{machine}")
    if found is None:
        return None
    known = subprocess.run((found, "-cpu", "help"), capture_output=True, text=True, timeout=_SECONDS, check=False)
    return (found, "-cpu", cpu if cpu in known.stdout.split() else "max")


def run_tool(command: Sequence[str], folder: str | None = None, seconds: float = _SECONDS) -> tuple[int, str]:
    """Runs a tool to its end.

    Args:
        command: with its arguments.
        folder: to run it in.
        seconds: that it may take.
    Returns:
        its exit status, and the last line that it had to say of errors.
    Raises:
        OSError, subprocess.TimeoutExpired: as for ``subprocess.run``.
    """
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=seconds, check=False)
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return done.returncode, lines[-1] if lines else f"exit status {done.returncode}"

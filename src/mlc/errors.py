"""The one hierarchy of errors, and the exit code each gives to the command line.

A message says what was wrong, where, and what was expected; ``hint`` says what to do about it.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of the ``mlc`` command (documented in ``docs/cli.md``)."""

    OK = 0
    CHECK_FAILED = 1
    USAGE = 2
    BAD_MODEL = 3
    UNSUPPORTED = 4
    MISSING_DEPENDENCY = 5
    DEVICE = 6
    TOOLCHAIN = 7
    INTERNAL = 70
    INTERRUPTED = 130


class MlcError(Exception):
    """Base of every error that a user may meet.

    Args:
        message: what was wrong, and where.
        hint: what to do about it; empty when there is nothing to suggest.
    """

    exit_code = ExitCode.INTERNAL

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message


class UsageError(MlcError):
    """An option, argument or call that cannot be understood."""

    exit_code = ExitCode.USAGE


class CheckFailedError(MlcError):
    """A comparison asked for by the user did not hold (``mlc run --verify``)."""

    exit_code = ExitCode.CHECK_FAILED


class ImportModelError(MlcError):
    """A model file that is broken, hostile, or beyond a limit."""

    exit_code = ExitCode.BAD_MODEL


class UnsupportedError(MlcError):
    """A model that is well formed but uses something ``mlc`` does not support."""

    exit_code = ExitCode.UNSUPPORTED


class MemoryLimitError(UnsupportedError):
    """A model that takes more memory to run than the user allows.

    Args:
        message, hint: as for every error.
        needed: the least limit, in bytes, that it would keep.
        slices: whether a part of it runs slice by slice of a batch; without, it may take less.
    """

    def __init__(self, message: str, *, hint: str, needed: int, slices: bool) -> None:
        super().__init__(message, hint=hint)
        self.needed = needed
        self.slices = slices


class PackageError(MlcError):
    """A ``module.tar`` that is broken, altered, or of another version."""

    exit_code = ExitCode.BAD_MODEL


class ProgramError(MlcError):
    """An accelerator's program that is broken, altered, illegal, or made for another configuration."""

    exit_code = ExitCode.BAD_MODEL


class DocumentError(MlcError):
    """JSON of which a field is missing, wrong or unknown; names it."""

    exit_code = ExitCode.BAD_MODEL


class WorkloadError(MlcError):
    """A workload's document that is broken, beyond a limit, or names what this version of ``mlc`` does not know."""

    exit_code = ExitCode.BAD_MODEL


class MissingDependencyError(MlcError):
    """An optional library is not installed; the hint says what brings it."""

    exit_code = ExitCode.MISSING_DEPENDENCY


class DeviceError(MlcError):
    """The device is absent or cannot run this artefact."""

    exit_code = ExitCode.DEVICE


class ToolchainError(MlcError):
    """A compiler, linker or assembler failed."""

    exit_code = ExitCode.TOOLCHAIN


class OutputError(MlcError):
    """An output file could not be written."""

    exit_code = ExitCode.USAGE


class VerifyError(MlcError):
    """An intermediate program broke a rule of its language: a bug in ``mlc``."""


class ScheduleError(MlcError):
    """An illegal schedule primitive; a tuner scores it, everything else reports it."""


class LowerError(MlcError):
    """A schedule that cannot be lowered."""


class CodegenError(MlcError):
    """A loop AST that a target cannot express."""

    exit_code = ExitCode.TOOLCHAIN

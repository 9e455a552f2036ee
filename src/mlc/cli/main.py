"""``mlc``: the entry point, and the one place where exceptions become exit codes."""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import NoReturn

import click

from mlc import __version__
from mlc.cli.console import Console, write_json
from mlc.cli.group import COMMANDS, TOUR, LazyGroup, did_you_mean
from mlc.errors import ExitCode, MlcError, UsageError
from mlc.settings import Settings

# What a shell reports for a program that a signal ended.
_SIGNAL_BASE = 128
_COMPLETE_VARIABLE = "_MLC_COMPLETE"
_LIBRARIES = ("numpy", "onnx", "llvmlite", "onnxruntime", "tflite", "ai-edge-litert", "h5py", "keras", "click", "rich")


_ENDING = [signal.Signals[name] for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


class _TerminatedError(BaseException):
    """SIGTERM, or the terminal is gone: unwinds the stack, so that half-written files are removed.

    Args:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@click.group(cls=LazyGroup, table=COMMANDS, examples=TOUR)
@click.option("--version", is_flag=True, help="Print the version; with --json, the versions of all parts.")
@click.option("--json", "as_json", is_flag=True, help="Only with --version.")
@click.option("--log-file", metavar="FILE", help="Write the whole log to a file.")
@click.pass_context
def cli(ctx: click.Context, version: bool, as_json: bool, log_file: str | None) -> None:
    """Compile trained models into packages that run by themselves."""
    console = ctx.ensure_object(Console)
    console.log_file = log_file
    if version:
        _print_version(console, as_json)
        ctx.exit()
    if as_json:
        raise UsageError("--json stands after the command", hint="for example: mlc inspect module.tar --json")


def main() -> NoReturn:
    """Run ``mlc`` with the arguments of the process, and end it."""
    _open_streams()
    # What a compilation makes is hardly ever a cycle, and stays: of a model of 1,000 kernels, a sixth of the time went
    # into looking through all of it again and again.
    gc.set_threshold(10_000, 10, 1_000)
    code = run(sys.argv[1:])
    with contextlib.suppress(BrokenPipeError):
        sys.stderr.flush()
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run ``mlc`` and give its exit code; messages go to standard error."""
    console = Console()
    try:
        _complete(console)
        console.settings = Settings.from_environment()
        console.verbose = console.settings.debug
        console.debug = console.settings.debug > 0
        with _termination(), cli.make_context("mlc", list(arguments), obj=console) as context:
            cli.invoke(context)
        sys.stdout.flush()
        return ExitCode.OK
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        return _usage(console, error)
    except MlcError as error:
        if error.exit_code == ExitCode.INTERNAL:
            return _internal(console, error)
        console.error(error.message, error.hint, error)
        return error.exit_code
    except BrokenPipeError:
        # The reader has seen enough. Python must not complain about it once more when it ends.
        _close_stdout()
        return _SIGNAL_BASE + signal.SIGPIPE
    except (KeyboardInterrupt, click.Abort):
        console.error("interrupted")
        return ExitCode.INTERRUPTED
    except _TerminatedError as ended:
        with contextlib.suppress(OSError):  # the terminal that would show it may be what is gone
            console.error("terminated")
        return _SIGNAL_BASE + ended.number
    except MemoryError as error:
        console.error("out of memory", "use a smaller batch, or a machine with more memory", error)
        return ExitCode.DEVICE
    except Exception as error:  # the last resort: whatever it is, the user gets one message
        found = _outside(error) if isinstance(error, OSError) else None
        if found is None:
            return _internal(console, error)
        console.error(*found, error)
        _close_stdout()
        return ExitCode.USAGE
    finally:
        console.close()


def _usage(console: Console, error: click.ClickException) -> int:
    """What click did not understand, in our words where click's are of no help."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "mlc"
    hint = f"{command} --help shows what can be given"
    message = error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption) and context is not None:
        known = [name for param in context.command.get_params(context) for name in (*param.opts, *param.secondary_opts)]
        message = f"there is no option {error.option_name}"
        hint = did_you_mean(error.option_name, [name for name in known if name.startswith("--")], hint)
    console.error(message, hint, error)
    return ExitCode.USAGE


def _outside(error: OSError) -> tuple[str, str] | None:
    """Message and hint for what the world outside did wrong, wherever it came up; nothing for faults of ours."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"cannot write: {error.strerror}", "free some space"
    if error.errno == errno.EBADF and error.filename is None:
        return "cannot write: standard output is closed", "redirect it to a file, or to /dev/null"
    if error.errno in (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES) and error.filename is not None:
        return f"{os.fspath(error.filename)}: {error.strerror}", "check the path"
    return None


def _internal(console: Console, error: Exception) -> int:
    """A fault of ours: one message, and the traceback in a file."""
    text = "".join(traceback.format_exception(error))
    where = ""
    # Without a place for the file there is still the message.
    with contextlib.suppress(OSError):
        descriptor, where = tempfile.mkstemp(prefix="mlc-traceback-", suffix=".txt")
        with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"mlc {__version__}, arguments {sys.argv[1:]}\n\n{text}")
    hint = f"this is a fault in mlc; please report it with {where}" if where else "run again with --debug"
    console.error(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__, hint, error)
    return ExitCode.INTERNAL


def _print_version(console: Console, as_json: bool) -> None:
    if not as_json:
        console.data(f"mlc {__version__}")
        return
    from importlib import metadata

    def version_of(name: str) -> str | None:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return None

    python = ".".join(map(str, sys.version_info[:3]))
    libraries = {name: version_of(name) for name in _LIBRARIES}
    write_json(console, "-", "version", {"version": __version__, "python": python, "libraries": libraries})


def _complete(console: Console) -> None:
    """Answers the shell when it asks for completions (see ``mlc completion``)."""
    instruction = os.environ.get(_COMPLETE_VARIABLE)
    if instruction:
        from click.shell_completion import shell_complete

        raise click.exceptions.Exit(shell_complete(cli, {"obj": console}, "mlc", _COMPLETE_VARIABLE, instruction))


@contextlib.contextmanager
def _termination() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP exceptions, where signals can be handled at all (in the main thread).

    A SIGHUP that was ignored before, as by ``nohup``, stays so.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise _TerminatedError(number)

    before = {k: signal.getsignal(k) for k in _ENDING if signal.getsignal(k) is not signal.SIG_IGN}
    try:
        for k in before:
            signal.signal(k, stop)
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        for k, handler in before.items():
            signal.signal(k, handler)


class _ClosedStream(io.TextIOBase):
    """Standard output when the caller has closed it: whoever has something to write learns so."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def _open_streams() -> None:
    """Gives the process all three standard streams, whatever the caller has closed.

    A file that is opened later must not get the number of one of them: what is meant for the terminal would go there.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    if sys.stdout is None:
        sys.stdout = _ClosedStream()
    if sys.stderr is None:
        sys.stderr = io.StringIO()


def _close_stdout() -> None:
    """Points standard output at nothing, so that the interpreter's last flush cannot fail."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)

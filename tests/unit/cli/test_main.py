"""Exit codes and messages: whatever happens, the user gets one message and the code that the documents promise."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mlc import __version__, errors
from mlc.errors import ExitCode
from tests.unit.cli.conftest import Result

Mlc = Callable[..., Result]


@pytest.fixture
def ops_raises(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Makes ``mlc ops`` raise."""

    def arrange(error: BaseException) -> None:
        def fail(name: str) -> None:
            raise error

        monkeypatch.setattr("mlc.frontend.base.get_frontend", fail)

    return arrange


@pytest.mark.parametrize(
    "error, code",
    [
        (errors.CheckFailedError("no"), 1),
        (errors.UsageError("no"), 2),
        (errors.OutputError("no"), 2),
        (errors.ImportModelError("no"), 3),
        (errors.PackageError("no"), 3),
        (errors.UnsupportedError("no"), 4),
        (errors.MissingDependencyError("no"), 5),
        (errors.DeviceError("no"), 6),
        (errors.ToolchainError("no"), 7),
        (errors.CodegenError("no"), 7),
    ],
)
def test_every_error_has_its_code_and_no_traceback(mlc: Mlc, ops_raises: Callable, error: Exception, code: int) -> None:
    ops_raises(error)
    result = mlc("ops")
    assert (result.code, result.err, result.out) == (code, "error: no\n", "")


def test_hint_stands_below_the_message(mlc: Mlc, ops_raises: Callable) -> None:
    ops_raises(errors.UsageError("wrong\x1b[31m", hint="do this"))
    assert mlc("ops").err == "error: wrong\\x1b[31m\nhint: do this\n"


@pytest.mark.parametrize("error", [ValueError("odd"), errors.VerifyError("odd"), errors.LowerError("odd")])
def test_a_fault_of_ours_leaves_its_traceback_in_a_file(mlc: Mlc, ops_raises: Callable, error: Exception) -> None:
    ops_raises(error)
    result = mlc("ops")
    assert result.code == ExitCode.INTERNAL
    assert result.err.startswith(f"error: {type(error).__name__}: odd\nhint: this is a fault in mlc; please report it")
    file = Path(result.err.split()[-1])
    assert "Traceback" in file.read_text()
    file.unlink()


def test_debug_shows_the_traceback(mlc: Mlc, ops_raises: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    ops_raises(errors.UsageError("no"))
    for result in (mlc("--debug", "ops"), mlc("ops", "--debug")):
        assert result.err.startswith("Traceback")
        assert result.err.endswith("error: no\n")
    monkeypatch.setenv("MLC_DEBUG", "1")
    assert mlc("ops").err.startswith("Traceback")


@pytest.mark.parametrize(
    "error, code, message",
    [
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
        (MemoryError(), 6, "error: out of memory\nhint: use a smaller batch, or a machine with more memory\n"),
    ],
)
def test_interrupt_and_memory(mlc: Mlc, ops_raises: Callable, error: BaseException, code: int, message: str) -> None:
    ops_raises(error)
    result = mlc("ops")
    assert (result.code, result.err) == (code, message)


def test_a_wrong_variable_is_named(mlc: Mlc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLC_SEED", "x")
    result = mlc("ops")
    assert result.code == 2
    assert "the environment variable MLC_SEED must be an integer" in result.err


def test_nothing_to_do_is_a_usage_error_that_helps(mlc: Mlc) -> None:
    result = mlc()
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("Usage: mlc")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("compil",), "error: there is no command 'compil'\nhint: did you mean compile or completion?\n"),
        (("zzz",), "error: there is no command 'zzz'\nhint: mlc --help lists them\n"),
        (("--verson",), "error: there is no option --verson\nhint: did you mean --version"),
        (("run", "--treads", "2"), "error: there is no option --treads\nhint: did you mean --threads"),
        (("import",), "error: Missing argument 'MODEL'\nhint: mlc import --help shows what can be given\n"),
        (("compile", "m", "-O4"), "error: Invalid value for '-O': '4' is not a whole number from 0 to 3"),
        (("run", "m", "--rtol", "nan"), "error: Invalid value for '--rtol': 'nan' is not a number of at least 0"),
        (
            ("compile", "m", "--target", "arm", "-o", "t", "-mcpu=cortex-a72"),
            "error: there is no option -mcpu\nhint: an option of a target stands right behind it: "
            "--target NAME -mcpu=cortex-a72\n",
        ),
        (
            ("import", "m", "-mcpu", "cortex-a72"),
            "error: there is no option -mcpu\nhint: an option of a target stands right behind it: "
            "--quantize-for NAME -mcpu=VALUE\n",
        ),
        (("compile", "m", "-m=4"), "error: there is no option -m\nhint: mlc compile --help"),
        (("run", "m", "-mcpu=cortex-a72"), "error: there is no option -m\nhint: mlc run --help"),
        (("compile", "m", "--target", "arm", "-cores=2"), "error: target arm has no option -cores\nhint: it has -mcpu"),
        (("--json", "ops"), "error: --json stands after the command\nhint: for example"),
        (("completion", "tcsh"), "error: Invalid value for"),
    ],
)
def test_what_is_mistyped_is_named(mlc: Mlc, arguments: tuple[str, ...], message: str) -> None:
    result = mlc(*arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(message)


def test_version(mlc: Mlc) -> None:
    assert mlc("--version").out == f"mlc {__version__}\n"
    document = json.loads(mlc("--version", "--json").out)
    assert document["schema"] == 1
    assert document["mlc"] == __version__
    assert document["libraries"]["numpy"]


def test_log_file_gets_messages_and_errors(mlc: Mlc, tmp_path: Path) -> None:
    mlc("--log-file", "log.txt", "ops", "-q")
    mlc("--log-file", "log.txt", "ops", "--frontend", "onx")
    text = (tmp_path / "log.txt").read_text()
    assert "operators" in text
    assert "ERROR mlc: error: no front end 'onx'" in text


def test_an_unwritable_log_file_is_refused(mlc: Mlc) -> None:
    result = mlc("--log-file", "none/log.txt", "ops")
    assert result.code == 2
    assert result.err.startswith("error: none/log.txt: cannot be written: No such file")


def test_verbose_shows_the_log_once(mlc: Mlc) -> None:
    assert mlc("ops").err.count("operators") == 1
    assert mlc("-v", "ops").err.count("operators") == 1
    assert mlc("ops", "-vv").err.count("operators") == 1
    assert mlc("ops", "-q").err == ""


def mlc_process(*arguments: str, **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "mlc", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def test_a_reader_that_goes_away_is_no_error() -> None:
    process = mlc_process("ops")
    assert process.stdout
    assert process.stderr
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 128 + signal.SIGPIPE


@pytest.mark.parametrize("closed, code", [(">&-", 2), ("2>&-", 0), ("<&-", 0), (">&- 2>&-", 2)])
def test_a_stream_that_the_caller_closed(closed: str, code: int) -> None:
    run = subprocess.run(
        ["sh", "-c", f'"$0" -m mlc targets {closed}', sys.executable], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == code
    assert run.stderr == ("" if "2>" in closed or code == 0 else run.stderr)
    if closed == ">&-":
        assert run.stderr.startswith("error: cannot write: standard output is closed\n")


def test_a_command_without_data_needs_no_standard_output(tmp_path: Path, model: Path) -> None:
    command = f'"$0" -m mlc -q compile {model} -o {tmp_path / "m.tar"} >&- 2>&- <&-'
    assert subprocess.run(["sh", "-c", command, sys.executable], timeout=60).returncode == 0
    assert (tmp_path / "m.tar").read_bytes().startswith(b"module.json")


@pytest.mark.parametrize("arguments", [("inspect", "{}.onnx"), ("compile", "line.onnx", "-o", "{}.tar"), ("run", "{}")])
def test_a_name_too_long_for_the_system_is_one_message(mlc: Mlc, model: Path, arguments: tuple[str, ...]) -> None:
    result = mlc(*(a.format("o" * 300) for a in arguments))
    assert result.code == 2
    assert "File name too long" in result.err


def test_a_full_disk_is_one_message() -> None:
    with open("/dev/full", "w") as full:
        process = subprocess.run(
            [sys.executable, "-m", "mlc", "--version"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert process.stderr == "error: cannot write: No space left on device\nhint: free some space\n"
    assert process.returncode == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_who_is_asked_to_end_unwinds(mlc: Mlc, monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    before = signal.getsignal(number)
    monkeypatch.setattr("mlc.frontend.base.get_frontend", lambda name: os.kill(os.getpid(), number))
    result = mlc("ops")
    assert (result.code, result.err) == (128 + number, "error: terminated\n")
    assert signal.getsignal(number) == before


def test_who_was_told_to_ignore_a_closed_terminal_does(mlc: Mlc, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlc.frontend import base

    real = base.get_frontend

    def hang_up(name: str) -> object:
        os.kill(os.getpid(), signal.SIGHUP)
        return real(name)

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        monkeypatch.setattr("mlc.frontend.base.get_frontend", hang_up)
        assert mlc("ops").code == 0
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(mlc: Mlc, shell: str) -> None:
    result = mlc("completion", shell)
    assert result.code == 0
    assert f"{shell}_complete" in result.out


def test_the_shell_gets_completions() -> None:
    environment = {**os.environ, "_MLC_COMPLETE": "bash_complete", "COMP_WORDS": "mlc co", "COMP_CWORD": "1"}
    process = mlc_process(env=environment)
    assert process.stdout
    assert process.stdout.read().split() == ["plain,compile", "plain,completion"]
    process.communicate()


def completions(words: str, cwd: Path) -> list[str]:
    environment = {
        **os.environ,
        "_MLC_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    process = subprocess.run([sys.executable, "-m", "mlc"], env=environment, cwd=cwd, capture_output=True, text=True)
    return process.stdout.split()


@pytest.mark.parametrize(
    "words, offered",
    [
        ("mlc compile ", {"file,"}),
        ("mlc compile m", {"file,m"}),
        ("mlc compile m.onnx --target ", {f"plain,{t}" for t in ("arm", "cuda", "opencl", "vdla", "x86", "help")}),
        ("mlc compile m.onnx --disable-pass fuse,al", {"plain,fuse,algebra"}),
        ("mlc compile m.onnx --print-ir-after lay", {"plain,layout"}),
        ("mlc compile m.onnx --records r", {"file,r"}),
        ("mlc tune m.onnx --explorer g", {"plain,gbfs", "plain,genetic", "plain,grid", "plain,guided"}),
        ("mlc tune m.onnx --cost-model ra", {"plain,rank"}),
        ("mlc run m.tar --verify o", {"plain,onnxruntime"}),
        ("mlc run m.tar --verify expected.n", {"file,expected.n"}),
        ("mlc inspect module.tar --asm ", {"plain,scale", "plain,shift"}),
        ("mlc inspect nothing.tar --src ", set()),
    ],
)
def test_the_shell_gets_files_and_values(module: Path, words: str, offered: set[str]) -> None:
    assert set(completions(words, module.parent)) == offered

"""Two runs never measure on one device at once, and one that is killed leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mlc.errors import DeviceError
from mlc.tuning.measure.turns import Turns, lock_file

HOLD = """
import sys, time
from mlc.tuning.measure.turns import Turns
with Turns("toy").mine():
    print("mine", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def holder() -> subprocess.Popen[str]:
    other = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "mine\n"
    return other


@pytest.mark.parametrize("killed", [False, True])
def test_another_run_is_waited_for(killed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    other = holder()

    def warned(*_: object) -> None:  # only now, when this process is about to wait, the other one ends
        if killed:
            other.kill()
        else:
            assert other.stdin is not None
            other.stdin.write("\n")
            other.stdin.flush()

    monkeypatch.setattr("mlc.tuning.measure.turns._LOGGER.warning", warned)
    turns = Turns("toy")
    with turns.mine(), turns.mine():
        assert other.wait(20) == (-9 if killed else 0)
    with turns.mine():
        pass


def test_a_device_with_no_name_takes_no_turns(folder: Path) -> None:
    with Turns("").mine():
        assert not list(folder.iterdir())


def test_names_become_files() -> None:
    assert lock_file("cuda:0/x").name == "mlc-cuda-0-x.lock"


def test_a_file_that_cannot_be_opened_is_named(folder: Path) -> None:
    lock_file("toy").symlink_to(folder / "nowhere" / "else")
    with pytest.raises(DeviceError, match=r"mlc-toy\.lock: cannot be opened"), Turns("toy").mine():
        pass

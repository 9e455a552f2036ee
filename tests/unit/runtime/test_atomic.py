"""Files appear whole or not at all."""

from __future__ import annotations

import os
import resource
import stat
from pathlib import Path

import pytest

from mlc.errors import OutputError
from mlc.runtime.atomic import atomic_write


def write(path: Path, data: bytes) -> None:
    with atomic_write(path) as file:
        file.write(data)


def test_file_appears_with_its_bytes_and_the_users_mode(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write(tmp_path / "a", b"abc")
    finally:
        os.umask(before)
    assert (tmp_path / "a").read_bytes() == b"abc"
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_an_error_leaves_the_older_file(tmp_path: Path, failure: type[BaseException]) -> None:
    path = tmp_path / "a"
    write(path, b"old")

    def fail() -> None:
        with atomic_write(path) as file:
            file.write(b"new")
            raise failure

    with pytest.raises(failure):
        fail()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_a_full_disk_is_one_error_and_leaves_nothing(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OutputError, match="a: cannot be written: File too large"):
            write(tmp_path / "a", bytes(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == []


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="none/a: cannot be written: No such file or directory"):
        write(tmp_path / "none" / "a", b"")


def test_a_folder_without_permission_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        if os.access(tmp_path, os.W_OK):
            pytest.skip("this user may write everywhere")
        with pytest.raises(OutputError, match="Permission denied"):
            write(tmp_path / "a", b"")
    finally:
        tmp_path.chmod(0o700)


def test_folders_and_special_files_are_refused(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(OutputError, match="is not a regular file"):
        write(fifo, b"")
    with pytest.raises(OutputError, match="is a directory"):
        write(tmp_path, b"")
    assert stat.S_ISFIFO(fifo.stat().st_mode)


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    write(tmp_path / "link", b"x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"x"


def test_a_long_name_is_fine(tmp_path: Path) -> None:
    write(tmp_path / ("n" * 255), b"x")
    assert len(os.listdir(tmp_path)) == 1


def test_an_error_about_another_file_keeps_its_kind(tmp_path: Path) -> None:
    def fail() -> None:
        with atomic_write(tmp_path / "a"):
            (tmp_path / "missing").read_bytes()

    with pytest.raises(FileNotFoundError):
        fail()
    assert os.listdir(tmp_path) == []

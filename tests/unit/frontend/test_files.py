from __future__ import annotations

import os
import socket
import stat

import pytest

from mlc.errors import UsageError
from mlc.frontend.files import kind_of, open_regular, read_exactly, read_head


def test_a_regular_file_is_opened_with_its_size(tmp_path):
    file = tmp_path / "x"
    file.write_bytes(b"abcdef")
    descriptor, size = open_regular(file)
    try:
        assert size == 6
        assert read_exactly(descriptor, 2, 3) == b"cde"
        assert read_exactly(descriptor, 4, 9) == b"ef"
        assert read_exactly(descriptor, 9, 1) == b""
    finally:
        os.close(descriptor)
    assert read_head(file) == b"abcdef"


def test_links_given_by_the_caller_are_followed(tmp_path):
    (tmp_path / "x").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("x")
    assert read_head(tmp_path / "link") == b"abc"


def test_absent_files_are_refused(tmp_path):
    with pytest.raises(UsageError, match="nothing: cannot be opened: No such file"):
        open_regular(tmp_path / "nothing")
    with pytest.raises(UsageError, match="cannot be opened: embedded null"):
        open_regular("a\0b")


def test_folders_are_refused(tmp_path):
    with pytest.raises(UsageError, match="is a folder, not a file"):
        open_regular(tmp_path)


@pytest.mark.timeout(5)
def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="is a named pipe, not a file"):
        open_regular(tmp_path / "pipe")


def test_devices_and_sockets_are_refused(tmp_path):
    with pytest.raises(UsageError, match="is a device, not a file"):
        open_regular("/dev/null")
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(tmp_path / "socket"))
        with pytest.raises(UsageError, match="cannot be opened"):
            open_regular(tmp_path / "socket")


def test_kinds_of_files_have_names():
    assert kind_of(stat.S_IFLNK) == "a symbolic link"
    assert kind_of(stat.S_IFSOCK) == "a socket"
    assert kind_of(stat.S_IFREG) == "a regular file"
    assert kind_of(stat.S_IFBLK) == "a device"

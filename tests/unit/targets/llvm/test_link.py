"""The shared library, which a package does without."""

from __future__ import annotations

import errno
import logging
import platform
from pathlib import Path

import pytest

from mlc.targets.llvm.link import shared_library

TRIPLE = f"{platform.machine()}-unknown-linux-gnu"


def _compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    (tmp_path / "cc").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "cc").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


def test_a_full_temporary_folder_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog) -> None:
    _compiler(tmp_path, monkeypatch, "exit 0")

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("mlc.targets.llvm.link.tempfile.TemporaryDirectory", full)
    with caplog.at_level(logging.WARNING, "mlc"):
        assert shared_library(b"", TRIPLE) is None
    assert "no model.so: [Errno 28] No space left on device" in caplog.text


def test_a_linker_that_fails_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog) -> None:
    _compiler(tmp_path, monkeypatch, "echo 'cannot find -lm' >&2; exit 1")
    with caplog.at_level(logging.WARNING, "mlc"):
        assert shared_library(b"", TRIPLE) is None
    assert "cannot find -lm" in caplog.text


def test_nothing_is_linked_for_another_processor() -> None:
    assert shared_library(b"", "vax-unknown-linux-gnu") is None

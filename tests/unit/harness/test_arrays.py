"""Files of arrays, good and bad."""

from __future__ import annotations

import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from mlc.errors import OutputError, UsageError
from mlc.harness.arrays import read_npy, read_npz, write_npz


def test_written_arrays_come_back_under_any_name(tmp_path: Path) -> None:
    arrays = {"a/b:0": np.arange(6).reshape(2, 3), "file": np.float32(1.5), "": np.zeros((0, 2), bool)}
    write_npz(tmp_path / "x.npz", arrays)
    back = read_npz(tmp_path / "x.npz")
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name], array)
        assert back[name].dtype == np.asarray(array).dtype


def test_written_bytes_depend_on_the_arrays_alone(tmp_path: Path) -> None:
    for name in ("a.npz", "b.npz"):
        write_npz(tmp_path / name, {"x": np.arange(3)})
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_integers_of_less_than_a_byte_are_written_as_bytes(tmp_path: Path) -> None:
    write_npz(tmp_path / "x.npz", {"x": np.array([-8, 7], ml_dtypes.int4), "y": np.array([3], ml_dtypes.uint2)})
    found = read_npz(tmp_path / "x.npz")
    assert [(a.dtype, a.tolist()) for a in found.values()] == [(np.int8, [-8, 7]), (np.uint8, [3])]


def test_bfloat16_is_written_as_float32(tmp_path: Path) -> None:
    write_npz(tmp_path / "x.npz", {"x": np.array([1.5], ml_dtypes.bfloat16)})
    assert read_npz(tmp_path / "x.npz")["x"].dtype == np.float32


def test_an_unwritable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError):
        write_npz(tmp_path / "none" / "x.npz", {})


def test_objects_are_never_loaded(tmp_path: Path) -> None:
    objects = np.array([{"a": 1}], dtype=object)
    np.savez(tmp_path / "x.npz", x=objects)
    np.save(tmp_path / "x.npy", objects)
    for read, name in ((read_npz, "x.npz"), (read_npy, "x.npy")):
        with pytest.raises(UsageError, match=f"{name}: is not an .np[yz] file.*: it holds Python objects"):
            read(tmp_path / name)


@pytest.mark.parametrize("content", [b"", b"junk", b"PK\x03\x04junk", b"\x93NUMPY\x01\x00", b"\x80\x04junk"])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(UsageError, match=r"is not an \.npz file of arrays"):
        read_npz(tmp_path / "x")
    with pytest.raises(UsageError, match=r"is not an \.npy file"):
        read_npy(tmp_path / "x")


def test_the_other_kind_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(3))
    np.savez(tmp_path / "x.npz", x=np.zeros(3))
    with pytest.raises(UsageError, match=r"is one array, not an \.npz"):
        read_npz(tmp_path / "x.npy")
    with pytest.raises(UsageError, match=r"is an \.npz, not an \.npy"):
        read_npy(tmp_path / "x.npz")


def test_missing_and_special_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name, reason in (
        ("none", "there is no such file"),
        ("fifo", "is not a regular file"),
        ("", "is not a regular"),
    ):
        with pytest.raises(UsageError, match=reason):
            read_npz(tmp_path / name)


def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the floor below which no ratio is too high
    monkeypatch.setattr("mlc.harness.arrays._MIB", 1)
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros(1 << 20, np.uint8))
    with pytest.raises(UsageError, match="unpacks to 1048704 bytes, more than 200 times its size"):
        read_npz(tmp_path / "x.npz")

from __future__ import annotations

import io
import tarfile
import zipfile

import pytest

from mlc.frontend.sniff import describe


def archive(kind):
    out = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(out, "w") as z:
            z.writestr("config.json", "{}")
    else:
        with tarfile.open(fileobj=out, mode="w") as t:
            t.addfile(tarfile.TarInfo("module.json"))
    return out.getvalue()[:512]


@pytest.mark.parametrize(
    "head, words",
    [
        (b"", "empty"),
        (b"\x89HDF\r\n\x1a\n\0\0", "HDF5"),
        (b"\x1c\0\0\0TFL3", "TensorFlow Lite"),
        (archive("zip"), "zip"),
        (archive("tar"), "tar"),
        (b"\x80\x02c", "pickle"),
        (b"\x10\0\0\0\0\0\0\0" + b'{"a":', "safetensors"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b'<?xml version="1.0"?><net/>', "XML"),
        (b'{"graph": 1}', "JSON"),
        (b"hello, world\n", "plain text"),
        ("Grüße".encode()[:3], "plain text"),
    ],
)
def test_known_formats_are_named(head, words):
    assert words in describe(head)


@pytest.mark.parametrize("head", [b"\x08\x0a\x12\x04test", b"\xff\xfe\x00\x01", b"caf\xe9 au lait"])
def test_unknown_bytes_are_not_named(head):
    assert describe(head) == ""

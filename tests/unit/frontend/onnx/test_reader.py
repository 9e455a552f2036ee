from __future__ import annotations

import os
from hashlib import sha256

import onnx
import pytest

from mlc.errors import ImportModelError
from mlc.frontend.limits import Limits
from mlc.frontend.onnx.reader import looks_like_onnx, read_model
from tests.unit.frontend.onnx.models import relu_model

DATA = relu_model(2, 3).SerializeToString()


def test_a_file_is_parsed_with_its_hash_and_folder(tmp_path):
    (tmp_path / "m.onnx").write_bytes(DATA)
    file = read_model(tmp_path / "m.onnx", Limits())
    assert file.proto.graph.node[0].op_type == "Relu"
    assert file.sha256 == sha256(DATA).hexdigest()
    assert file.folder == tmp_path


def test_bytes_have_no_folder():
    assert read_model(DATA, Limits()).folder is None


def test_a_large_file_is_refused_before_it_is_read(tmp_path):
    with open(tmp_path / "m.onnx", "wb") as f:
        os.truncate(f.fileno(), 1 << 40)
    with pytest.raises(ImportModelError, match="the model file: 1099511627776 bytes, the limit 'file_bytes'"):
        read_model(tmp_path / "m.onnx", Limits())
    with pytest.raises(ImportModelError, match=f"the model: {len(DATA)} bytes, the limit 'file_bytes' is 9 bytes"):
        read_model(DATA, Limits(file_bytes=9))


@pytest.mark.parametrize(
    "data, words",
    [
        (b"", "looks like an empty file"),
        (b"\x89HDF\r\n\x1a\n", "looks like HDF5"),
        (b"\x1c\0\0\0TFL3", "looks like TensorFlow Lite"),
        (b"PK\x03\x04", "looks like a zip archive"),
        (b"hello\n" * 100, "looks like plain text"),
        (DATA[:-7], "damaged or truncated"),
        (b"\x08\xff" * 20, "damaged or truncated"),
        (b"\x08\x07", "it has no graph"),
    ],
)
def test_what_is_no_model_is_described(data, words):
    with pytest.raises(ImportModelError, match=f"^not an ONNX model.*{words}"):
        read_model(data, Limits())


def test_a_deeply_nested_message_is_refused():
    inner = b""
    for _ in range(300):
        # graph { node { attribute { g … } } } by hand: serialising it would recurse
        for field in (b"\x32", b"\x2a", b"\x0a"):
            inner = field + onnx_length(len(inner)) + inner
    data = b"\x08\x07" + b"\x3a" + onnx_length(len(inner)) + inner
    with pytest.raises(ImportModelError, match="damaged or truncated") as caught:
        read_model(data, Limits())
    assert "subgraphs may nest about 30 deep" in caught.value.hint


def onnx_length(n):
    """A length as protobuf writes it."""
    out = b""
    while n > 0x7F:
        out += bytes([n & 0x7F | 0x80])
        n >>= 7
    return out + bytes([n])


@pytest.mark.parametrize("head", [DATA[:512], onnx.ModelProto(producer_name="x").SerializeToString()])
def test_models_look_like_models(head):
    assert looks_like_onnx(head)


@pytest.mark.parametrize("head", [b"", b"\x08", b"\x08\x00", b"\x1c\0\0\0TFL3", b"GIF89a", b"\x0a\x05graph"])
def test_other_files_do_not(head):
    assert not looks_like_onnx(head)

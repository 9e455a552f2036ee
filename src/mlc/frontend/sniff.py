"""Guessing what a file is from its first bytes, for the message when it is not the model one hoped for."""

from __future__ import annotations

HEAD_BYTES = 512

# (offset, bytes, what it is)
_SIGNATURES = (
    (0, b"\x89HDF\r\n\x1a\n", "HDF5 (a Keras .h5 model?)"),
    (4, b"TFL3", "TensorFlow Lite"),
    (4, b"ORTM", "ONNX Runtime's own .ort format"),
    (0, b"PK\x03\x04", "a zip archive (a .keras or PyTorch file?)"),
    (257, b"ustar", "a tar archive"),
    (0, b"\x1f\x8b", "gzip-compressed data"),
    (0, b"BZh", "bzip2-compressed data"),
    (0, b"\xfd7zXZ\x00", "xz-compressed data"),
    (0, b"(\xb5/\xfd", "zstd-compressed data"),
    (0, b"\x7fELF", "an ELF program or library"),
    (0, b"\x93NUMPY", "a numpy array (.npy)"),
    (0, b"\x89PNG", "a PNG image"),
    (0, b"\xff\xd8\xff", "a JPEG image"),
    (0, b"%PDF", "a PDF document"),
    (0, b"ML\xefR", "MLIR bytecode"),
    (0, b"version https://git-lfs", "a Git LFS pointer: fetch the file itself with `git lfs pull`"),
)


def describe(head: bytes) -> str:
    """What a file with these first bytes looks like, in words; empty when it is nothing known.

    Args:
        head: the first :data:`HEAD_BYTES` bytes, or all of a shorter file.
    """
    if not head:
        return "an empty file"
    for offset, signature, what in _SIGNATURES:
        if head[offset : offset + len(signature)] == signature:
            return what
    # a pickle of protocol 2 to 5 begins with its number and a frame or an opcode
    if head[0] == 0x80 and len(head) > 1 and 2 <= head[1] <= 5:
        return "a Python pickle (an old PyTorch file?)"
    if head[8:10] == b'{"' and int.from_bytes(head[:8], "little") < 1 << 32:
        return "safetensors weights"
    return _describe_text(head)


def _describe_text(head: bytes) -> str:
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":
            return ""
        text = head[: error.start].decode("utf-8")
    if any(ord(c) < 32 and c not in "\t\n\r\f" for c in text):
        return ""
    start = text.lstrip()[:1]
    return {"<": "XML or HTML text", "{": "JSON text"}.get(start, "plain text")

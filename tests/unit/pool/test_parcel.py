"""Parcels, as they were sent and as somebody else may have made them."""

from __future__ import annotations

import hashlib
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc import __version__
from mlc.errors import DocumentError
from mlc.pool.parcel import Parcel, refusal, split
from tests.fuzz import examples

SOUND = Parcel("measure", {"a": [1, 2.5, None, "ü"]}, (b"one", b"", b"three"))


def with_text(text: bytes, parts: bytes = b"", magic: bytes = b"mlcp", length: int | None = None) -> bytes:
    digest = hashlib.sha256(text).digest()
    return struct.pack("<4sI32s", magic, len(text) if length is None else length, digest) + text + parts


def with_header(header: object, parts: bytes = b"") -> bytes:
    return with_text(json.dumps(header).encode(), parts)


@examples(50)
@given(st.text(max_size=9), st.dictionaries(st.text(max_size=5), st.integers()), st.lists(st.binary(max_size=50)))
def test_what_was_sent_is_what_arrives(kind: str, header: dict[str, int], parts: list[bytes]) -> None:
    sent = Parcel(kind, header, tuple(parts))
    assert Parcel.from_bytes(sent.to_bytes()) == sent
    assert sent.version == __version__


def test_a_flipped_byte_is_refused() -> None:
    for at in range(len(SOUND.to_bytes())):
        data = bytearray(SOUND.to_bytes())
        data[at] ^= 0x11
        with pytest.raises(DocumentError, match=r"no parcel|the checksum does not fit"):
            Parcel.from_bytes(bytes(data))


@pytest.mark.parametrize(
    "data, words",
    [
        ({"no": "bytes"}, "no parcel"),
        (b"", "no parcel"),
        (b"mlcp\0\0\0\0", "no parcel"),
        (with_text(b"{}", magic=b"mlcx"), "no parcel"),
        (with_text(b"{}", length=1 << 30), "no parcel"),
        (with_text(b"{["), "no JSON"),
        (with_text(b"[" * 100_000), "no JSON"),
        (with_header([]), "an object"),
        (with_header({"mlc": "1", "kind": "x", "parts": []}), "header: is missing"),
        (with_header({"mlc": "1", "kind": "x", "parts": [], "header": [], "more": 1}), "expected an object"),
        (with_header({"mlc": "1", "kind": "x", "parts": [], "header": {}, "more": 1}), "more: is not a field"),
        (with_header({"mlc": "1", "kind": "x", "parts": [{"bytes": 3, "sha256": ""}], "header": {}}), "as long as"),
        (
            with_header({"mlc": "1", "kind": "x", "parts": [{"bytes": 1, "sha256": "0"}], "header": {}}, b"a"),
            "parts.0.",
        ),
        (with_header({"mlc": "1", "kind": "x", "parts": [{"bytes": -1, "sha256": ""}], "header": {}}), "whole number"),
    ],
)
def test_what_is_no_parcel_is_refused(data: object, words: str) -> None:
    with pytest.raises(DocumentError, match=words):
        Parcel.from_bytes(data)


def test_what_is_too_large_is_not_sent() -> None:
    with pytest.raises(DocumentError, match="too large for a pool"):
        Parcel("x", {"a": "b" * (1 << 20)}).to_bytes()
    with pytest.raises(DocumentError, match="too large for a pool"):
        Parcel("x", {}, (b"",) * 5000).to_bytes()


def test_a_refusal_is_short() -> None:
    assert len(refusal("no" * 5000).to_bytes()) < 1000


def test_bytes_are_cut_into_pieces() -> None:
    assert split(b"abcdef", [2, 0, 4]) == [b"ab", b"", b"cdef"]

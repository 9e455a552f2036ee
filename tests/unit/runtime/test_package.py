"""``module.tar``: deterministic, aligned, and refused whenever anything about it is not right."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlc.errors import OutputError, PackageError, UsageError
from mlc.runtime import Manifest, MemberSpec, TensorSpec, open_package, plan_params, write_package
from mlc.runtime import package as package_module
from mlc.runtime.buffers import address

safetensors = pytest.importorskip("safetensors.numpy")

MEMBERS = [
    "module.json",
    "examples/main.c",
    "graph.txt",
    "include/mlc_model.h",
    "lib/model.o",
    "params.safetensors",
]


def test_what_is_written_comes_back(handmade: Any, handmade_tar: Path) -> None:
    with open_package(handmade_tar) as package:
        assert package.names() == tuple(MEMBERS)
        assert replace(package.manifest, members={}) == handmade.manifest
        for name, data in handmade.members.items():
            assert package.read(name) == data
        params = package.params()
        np.testing.assert_array_equal(params[:20].view(np.float32), handmade.params["w"])
        np.testing.assert_array_equal(params[64:84].view(np.float32), handmade.params["b"])
        assert address(params) % 64 == 0
        assert not params.flags.writeable
    # The mapping lives as long as an array into it.
    np.testing.assert_array_equal(params[64:84].view(np.float32), handmade.params["b"])
    with pytest.raises(UsageError, match="the package was closed"):
        package.read("graph.txt")


def test_other_programs_can_read_it(handmade: Any, handmade_tar: Path) -> None:
    with tarfile.open(handmade_tar, "r:") as tar:
        assert tar.getnames() == MEMBERS
        assert {(info.mtime, info.uid, info.uname, info.mode) for info in tar} == {(0, 0, "", 0o644)}
        data = tar.extractfile("params.safetensors").read()
    np.testing.assert_array_equal(safetensors.load(data)["b"], handmade.params["b"])


def test_a_repacked_package_is_still_good(handmade_tar: Path, tmp_path: Path) -> None:
    with tarfile.open(handmade_tar) as old, tarfile.open(tmp_path / "m.tar", "w", format=tarfile.GNU_FORMAT) as new:
        for info in old:
            data = old.extractfile(info)
            info.mtime, info.uid, info.uname = 1234567890, 1000, "someone"
            new.addfile(info, data)
    assert open_package(tmp_path / "m.tar").manifest == open_package(handmade_tar).manifest


def test_equal_contents_give_equal_bytes(handmade: Any, handmade_tar: Path, tmp_path: Path) -> None:
    backwards = replace(handmade, members=dict(reversed(handmade.members.items())))
    assert backwards.write(tmp_path / "m.tar").read_bytes() == handmade_tar.read_bytes()


def test_the_written_manifest_is_returned(handmade: Any, handmade_tar: Path, tmp_path: Path) -> None:
    written = write_package(tmp_path / "m.tar", handmade.manifest, handmade.params, handmade.members)
    assert written == open_package(handmade_tar).manifest
    assert written.members["graph.txt"].size == len(handmade.members["graph.txt"])


@pytest.mark.parametrize("sizes", [(), (0, 5), (3, 7 << 20, 1), (1 << 20,) * 5, ((2 << 20) - 100, 100, 2 << 20)])
@pytest.mark.parametrize("at", [0, 100, 2 << 20, (2 << 20) + 1])
def test_files_are_written_in_large_pages(sizes: tuple[int, ...], at: int) -> None:
    rng = np.random.default_rng(len(sizes))
    chunks = [rng.bytes(n) for n in sizes]
    found = [bytes(c) for c in package_module._in_pages(chunks, at)]
    assert b"".join(found) == b"".join(chunks)
    for end in accumulate((len(c) for c in found[:-1]), initial=at):
        assert end == at or end % (2 << 20) == 0
    assert all(len(c) <= 2 << 20 for c in found)


def test_a_package_without_parameters_is_fine(handmade: Any, tmp_path: Path) -> None:
    memory = replace(handmade.manifest.memory, params_bytes=0)
    path = replace(handmade.but(params=(), memory=memory), params={}).write(tmp_path / "m.tar")
    with open_package(path) as package:
        params = package.params()
        assert params.shape == (0,)
        assert address(params) % 64 == 0


def test_writing_makes_no_second_copy_of_the_parameters(handmade: Any, tmp_path: Path) -> None:
    big = np.ones((32 << 20) // 4, np.float32)
    plan = plan_params([TensorSpec("big", "f32", big.shape)])
    memory = replace(handmade.manifest.memory, params_bytes=plan.nbytes)
    parts = replace(handmade.but(params=plan.params, memory=memory), params={"big": big})
    tracemalloc.start()
    try:
        path = parts.write(tmp_path / "m.tar")
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
        tracemalloc.reset_peak()
        params = open_package(path).params()
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(params.view(np.float32), big)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"members": {"../evil": b""}}, r"member '\.\./evil': is not a name that a package may have"),
        ({"members": {"module.json": b""}}, r"member 'module\.json': is written by write_package itself"),
        ({"members": {"params.safetensors": b""}}, r"member 'params\.safetensors': is written by write_package"),
        ({"params": {}}, "parameter 'w' has no array"),
    ],
)
def test_unfit_contents_are_refused_and_nothing_is_left(
    handmade: Any, tmp_path: Path, change: dict, message: str
) -> None:
    with pytest.raises(PackageError, match=message):
        replace(handmade, **change).write(tmp_path / "m.tar")
    assert os.listdir(tmp_path) == []


def test_an_unplanned_manifest_is_refused(handmade: Any, tmp_path: Path) -> None:
    w, b = handmade.manifest.params
    for change in (
        {"params": (replace(w, offset=64), b)},
        {"memory": replace(handmade.manifest.memory, params_bytes=256)},
    ):
        with pytest.raises(PackageError, match="do not lie where plan_params places them"):
            handmade.but(**change).write(tmp_path / "m.tar")


def test_an_inconsistent_manifest_is_refused(handmade: Any, tmp_path: Path) -> None:
    memory = replace(handmade.manifest.memory, workspace_bytes=100)
    with pytest.raises(PackageError, match="lie outside a space of 100 bytes"):
        handmade.but(memory=memory).write(tmp_path / "m.tar")


def test_too_many_members_are_refused(handmade: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = handmade.write(tmp_path / "m.tar")
    monkeypatch.setattr(package_module, "_MAX_MEMBERS", 5)
    with pytest.raises(PackageError, match=r"m\.tar: has more than 5 members"):
        open_package(path)
    with pytest.raises(PackageError, match="5 members are more than the 5"):
        handmade.write(path)


def test_an_unwritable_place_is_an_output_error(handmade: Any, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"none/m\.tar: cannot be written: No such file"):
        handmade.write(tmp_path / "none" / "m.tar")


# What follows builds bad archives by hand.


def members_of(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {info.name: tar.extractfile(info).read() for info in tar}


def tar_of(members: list[tuple[tarfile.TarInfo | str, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for info, data in members:
            if isinstance(info, str):
                info = tarfile.TarInfo(info)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def special(name: str, kind: bytes, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def with_manifest(contents: dict[str, bytes], **fields: object) -> dict[str, bytes]:
    """The contents with some fields of the manifest changed and its checksum made right again."""
    manifest = Manifest.from_text(contents["module.json"])
    return {**contents, "module.json": replace(manifest, **fields).to_text()}


def unlisted(name: str) -> Callable[[dict[str, bytes]], list]:
    return lambda m: [*m.items(), (name, b"x")]


def without_alignment(m: dict[str, bytes]) -> list:
    data = m["params.safetensors"]
    longer = (int.from_bytes(data[:8], "little") + 8).to_bytes(8, "little") + b"        " + data[8:]
    sums = dict(Manifest.from_text(m["module.json"]).members)
    sums["params.safetensors"] = MemberSpec(hashlib.sha256(longer).hexdigest(), len(longer))
    return list(with_manifest({**m, "params.safetensors": longer}, members=sums).items())


def other_params_size(m: dict[str, bytes]) -> list:
    memory = replace(Manifest.from_text(m["module.json"]).memory, params_bytes=192)
    return list(with_manifest(m, memory=memory).items())


BAD: list[tuple[str, Callable[[dict[str, bytes]], list], str]] = [
    ("absolute", unlisted("/etc/passwd"), "member '/etc/passwd': is not a name that a package may have"),
    ("parent", unlisted("src/../../x"), r"member 'src/\.\./\.\./x': is not a name"),
    ("dots", unlisted("src/.."), r"member 'src/\.\.': is not a name"),
    ("hidden", unlisted("src/.profile"), r"member 'src/\.profile': is not a name"),
    ("newline", unlisted("src/a\n"), r"member 'src/a\\n': is not a name"),
    ("bytes", unlisted("src/\udcff"), "is not a name"),
    ("unlisted", unlisted("src/extra.ll"), r"member 'src/extra\.ll': is not in the manifest"),
    ("twice", lambda m: [*m.items(), ("graph.txt", b"x")], r"member 'graph\.txt': occurs twice"),
    ("link", lambda m: [*m.items(), (special("src/x", tarfile.SYMTYPE, "/"), b"")], "'src/x': is not a regular file"),
    ("hard", lambda m: [*m.items(), (special("src/x", tarfile.LNKTYPE, "x"), b"")], "'src/x': is not a regular file"),
    ("folder", lambda m: [(special("src", tarfile.DIRTYPE), b""), *m.items()], "'src': is not a regular file"),
    ("device", lambda m: [*m.items(), (special("src/x", tarfile.CHRTYPE), b"")], "'src/x': is not a regular file"),
    ("no manifest", lambda m: list(m.items())[1:], r"module\.json is not the first member"),
    ("nothing", lambda m: [], r"module\.json is not the first member"),
    ("missing", lambda m: [(n, d) for n, d in m.items() if n != "graph.txt"], r"member 'graph\.txt': is missing"),
    ("no params", lambda m: list(with_manifest({"module.json": m["module.json"]}, members={}).items()), "is missing"),
    ("longer", lambda m: [(n, d + b"\n" * (n == "graph.txt")) for n, d in m.items()], "has 15 bytes, not 14 as the"),
    ("altered", lambda m: [*{**m, "graph.txt": b"y = x * w - b\n"}.items()], "'graph.txt': does not match its SHA-256"),
    ("huge", lambda m: [("module.json", bytes((64 << 20) + 1))], "a size of 67108865 bytes is outside 0 .. 67108864"),
    ("unaligned", without_alignment, r"params\.safetensors: the data starts at byte \d+, not at a multiple of 64"),
    ("params size", other_params_size, r"params\.safetensors: holds 128 bytes, but the manifest says 192"),
    (
        "newer",
        lambda m: [("module.json", m["module.json"].replace(b'"format_version": 3', b'"format_version": 4'))],
        r"module\.json: format version 4 is newer than the 3",
    ),
]


@pytest.mark.parametrize("build, message", [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_a_bad_archive_is_refused_in_one_line(
    handmade_tar: Path, tmp_path: Path, build: Callable, message: str
) -> None:
    path = tmp_path / "bad.tar"
    path.write_bytes(tar_of(build(members_of(handmade_tar))))
    with pytest.raises(PackageError, match=message) as caught:
        open_package(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    assert caught.value.hint


def test_every_truncation_is_refused(handmade_tar: Path, tmp_path: Path) -> None:
    data, path = handmade_tar.read_bytes(), tmp_path / "cut.tar"
    for size in [0, 1, 511, 512, 513, 1024, *range(2048, len(data) - 1024, 509)]:
        path.write_bytes(data[:size])
        with pytest.raises(PackageError, match=r"cut off|only|not a tar header"):
            open_package(path)


def test_a_member_that_claims_more_than_there_is_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("params.safetensors")
    info.size = 1 << 40
    (tmp_path / "m.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(2048))
    with pytest.raises(PackageError, match=r"member 'params\.safetensors': is cut off: 1099511627776 bytes expected"):
        open_package(tmp_path / "m.tar")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.tar: cannot be read: No such file or directory"):
        open_package(tmp_path / "none.tar")
    with pytest.raises(PackageError, match="is not a regular file"):
        open_package(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(PackageError, match="fifo: is not a regular file"):
        open_package(tmp_path / "fifo")


def test_a_missing_member_is_named(handmade_tar: Path) -> None:
    with open_package(handmade_tar) as package, pytest.raises(PackageError, match=r"lib/x: is not in the package"):
        package.read("lib/x")


def test_every_flipped_byte_is_refused_or_harmless(handmade_tar: Path, tmp_path: Path) -> None:
    data, path = bytearray(handmade_tar.read_bytes()), tmp_path / "flipped.tar"
    original = open_package(handmade_tar)
    contents = [original.read(name) for name in original.names()]
    path.write_bytes(data)
    # Every byte of the first three members and of all headers; every 11th of the rest, which only the sums look at.
    with tarfile.open(handmade_tar) as tar:
        places = [(info.offset, info.offset_data, info.size) for info in tar]
    tested = set(range(0, len(data), 11)) | set(range(places[1][1]))
    for offset, begin, _ in places:
        tested |= set(range(offset, begin))
    messages: list[str] = []
    with open(path, "r+b") as file:
        for at in sorted(tested):
            flip = 1 << (at % 8)
            os.pwrite(file.fileno(), bytes([data[at] ^ flip]), at)
            try:
                package = open_package(path)
            except PackageError as error:
                messages.append(str(error))
            else:
                # Padding between members, or a space in the JSON.
                assert package.manifest == original.manifest
                assert [package.read(name) for name in package.names()][1:] == contents[1:]
            os.pwrite(file.fileno(), data[at : at + 1], at)
    assert len(messages) > len(tested) // 2
    assert not [message for message in messages if "\n" in message]

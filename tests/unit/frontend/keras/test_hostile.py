"""Files that mean harm, or are damaged: no code runs, no other file is opened, limits hold, nothing crashes."""

from __future__ import annotations

import base64
import ctypes
import io
import json
import marshal
import os
import random
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlc.errors import ImportModelError, MlcError, UnsupportedError
from mlc.frontend.base import guess_frontend
from mlc.frontend.keras.importer import import_keras
from mlc.frontend.limits import DEFAULT_LIMITS
from mlc.ir.graph import verify

h5py = pytest.importorskip("h5py", reason="h5py is not installed: pip install 'mlc[keras]'")

DTYPE = {"module": "keras", "class_name": "DTypePolicy", "config": {"name": "float32"}, "registered_name": None}


def dense(name: str = "dense", units: int = 2, **more: Any) -> dict[str, Any]:
    config = {"name": name, "trainable": True, "dtype": DTYPE, "units": units, "activation": "linear", "use_bias": True}
    return {"module": "keras.layers", "class_name": "Dense", "config": {**config, **more}, "registered_name": None}


def sequential(*layers: dict[str, Any]) -> dict[str, Any]:
    first = {"batch_shape": [None, 3], "dtype": "float32", "name": "x"}
    entry = {"module": "keras.layers", "class_name": "InputLayer", "config": first, "registered_name": None}
    return {
        "module": "keras", "class_name": "Sequential", "registered_name": None,
        "config": {"name": "net", "layers": [entry, *layers]},
    }  # fmt: skip


def hdf5(write: Callable[[Any], None]) -> bytes:
    made = io.BytesIO()
    with h5py.File(made, "w") as file:
        write(file)
    return made.getvalue()


def dense_weights(file: Any) -> None:
    file["layers/dense/vars/0"] = np.arange(6, dtype=np.float32).reshape(3, 2)
    file["layers/dense/vars/1"] = np.ones(2, np.float32)


def archive(config: Any, weights: bytes | None = None, **options: Any) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", **options) as file:
        file.writestr("metadata.json", json.dumps({"keras_version": "3.15.1"}))
        file.writestr("config.json", config if isinstance(config, (str, bytes)) else json.dumps(config))
        file.writestr("model.weights.h5", hdf5(dense_weights) if weights is None else weights)
    return made.getvalue()


def legacy(config: Any = None, write: Callable[[Any], None] | None = None) -> bytes:
    def fill(file: Any) -> None:
        file.attrs["model_config"] = json.dumps(config or sequential(dense()))
        file.attrs["keras_version"] = "2.15.0"
        group = file.create_group("model_weights")
        group.attrs["layer_names"] = [b"dense"]
        (write or _lists)(group)

    return hdf5(fill)


def _lists(group: Any) -> None:
    own = group.create_group("dense")
    own.attrs["weight_names"] = [b"dense/kernel:0", b"dense/bias:0"]
    own["dense/kernel:0"] = np.arange(6, dtype=np.float32).reshape(3, 2)
    own["dense/bias:0"] = np.ones(2, np.float32)


@contextmanager
def watched(*files: Path) -> Iterator[list[int]]:
    """Which of some files are opened meanwhile, by whatever code: the kernel tells."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "inotify_init1"):
        pytest.skip("there is no inotify here to tell who opens files")
    opened: list[int] = []
    fd = libc.inotify_init1(os.O_NONBLOCK)
    watches = [libc.inotify_add_watch(fd, os.fsencode(f), 0x20) for f in files]
    try:
        yield opened
        try:
            data = os.read(fd, 4096)
        except BlockingIOError:
            data = b""
        while data:
            opened.append(watches.index(int.from_bytes(data[:4], sys.byteorder, signed=True)))
            data = data[16 + int.from_bytes(data[12:16], sys.byteorder) :]
    finally:
        os.close(fd)


def test_both_forms_are_read() -> None:
    for data in (archive(sequential(dense())), legacy()):
        graph = import_keras(data).graph
        assert [v.name for v in graph.inputs] == ["x"]
        assert graph.outputs[0].type.shape == (1, 2)


# -- code ------------------------------------------------------------------------------------------------------------
def test_no_code_of_a_file_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lambdas, classes by path, functions by name, custom objects: all are names, and the canary stays alive."""
    canary = tmp_path / "canary"
    module = tmp_path / "evil.py"
    module.write_text(f"open({str(canary)!r}, 'w').close()\nclass Layer: ...\ndef act(x): return x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    code = compile(f"open({str(canary)!r}, 'w')", "x", "eval")
    packed = base64.b64encode(marshal.dumps(code)).decode()
    function = {"class_name": "__lambda__", "config": {"code": packed, "defaults": None, "closure": None}}
    layers = [
        {"module": "keras.layers", "class_name": "Lambda", "config": {"name": "code", "function": function}},
        {
            "class_name": "Lambda",
            "config": {"name": "old", "function": [packed, None, None]},
        },
        {"module": "evil", "class_name": "Layer", "config": {"name": "by_path"}, "registered_name": None},
        {"module": "os", "class_name": "system", "config": {"name": f"touch {canary}"}, "registered_name": None},
        {"module": None, "class_name": "Layer", "config": {"name": "own"}, "registered_name": "evil>Layer"},
        dense(
            "act", activation={"module": "evil", "class_name": "function", "config": "act", "registered_name": "act"}
        ),
        dense("lam", activation=function),
    ]
    loaded = set(sys.modules)
    imports: list[str] = []
    sys.addaudithook(lambda event, args: imports.append(str(args[0])) if event == "import" else None)
    with pytest.raises(UnsupportedError) as refused:
        import_keras(archive(sequential(*layers)))
    assert not canary.exists()
    assert "evil" not in set(sys.modules) - loaded
    assert "evil" not in imports
    assert not any(name.split(".")[0] == "keras" for name in set(sys.modules) - loaded)
    for name in ("'code'", "'old'", "evil.Layer", "os.system", "evil>Layer"):
        assert name in str(refused.value)


def test_functions_of_the_users_own_are_refused_by_name() -> None:
    own = {"module": "mine", "class_name": "function", "config": "act", "registered_name": "mine>act"}
    with pytest.raises(UnsupportedError, match="activation 'mine>act', a function of the user's own"):
        import_keras(archive(sequential(dense(activation=own))))
    with pytest.raises(UnsupportedError, match="activation 'nonsense'"):
        import_keras(archive(sequential(dense(activation="nonsense"))))


# -- other files -----------------------------------------------------------------------------------------------------
def _external_link(file: Any, other: Path) -> None:
    file["layers/dense/vars/0"] = h5py.ExternalLink(str(other), "/w")


def _soft_link(file: Any, other: Path) -> None:
    file["w"] = np.zeros((3, 2), np.float32)
    file["layers/dense/vars/0"] = h5py.SoftLink("/w")


def _external_data(file: Any, other: Path) -> None:
    group = file.create_group("layers/dense/vars")
    group.create_dataset("0", (3, 2), "f4", external=[(str(other), 0, 24)])


def _virtual(file: Any, other: Path) -> None:
    layout = h5py.VirtualLayout((3, 2), "f4")
    layout[:] = h5py.VirtualSource(str(other), "w", (3, 2))
    file.create_group("layers/dense/vars").create_virtual_dataset("0", layout)


def _linked_group(file: Any, other: Path) -> None:
    file.create_group("layers")["dense"] = h5py.ExternalLink(str(other), "/")


ELSEWHERE = {
    _external_link: "is an external link",
    _soft_link: "is a soft link",
    _external_data: "its data lie in another file",
    _virtual: "is a virtual dataset",
    _linked_group: "is an external link",
}


@pytest.mark.parametrize("write", ELSEWHERE, ids=lambda f: f.__name__.strip("_"))
def test_nothing_outside_of_the_file_is_opened(write: Callable[[Any, Path], None], tmp_path: Path) -> None:
    other = tmp_path / "other.h5"
    with h5py.File(other, "w") as file:
        file["w"] = np.full((3, 2), 7, np.float32)
    data = archive(sequential(dense()), hdf5(lambda file: write(file, other)))
    path = tmp_path / "model.keras"
    path.write_bytes(data)
    opened: list[str] = []
    sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
    with watched(other, path) as seen, pytest.raises(ImportModelError) as refused:
        import_keras(path)
    assert ELSEWHERE[write].replace("a external", "an external") in str(refused.value).replace(
        "a external", "an external"
    )
    assert seen == [] or set(seen) == {1}
    assert str(other) not in opened


# -- bombs -----------------------------------------------------------------------------------------------------------
SMALL = replace(DEFAULT_LIMITS, unpacked_bytes=1 << 16, config_bytes=1 << 14, tensor_bytes=1 << 24)


def _declared(shape: tuple[int, ...], **options: Any) -> Callable[[Any], None]:
    def write(file: Any) -> None:
        file.create_group("layers/dense/vars").create_dataset("0", shape, "f4", **options)
        file["layers/dense/vars/1"] = np.ones(2, np.float32)

    return write


BOMBS: dict[str, tuple[Callable[[], bytes], str]] = {
    "zip": (
        lambda: archive(sequential(dense()), b"\0" * (1 << 20), compression=zipfile.ZIP_DEFLATED),
        "unpacked_bytes",
    ),
    "text": (lambda: archive(json.dumps(sequential(dense())) + " " * (1 << 15)), "config_bytes"),
    "attribute": (lambda: legacy({**sequential(dense()), "more": "x" * 40000}), "config_bytes"),
    "chunks": (
        lambda: archive(
            sequential(dense(units=100_000)), hdf5(_declared((3, 100_000), chunks=True, compression="gzip"))
        ),
        "unpacked_bytes",
    ),
    "never written": (
        lambda: archive(sequential(dense(units=90_000)), hdf5(_declared((3, 90_000)))),
        "the file holds 0",
    ),
    "terabytes": (lambda: archive(sequential(dense(units=1 << 40)), hdf5(_declared((3, 1 << 40)))), "tensor_bytes"),
    "layers": (lambda: archive(sequential(*[dense(f"d{k}") for k in range(20)])), "nodes"),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs_are_refused_before_they_go_off(bomb: str) -> None:
    make, said = BOMBS[bomb]
    limits = replace(SMALL, nodes=10) if bomb == "layers" else SMALL
    with pytest.raises(ImportModelError) as refused:
        import_keras(make(), limits=limits)
    assert said in str(refused.value)


def nested(depth: int) -> dict[str, Any]:
    model = sequential(dense())
    for _ in range(depth):
        model = sequential(model)
    return model


DAMAGED: dict[str, tuple[Callable[[], bytes], str]] = {
    "no zip": (lambda: b"PK\x03\x04" + b"x" * 100, "archive is damaged"),
    "no members": (lambda: _zip({"other": b""}), "has no 'config.json'"),
    "no hdf5": (lambda: archive(sequential(dense()), b"nothing"), "damaged HDF5"),
    "no json": (lambda: archive("{"), "config.json is no JSON"),
    "no object": (lambda: archive("[1]"), "is JSON, but no object"),
    "deep json": (lambda: archive("[" * 100_000), "nests too deep"),
    "deep models": (lambda: archive(nested(70)), "depth"),
    "no model": (lambda: archive({"class_name": "Dense", "config": {}}), "the model is of the class"),
    "weights alone": (lambda: hdf5(dense_weights), "it holds weights alone"),
    "other hdf5": (lambda: hdf5(lambda f: None), "it is other HDF5"),
    "shape": (lambda: archive(sequential(dense(units=3))), r"weights 'kernel' have shape [3, 2], [3, 3] is needed"),
    "count": (lambda: archive(sequential(dense(use_bias=False))), "the file has 2 weights for it, it needs 1"),
    "missing": (lambda: archive(sequential(dense()), hdf5(lambda f: None)), "layers: is not in model.weights.h5"),
    "missing list": (lambda: legacy(sequential(dense("other"))), "no weights for layer 'other'"),
    "units": (lambda: archive(sequential(dense(units="many"))), "setting 'units' is 'many', integers are needed"),
    "negative": (lambda: archive(sequential(dense(units=-1))), "it must be positive"),
    "texts": (lambda: archive(sequential(dense()), hdf5(_texts)), "numbers are needed"),
    "two of a name": (lambda: archive(sequential(dense(), dense())), "two layers have one name"),
    "path": (lambda: archive(sequential(dense("..")), hdf5(dense_weights)), "layer name '..'"),
}


def _zip(members: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        for name, data in members.items():
            file.writestr(name, data)
    return made.getvalue()


def _texts(file: Any) -> None:
    file["layers/dense/vars/0"] = np.array([[b"a", b"b"]] * 3)
    file["layers/dense/vars/1"] = np.ones(2, np.float32)


@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_told(case: str) -> None:
    make, said = DAMAGED[case]
    with pytest.raises(MlcError) as refused:
        import_keras(make())
    assert said in str(refused.value)


def functional(nodes: dict[str, list[list[Any]]], output: list[Any]) -> dict[str, Any]:
    """A functional model of additions; ``nodes`` says what each takes."""
    first = {"batch_shape": [None, 3], "dtype": "float32", "name": "x"}
    layers: list[dict[str, Any]] = [{"class_name": "InputLayer", "name": "x", "config": first, "inbound_nodes": []}]
    for name, refs in nodes.items():
        tensors = [{"class_name": "__keras_tensor__", "config": {"keras_history": ref}} for ref in refs]
        config = {"name": name, "trainable": True, "dtype": "float32"}
        layers.append(
            {"class_name": "Add", "name": name, "config": config, "inbound_nodes": [{"args": [tensors], "kwargs": {}}]}
        )
    ends = {"layers": layers, "name": "net", "input_layers": [["x", 0, 0]], "output_layers": [output]}
    return {"module": "keras", "class_name": "Functional", "registered_name": None, "config": ends}


@pytest.mark.parametrize(
    "nodes, output, said",
    [
        ({"a": [["b", 0, 0]], "b": [["a", 0, 0]]}, ["a", 0, 0], "needs its own result"),
        ({"a": [["a", 0, 0]]}, ["a", 0, 0], "needs its own result"),
        ({"a": [["gone", 0, 0]]}, ["a", 0, 0], "no call 0 of a layer 'gone'"),
        ({"a": [["x", 0, 5]]}, ["a", 0, 0], "takes result 5 of layer 'x', which has 1"),
        ({"a": [["x", 0, 0]]}, ["a", 3, 0], "no call 3 of a layer 'a'"),
        ({"a": [["x", 0, -1]]}, ["a", 0, 0], "names no tensor"),
    ],
)
def test_graphs_that_are_none(nodes: dict[str, Any], output: list[Any], said: str) -> None:
    with pytest.raises(ImportModelError) as refused:
        import_keras(archive(functional(nodes, output), hdf5(lambda f: None)))
    assert said in str(refused.value)


def test_a_long_chain_is_no_recursion() -> None:
    names = [f"a{k}" for k in range(3000)]
    nodes = {name: [[before, 0, 0], ["x", 0, 0]] for name, before in zip(names, ["x", *names], strict=False)}
    imported = import_keras(archive(functional(nodes, [names[-1], 0, 0]), hdf5(lambda f: None)))
    assert len(imported.graph.nodes) == 3000


def test_the_format_is_found_by_content(tmp_path: Path) -> None:
    for data in (archive(sequential(dense())), legacy()):
        path = tmp_path / "model.bin"
        path.write_bytes(data)
        assert guess_frontend(path).name == "keras"
    path.write_bytes(_zip({"archive/data.pkl": b""}))
    with pytest.raises(ImportModelError, match="zip archive"):
        guess_frontend(path)


def flipped(data: bytes, rng: random.Random) -> bytes:
    broken = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
    return bytes(broken)


def attempt_flipped(form: Callable[..., bytes], flips: int) -> None:
    """Whatever is read, is read, or refused with an error of ours."""
    data, rng = form(sequential(dense())), random.Random(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(flips):
            try:
                graph = import_keras(flipped(data, rng)).graph
            except MlcError:
                continue
            verify(graph)


@pytest.mark.parametrize("form, flips", [(archive, 400), (legacy, 60)], ids=["keras", "h5"])
def test_flipped_bytes_neither_crash_nor_hang(
    form: Callable[..., bytes], flips: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlc.frontend.keras.probe.SECONDS", 1)
    attempt_flipped(form, flips)


def test_checksums_find_every_flip_in_a_member() -> None:
    """A bit of the weights or of the text that differs is told, never computed with."""
    data, rng = archive(sequential(dense())), random.Random(1)
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        members = [(m.header_offset + 30 + len(m.filename), m.file_size) for m in file.infolist()]
    for begin, size in members:
        for _ in range(60):
            broken = bytearray(data)
            broken[begin + rng.randrange(size)] ^= 1 << rng.randrange(8)
            with pytest.raises(ImportModelError):
                import_keras(bytes(broken))


def test_a_file_that_libhdf5_never_finishes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlc.frontend.keras.probe.SECONDS", 1)
    data = bytearray(legacy())
    data[929] ^= 1 << 2  # a length in the heap of texts
    with pytest.raises(ImportModelError, match="cannot be read within 1 s"):
        import_keras(bytes(data))

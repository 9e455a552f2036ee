"""Saved models come back as they were, and damaged ones are refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from mlc.errors import ImportModelError, UnsupportedError, UsageError
from mlc.frontend.base import FixedInput, ImportedModel, ModelSource, TensorInfo
from mlc.frontend.limits import DEFAULT_LIMITS
from mlc.frontend.saved import SavedFrontend, encode_model
from mlc.ir.graph import Builder, Node
from mlc.ir.interp.graph import run_graph
from mlc.ir.printer import graph_text
from mlc.ir.types import TensorType, f32
from mlc.ops import get

HASH = "0" * 64


def small_model() -> ImportedModel:
    builder = Builder("net")
    x = builder.input("x:0", TensorType((1, 2, 4, 4), f32))
    mask = builder.constant(np.array([True, False]), "mask")
    w = builder.constant(np.arange(54, dtype=np.float32).reshape(3, 2, 3, 3), "w/0")
    (y,) = builder.add(get("conv"), [x, w], {"pads": (1, 1, 1, 1), "strides": (1, 1), "dilations": (1, 1)}, names=["y"])
    (z,) = builder.add(get("clip"), [y], {"lo": -math.inf, "hi": 6.0}, sources=["relu 6\n"])
    graph = builder.finish([z, x, mask], ["out", "same", "m"])
    ins = (TensorInfo("x:0", (1, 2, 4, 4), "f32"),)
    outs = tuple(
        TensorInfo(name, v.type.shape, v.type.dtype.name)
        for name, v in zip(graph.output_names, graph.outputs, strict=True)
    )
    fixed = (FixedInput("flag", (2,), "i16", b"\1\0\2\0"), FixedInput("large", (1 << 20,), "f32"))
    source = ModelSource("onnx", "dir/net.onnx", "net", "me 1", HASH, ins, outs, {"": 17}, {"k": "v"}, fixed)
    return ImportedModel(graph, source)


def save(model: ImportedModel, path: Path) -> Path:
    path.write_bytes(b"".join(encode_model(model, "0.0")))
    return path


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save(small_model(), tmp_path / "net.mlc")


def rewritten(path: Path, change: Any, *, data: bytes | None = None) -> Path:
    """The file with its header's JSON changed by ``change(metadata, entries, document)`` and hashes made to fit."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    metadata = header.pop("__metadata__")
    document = json.loads(metadata["graph"])
    change(metadata, header, document)
    data = raw[8 + size :] if data is None else data
    metadata["graph"] = json.dumps(document)
    metadata["graph_sha256"] = sha256(metadata["graph"].encode()).hexdigest()
    metadata["weights_sha256"] = sha256(data).hexdigest()
    text = json.dumps({"__metadata__": metadata, **header}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def test_a_model_comes_back_as_it_was(saved: Path) -> None:
    model, back = small_model(), SavedFrontend().load(saved)
    assert graph_text(back.graph) == graph_text(model.graph)
    assert back.graph.output_names == model.graph.output_names
    assert back.source == model.source
    for a, b in zip(model.graph.constants.values(), back.graph.constants.values(), strict=True):
        np.testing.assert_array_equal(a, b)
        assert b.flags.aligned
    x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(1, 2, 4, 4)
    np.testing.assert_array_equal(run_graph(model.graph, {"x:0": x})["out"], run_graph(back.graph, {"x:0": x})["out"])


def recurrent_model() -> ImportedModel:
    """``state = state * factor + row`` over five rounds."""
    row = TensorType((3,), f32)
    round_ = Builder("round")
    state, x, factor = (round_.input(name, row) for name in ("state", "x", "factor"))
    (scaled,) = round_.add(get("mul"), [state, factor])
    (new,) = round_.add(get("add"), [scaled, x])
    builder = Builder("net")
    operands = [builder.input("start", row), builder.input("xs", TensorType((5, 3), f32))]
    operands.append(builder.constant(np.float32([1, 2, 3]), "factor"))
    body = round_.finish([new, new], ["after", "kept"])
    attrs = {"body": body, "rounds": 5, "carried": 1, "scanned": 1, "backwards": (False, True)}
    graph = builder.finish(builder.add(get("scan"), operands, attrs), ["last", "all"])
    return ImportedModel(graph, replace(small_model().source, inputs=(), outputs=()))


def test_a_recurrence_comes_back_with_its_body(tmp_path: Path) -> None:
    model = recurrent_model()
    back = SavedFrontend().load(save(model, tmp_path / "net.mlc"))
    assert graph_text(back.graph) == graph_text(model.graph)
    feeds = {"start": np.ones(3, np.float32), "xs": np.arange(15, dtype=np.float32).reshape(5, 3)}
    for name, want in run_graph(model.graph, feeds).items():
        np.testing.assert_array_equal(run_graph(back.graph, feeds)[name], want)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda attrs: attrs.update(rounds="many"), "nodes.0. .scan.: "),
        (lambda attrs: attrs.update(rounds=6), r"scan: operands are .*, the body takes"),
        (lambda attrs: attrs.update(body=3), "nodes.0. .scan.: "),
        (lambda attrs: attrs.update(body={"graph": {}}), r"nodes\[0\]\.attrs\.body\.nodes: is missing"),
        (lambda attrs: attrs["body"]["graph"].update(outputs=[0]), "a direction is needed"),
        (lambda attrs: attrs["body"]["graph"]["nodes"][0].update(inputs=[0, 99]), "the number of one of the 3 values"),
    ],
)
def test_damaged_bodies_are_refused(tmp_path: Path, change: Any, message: str) -> None:
    path = save(recurrent_model(), tmp_path / "net.mlc")
    rewritten(path, lambda _m, _e, document: change(document["nodes"][0]["attrs"]))
    with pytest.raises(ImportModelError, match=message):
        SavedFrontend().load(path)


def test_bodies_nest_within_the_limit_of_depth(tmp_path: Path) -> None:
    path = save(recurrent_model(), tmp_path / "net.mlc")

    def nest(_m: Any, _e: Any, document: Any) -> None:
        whole = document["nodes"][0]
        for _ in range(DEFAULT_LIMITS.depth + 2):
            inner = json.loads(json.dumps(whole))
            inner["attrs"]["body"]["graph"]["nodes"] = [whole]
            whole = inner
        document["nodes"] = [whole]

    rewritten(path, nest)
    with pytest.raises(ImportModelError, match="nesting of recurrences"):
        SavedFrontend().load(path)


def test_the_same_model_gives_the_same_bytes(tmp_path: Path, saved: Path) -> None:
    assert save(SavedFrontend().load(saved), tmp_path / "again.mlc").read_bytes() == saved.read_bytes()


def test_it_is_a_safetensors_file(saved: Path) -> None:
    weights = safetensors.numpy.load_file(saved)
    np.testing.assert_array_equal(weights["1"], np.arange(54, dtype=np.float32).reshape(3, 2, 3, 3))


def test_content_is_recognised_whatever_the_name(saved: Path) -> None:
    head = saved.read_bytes()[:512]
    assert SavedFrontend().matches(head, Path("model.onnx"))
    assert not SavedFrontend().matches(b"\x08\x07" + head, Path("model.mlc"))


def test_every_flipped_byte_is_refused_or_harmless(saved: Path) -> None:
    good = saved.read_bytes()
    text = graph_text(SavedFrontend().load(saved).graph)
    for at in range(0, len(good), 7):
        bad = bytearray(good)
        bad[at] ^= 1 << (at % 8)
        saved.write_bytes(bad)
        try:
            back = SavedFrontend().load(saved)
        except ImportModelError:
            continue
        assert graph_text(back.graph) == text


def test_every_truncation_is_refused(saved: Path) -> None:
    good = saved.read_bytes()
    for size in range(0, len(good), 61):
        saved.write_bytes(good[:size])
        with pytest.raises(ImportModelError, match=r"net\.mlc: "):
            SavedFrontend().load(saved)


def _set(where: str, value: Any) -> Any:
    """A change that sets one field of the document, e.g. ``nodes.0.op``."""

    def change(metadata: dict, entries: dict, document: dict) -> None:
        *path, last = where.split(".")
        at: Any = {"metadata": metadata, "entries": entries}.get(path[0], document) if path else document
        for key in path[1:] if path and path[0] in ("metadata", "entries") else path:
            at = at[int(key)] if isinstance(at, list) else at[key]
        at[int(last) if isinstance(at, list) else last] = value

    return change


@pytest.mark.parametrize(
    "where, value, message",
    [
        ("metadata.version", "2", "version 2 cannot be read by this mlc"),
        ("metadata.version", "x", "its version is no number"),
        ("metadata.other", 1, "its metadata is missing or no strings"),
        ("entries.0", {}, "a weight has a wrong entry"),
        ("entries.0.shape", [-1], "a weight has a wrong entry"),
        ("entries.0.shape", [3], "weight 0 does not lie in the file"),
        ("entries.1.data_offsets", [8, 224], "weight 1 does not lie in the file"),
        ("weights", [], "its weights have no names"),
        ("nodes", 1, "nodes: expected a list"),
        ("nodes.0", 1, r"nodes\[0\]: expected an object"),
        ("nodes.0.sources", 1, r"nodes\[0\]\.sources: expected a list"),
        ("nodes.0.sources", [1], r"nodes\[0\]\.sources\[0\]: expected a string"),
        ("nodes.0.op", "convv", "no operator 'convv'"),
        ("nodes.0.inputs", [0, 9], r"nodes\[0\]\.inputs\[1\]: expected the number of one of the 3 values before it"),
        ("nodes.0.inputs", [0, 3], r"nodes\[0\]\.inputs\[1\]: expected the number of one of the 3 values before it"),
        ("nodes.0.inputs", [0], r"nodes\[0\] \(conv\)"),
        ("nodes.0.attrs.strides", [0, 0], r"nodes\[0\] \(conv\): "),
        ("nodes.0.attrs.strides", {"x": 1}, r"nodes\[0\]\.attrs\.strides: expected a number, text"),
        ("nodes.0.attrs.groups", "1", r"nodes\[0\]: conv\.groups is '1', not a value like 1"),
        ("nodes.0.attrs.groups", 1 << 70, "expected a number"),
        ("nodes.0.attrs.colour", 1, "conv has no attribute colour"),
        ("nodes.0.outputs.0.shape", [1, 3, 4, 5], r"nodes\[0\]\.outputs: expected results of type f32\[1,3,4,4\]"),
        ("inputs.0.dtype", "f33", r"inputs\[0\]\.dtype: expected an element type"),
        ("inputs.0.shape", [1.5], r"inputs\[0\]\.shape\[0\]: expected an integer"),
        ("inputs.0.shape", [1 << 40, 0], "the limit 'tensor_bytes'"),
        ("inputs.0.shape", [1] * 40, "the limit 'rank'"),
        ("inputs.0", [], r"inputs\[0\]: expected an object"),
        ("inputs.0.name", "\ud800", r"inputs\[0\]\.name: expected a string of Unicode"),
        ("inputs.0.name", "w/0", "two values are called 'w/0'"),
        ("constants.0.dtype", "u8", r"constants\[0\]: expected a weight u8\[2\] called 'mask'"),
        ("outputs.0", 99, r"outputs\[0\]: expected the number"),
        ("output_names", ["a"], "3 outputs but 1 names"),
        ("name", None, "name: expected a string"),
        ("source", {}, r"source\.format: is missing"),
        ("source.opsets", {"": "x"}, r"source\.opsets\.: expected a whole number"),
        ("source.metadata", {"": 1}, r"source\.metadata\.: expected a string"),
        ("source.constants", 1, r"source\.constants: expected a list"),
        ("source.constants.0", "flag", r"source\.constants\[0\]: expected an object"),
        ("source.constants.0.dtype", "f33", r"source\.constants\[0\]\.dtype: expected an element type"),
        ("source.constants.0.shape", [-1], r"source\.constants\[0\]\.shape\[0\]: expected an integer"),
        ("source.constants.0.data", "0g", r"source\.constants\[0\]\.data: expected bytes in hexadecimal"),
        ("source.constants.0.data", "00", r"source\.constants\[0\]\.data: expected the 4 bytes of i16"),
        ("source.path", 1, r"source\.path: expected a string"),
    ],
)
def test_wrong_fields_are_named(saved: Path, where: str, value: Any, message: str) -> None:
    with pytest.raises(ImportModelError, match=message):
        SavedFrontend().load(rewritten(saved, _set(where, value)))


def test_broken_json_is_refused(saved: Path) -> None:
    saved.write_bytes((4).to_bytes(8, "little") + b"{{{{")
    with pytest.raises(ImportModelError, match="its header is not JSON"):
        SavedFrontend().load(saved)
    saved.write_bytes((2).to_bytes(8, "little") + b"[]")
    with pytest.raises(ImportModelError, match="its header is not a JSON object"):
        SavedFrontend().load(saved)
    saved.write_bytes((2).to_bytes(8, "little") + b"{}")
    with pytest.raises(ImportModelError, match="its metadata is missing"):
        SavedFrontend().load(saved)


def test_changed_bytes_are_noticed_by_their_hashes(saved: Path) -> None:
    good = saved.read_bytes()
    saved.write_bytes(good[:-1] + b"\x07")
    with pytest.raises(ImportModelError, match="its weights do not match their SHA-256"):
        SavedFrontend().load(saved)
    saved.write_bytes(good.replace(b"clip", b"clop"))
    with pytest.raises(ImportModelError, match="its graph does not match its SHA-256"):
        SavedFrontend().load(saved)


def test_booleans_are_zero_or_one(saved: Path) -> None:
    data = bytearray(saved.read_bytes()[-218:])
    data[-2:] = b"\x02\x00"
    with pytest.raises(ImportModelError, match="neither 0 nor 1"):
        SavedFrontend().load(rewritten(saved, lambda *_: None, data=bytes(data)))


def test_limits_hold(saved: Path) -> None:
    with pytest.raises(ImportModelError, match="core operators: 2, the limit 'operators' is 1"):
        SavedFrontend().load(saved, limits=replace(DEFAULT_LIMITS, operators=1))
    with pytest.raises(ImportModelError, match="weight 1: 216 bytes, the limit 'tensor_bytes' is 100"):
        SavedFrontend().load(saved, limits=replace(DEFAULT_LIMITS, tensor_bytes=100))


def test_shapes_are_fixed(saved: Path) -> None:
    load = SavedFrontend().load
    assert load(saved, shapes={"x:0": (1, 2, 4, 4)}).graph.inputs
    with pytest.raises(UsageError, match="--shape x:0: the saved model was imported with 1,2,4,4"):
        load(saved, shapes={"x:0": (2, 2, 4, 4)})
    with pytest.raises(UsageError, match="--shape y: there is no such input"):
        load(saved, shapes={"y": (1,)})
    with pytest.raises(UsageError, match="'batch': a saved model takes no --dim or --const"):
        load(saved, dims={"batch": 1})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no\.mlc: cannot be opened"):
        SavedFrontend().load(tmp_path / "no.mlc")


def test_what_cannot_be_saved_is_refused() -> None:
    model = small_model()
    node = model.graph.nodes[1]
    other = replace(node.op, express=None)
    odd = Node(other, node.inputs, node.attrs, node.outputs)
    graph = replace(model.graph, nodes=(model.graph.nodes[0], odd))
    with pytest.raises(UnsupportedError, match="operator clip is a routine of one's own, which a document cannot hold"):
        encode_model(ImportedModel(graph, model.source), "0.0")
    odd = Node(node.op, node.inputs, {"lo": np.zeros(2), "hi": None}, node.outputs)
    graph = replace(model.graph, nodes=(model.graph.nodes[0], odd))
    with pytest.raises(UnsupportedError, match=r"attribute clip\.lo is a ndarray"):
        encode_model(ImportedModel(graph, model.source), "0.0")


def test_core_operators_are_listed() -> None:
    assert "conv" in {info.name for info in SavedFrontend().supported_operators()}

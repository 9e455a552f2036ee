"""The cases of the ONNX backend test suite, built once and kept in ``build/``.

Building the node cases takes half a minute (their expected results are computed with numpy), so they are written to one
zip archive a version of onnx: for each case a model, its inputs and its expected outputs, in ONNX's own messages.
"""

from __future__ import annotations

import json
import os
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

BUILD = Path(__file__).resolve().parents[2] / "build" / "conformance"
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
Data = tuple[bytes, list[bytes], list[bytes]]  # model, inputs, expected outputs, all serialised
_DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"


@dataclass(frozen=True)
class Case:
    """One test.

    Args:
        name: as onnx calls it, ``test_…``.
        kind: folder of onnx's suite.
        model: serialised.
        inputs: by name; lists where the model takes sequences.
        outputs: expected, in the model's order.
        rtol: relative tolerance.
        atol: absolute tolerance.
    """

    name: str
    kind: str
    model: bytes
    inputs: dict[str, Any]
    outputs: tuple[Any, ...]
    rtol: float
    atol: float


def archive() -> Path:
    """The archive of all cases for the installed onnx, built when it is not there."""
    path = BUILD / f"onnx-{onnx.__version__}.zip"
    if not path.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(f".{os.getpid()}.tmp")
        _build(aside)
        aside.replace(path)
    return path


class CaseFile:
    """Reads cases from the archive."""

    def __init__(self, path: Path) -> None:
        self._zip = zipfile.ZipFile(path)
        self.index: dict[str, dict[str, Any]] = json.loads(self._zip.read("index.json"))

    def names(self) -> list[str]:
        """Names of all cases, those of one kind together."""
        return list(self.index)

    def read(self, name: str) -> Case:
        """One case with its data."""
        entry = self.index[name]
        model = self._zip.read(f"{name}/model.onnx")
        inputs = [self._zip.read(f"{name}/input_{k}.pb") for k in range(entry["inputs"])]
        outputs = [self._zip.read(f"{name}/output_{k}.pb") for k in range(entry["outputs"])]
        return _case(name, entry["kind"], (model, inputs, outputs), entry["rtol"], entry["atol"])


def stored_cases(kind: str) -> Iterator[Case]:
    """The cases that onnx keeps as files; reading them needs no archive."""
    for test in sorted(_load(kind), key=lambda t: t.name):
        yield _case(test.name, kind, _stored_data(test), test.rtol, test.atol)


def _case(name: str, kind: str, data: Data, rtol: float, atol: float) -> Case:
    model, inputs, outputs = data
    graph = onnx.load_from_string(model).graph
    stored = {t.name for t in graph.initializer}
    takes = [v for v in graph.input if v.name not in stored]
    return Case(
        name,
        kind,
        model,
        {v.name: _value(value, v) for v, value in zip(takes, inputs, strict=False)},
        tuple(_value(value, v) for v, value in zip(graph.output, outputs, strict=False)),
        rtol,
        atol,
    )


def _value(data: bytes, info: onnx.ValueInfoProto) -> Any:
    kind = info.type.WhichOneof("value")
    if kind == "sequence_type":
        return numpy_helper.to_list(_parsed(onnx.SequenceProto(), data))
    if kind == "optional_type":
        return numpy_helper.to_optional(_parsed(onnx.OptionalProto(), data))
    return numpy_helper.to_array(_parsed(onnx.TensorProto(), data))


def _parsed(message: Any, data: bytes) -> Any:
    message.ParseFromString(data)
    return message


def _build(path: Path) -> None:
    index: dict[str, dict[str, Any]] = {}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for kind in KINDS:
            for test in sorted(_load(kind), key=lambda t: t.name):
                model, inputs, outputs = _node_data(test) if kind == "node" else _stored_data(test)
                for k, data in enumerate(inputs):
                    out.writestr(f"{test.name}/input_{k}.pb", data)
                for k, data in enumerate(outputs):
                    out.writestr(f"{test.name}/output_{k}.pb", data)
                out.writestr(f"{test.name}/model.onnx", model)
                index[test.name] = {
                    "kind": kind, "inputs": len(inputs), "outputs": len(outputs), "rtol": test.rtol, "atol": test.atol,
                }  # fmt: skip
        out.writestr("index.json", json.dumps(index))


def _load(kind: str) -> list[TestCase]:
    # the node cases draw from numpy's global generator while they are imported
    np.random.seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(load_model_tests(kind=kind))


def _node_data(test: TestCase) -> Data:
    assert test.model is not None
    assert test.data_sets is not None
    ((inputs, outputs),) = test.data_sets
    graph = test.model.graph
    return (
        test.model.SerializeToString(),
        [_packed(value, info) for value, info in zip(inputs, graph.input, strict=False)],
        [_packed(value, info) for value, info in zip(outputs, graph.output, strict=False)],
    )


def _packed(value: Any, info: onnx.ValueInfoProto) -> bytes:
    kind = info.type.WhichOneof("value")
    if kind == "sequence_type":
        return bytes(numpy_helper.from_list(value).SerializeToString())
    if kind == "optional_type":
        return bytes(numpy_helper.from_optional(value).SerializeToString())
    if isinstance(value, onnx.TensorProto):
        return bytes(value.SerializeToString())
    return bytes(numpy_helper.from_array(np.asarray(value)).SerializeToString())


def _stored_data(test: TestCase) -> Data:
    """A case that onnx keeps as files; the light models have no stored inputs, only a rule for them."""
    if test.model_dir is not None:
        folder = Path(test.model_dir)
        data = folder / "test_data_set_0"
        return (
            (folder / "model.onnx").read_bytes(),
            [p.read_bytes() for p in _numbered(data, "input")],
            [p.read_bytes() for p in _numbered(data, "output")],
        )
    file = _DATA / "light" / Path(test.url or "").name
    model = onnx.load(file)
    stored = {t.name for t in model.graph.initializer}
    inputs = [numpy_helper.from_array(Runner.generate_dummy_data(v)) for v in model.graph.input if v.name not in stored]
    outputs = [file.with_name(f"{file.stem}_output_{k}.pb") for k in range(len(model.graph.output))]
    return file.read_bytes(), [i.SerializeToString() for i in inputs], [p.read_bytes() for p in outputs]


def _numbered(folder: Path, what: str) -> Iterator[Path]:
    """``input_0.pb``, ``input_1.pb`` … as far as they go."""
    k = 0
    while (path := folder / f"{what}_{k}.pb").exists():
        yield path
        k += 1

"""``mlc train`` from files to files."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mlc
from mlc.api import batched
from mlc.cli.main import run
from mlc.errors import OutputError, UnsupportedError, UsageError
from mlc.training.data import Stream
from mlc.training.loop import Plan

COUNT, CLASSES = 256, 5


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.standard_normal((8, 1, 3, 3)) * 0.4,
        "b1": np.zeros(8),
        "w2": rng.standard_normal((CLASSES, 32)) * 0.2,
        "b2": np.zeros(CLASSES),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c"], name="conv", pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w2", "b2"], ["y"], name="dense", transB=1),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "shapes",
        [info("x", TensorProto.FLOAT, ["batch", 1, 8, 8])], [info("y", TensorProto.FLOAT, ["batch", CLASSES])],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), "m.onnx")
    shapes = rng.standard_normal((CLASSES, 1, 8, 8))
    labels = rng.integers(0, CLASSES, COUNT)
    x = (shapes[labels] + rng.standard_normal((COUNT, 1, 8, 8))).astype(np.float32)
    np.savez("d.npz", x=x, label=labels)


def train(*options: str, data: tuple[str, ...] = ("d.npz",)) -> int:
    given = [part for name in data for part in ("--data", name)]
    return run(["train", "m.onnx", *given, "--batch", "32", "--lr", "0.01", "--threads", "1", *options])


@cache
def _files(name: str, epochs: int) -> dict[str, bytes]:
    assert train("--epochs", str(epochs), "-o", name) == 0
    return {file.name: file.read_bytes() for file in Path().glob(f"{name}*")}


def trained(name: str, epochs: int) -> None:
    """What so many epochs leave, checkpoints included; every test begins with the same data, so they run once."""
    for file, data in _files(name, epochs).items():
        Path(file).write_bytes(data)


def same_parameters(one: str, other: str) -> None:
    """Bit for bit."""
    whole, part = (mlc.load(name).graph.constants for name in (one, other))
    for (v, a), b in zip(whole.items(), part.values(), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=v.name)


def test_a_trained_model_is_a_model_again(capsys: pytest.CaptureFixture[str]) -> None:
    ort = pytest.importorskip("onnxruntime")
    assert train("--epochs", "6", "--validation", "0.25", "-o", "t.onnx", "--json", "t.json") == 0
    epochs = json.loads(Path("t.json").read_text())["epochs"]
    assert epochs[-1]["loss"] < 0.5 * epochs[0]["loss"]
    assert "t.onnx: 6 epochs; loss" in capsys.readouterr().out
    with np.load("d.npz") as data:
        x, labels = data["x"][-64:], data["label"][-64:]
    (y,) = ort.InferenceSession("t.onnx").run(None, {"x": x})
    assert (y.argmax(1) == labels).mean() == epochs[-1]["validation_accuracy"] > 0.8
    assert np.any(numpy_helper.to_array(onnx.load("t.onnx").graph.initializer[1]))  # the bias of the convolution


def test_mapped_files_are_trained_from_and_a_module_comes_out() -> None:
    with np.load("d.npz") as whole:
        np.save("x.npy", whole["x"].astype(np.float64))
        np.save("label.npy", whole["label"].astype(np.int32))
    assert train("--epochs", "2", "--validation", "0.25", "-o", "whole.mlc") == 0
    files = ("x=x.npy", "label=label.npy")
    assert train("--epochs", "2", "--validation", "0.25", "-o", "mapped.tar", data=files) == 0
    x = np.load("x.npy")[:32].astype(np.float32)
    with mlc.load_module("mapped.tar") as module, mlc.compile(mlc.load("whole.mlc"), threads=1).load(1) as want:
        np.testing.assert_array_equal(module.run({"x": x})["y"], want.run({"x": x})["y"])


def test_batches_may_be_made_on_the_way() -> None:
    model = batched("m.onnx", 32)
    with np.load("d.npz") as whole:
        x, labels = whole["x"], whole["label"]

    def batches(epoch: int) -> Iterator[Mapping[str, np.ndarray]]:
        for rows in np.split(np.random.default_rng(epoch).permutation(COUNT), COUNT // 32):
            yield {"x": x[rows], "label": labels[rows]}

    stream = Stream(COUNT // 32, batches)
    whole_run = mlc.train(
        model, stream, Plan(2, 0.01), threads=1, checkpoint="s.checkpoint", validation=dict(x=x, y=labels)
    )
    assert whole_run.history[-1]["validation_loss"] < whole_run.history[0]["loss"]
    part = mlc.train(model, stream, Plan(1, 0.01), threads=1, checkpoint="p.checkpoint")
    part = mlc.train(model, stream, Plan(2, 0.01), threads=1, checkpoint="p.checkpoint", resume=True)
    for name, array in whole_run.parameters.items():
        np.testing.assert_array_equal(part.parameters[name], array, err_msg=name)
    with pytest.raises(UsageError, match="are made on the way, so no share of them can be kept"):
        mlc.train(model, stream, Plan(1, 0.01), validation=0.1)
    with pytest.raises(UsageError, match="the data: epoch 1 had 8 batches, 9 were promised"):
        mlc.train(model, Stream(9, batches), Plan(1, 0.01), threads=1)
    short = Stream(1, lambda epoch: [{"x": x[:40], "label": labels[:40]}])
    with pytest.raises(UsageError, match="the data, batch 1 of epoch 1: holds 40 examples, not 32"):
        mlc.train(model, short, Plan(1, 0.01), threads=1)


def test_a_run_goes_on_where_it_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    trained("whole.mlc", 3)
    trained("part.mlc", 1)
    assert train("--epochs", "3", "-o", "part.mlc", "--resume") == 0
    same_parameters("whole.mlc", "part.mlc")
    capsys.readouterr()
    assert train("--epochs", "3", "-o", "part.mlc", "--resume", "--seed", "1") == 2
    assert "part.mlc.checkpoint: is of another run: seed differ" in capsys.readouterr().err
    with np.load("d.npz") as whole:
        np.savez("other.npz", x=-whole["x"], label=whole["label"])
    assert train("--epochs", "3", "-o", "part.mlc", "--resume", data=("other.npz",)) == 2
    assert "part.mlc.checkpoint: is of another run: data differ" in capsys.readouterr().err


def test_a_rate_that_goes_down_to_nothing_knows_how_long_the_run_is(capsys: pytest.CaptureFixture[str]) -> None:
    falling = ("--schedule", "cosine", "--warmup", "2")
    assert train("--epochs", "1", "-o", "part.mlc", *falling) == 0
    assert train("--epochs", "2", "-o", "part.mlc", *falling, "--resume") == 2
    assert "part.mlc.checkpoint: is of another run: options differ" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["-o", "t.pb"], 2, "t.pb: a trained model is written as .onnx, .mlc or .tar"),
        (["-o", "t.mlc", "--momentum", "0.9"], 2, "--momentum is an option of sgd, not of adam"),
        (["-o", "t.mlc", "--validation", "1.5"], 2, "a share lies between 0 and 1"),
        (["-o", "t.mlc", "--validation", "0.99"], 2, "what is left of 0.99 for validation is less than a batch"),
        (["-o", "t.mlc", "--dim", "batch=7"], 2, "takes 7 examples at once, not 32"),
        (["-o", "t.mlc", "--lr", "1e38"], 1, "the loss is nan in step 2"),
        (["-o", "t.mlc", "--freeze", "w9"], 2, "no parameter is called 'w9'"),
    ],
)
def test_what_is_wrong_is_told(capsys: pytest.CaptureFixture[str], options: list[str], code: int, message: str) -> None:
    assert train(*options) == code
    assert message in capsys.readouterr().err
    assert not Path("t.mlc").exists()


def test_kernels_are_searched_for_before_training_and_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLC_CACHE", str(tmp_path / "cache"))
    options = ("--epochs", "2", "--trials", "4", "--records", "r.jsonl", "--report", "t.html", "--json", "t.json")
    assert train(*options, "-o", "before.mlc", "--tune", "static") == 0
    assert len(Path("r.jsonl").read_text().splitlines()) >= 4
    assert "Training of m.onnx" in Path("t.html").read_text()
    assert train(*options, "-o", "beside.mlc", "--tune", "dynamic") == 0
    found = json.loads(Path("t.json").read_text())
    assert found["epochs"][-1]["losses"]
    assert all(e["difference"] is None for e in found["exchanges"])
    capsys.readouterr()
    assert train("-o", "t.mlc", "--trials", "4") == 2
    assert "--trials is an option of --tune" in capsys.readouterr().err


def test_a_full_disk_is_one_message_and_leaves_a_checkpoint(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained("whole.mlc", 3)
    trained("part.mlc", 1)
    capsys.readouterr()
    synced = os.fsync

    def full(descriptor: int) -> None:
        if ".checkpoint" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        synced(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    assert train("--epochs", "3", "-o", "part.mlc", "--resume") == OutputError.exit_code
    text = capsys.readouterr().err
    assert text.count("error:") == 1
    assert "error: part.mlc.checkpoint: cannot be written: No space left on device" in text
    monkeypatch.setattr(os, "fsync", synced)
    assert {f.name for f in Path().glob("*part*")} == {
        "part.mlc",
        "part.mlc.checkpoint",
        "part.mlc.checkpoint.previous",
    }
    assert train("--epochs", "3", "-o", "part.mlc", "--resume") == 0
    same_parameters("whole.mlc", "part.mlc")


@pytest.mark.parametrize("damage", ["torn", "flipped", "emptied"])
def test_a_damaged_checkpoint_is_one_message_and_the_one_before_is_used(
    damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trained("whole.mlc", 3)
    trained("part.mlc", 2)
    capsys.readouterr()
    file = Path("part.mlc.checkpoint")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes({"torn": data[: len(data) // 2], "flipped": data, "emptied": b""}[damage])
    assert train("--epochs", "3", "-o", "part.mlc", "--resume") == 0
    text = capsys.readouterr().err
    assert text.count("part.mlc.checkpoint: is no whole checkpoint") == 1
    assert "the one before is used" in text
    same_parameters("whole.mlc", "part.mlc")


def test_less_memory_gives_the_same_bits(capsys: pytest.CaptureFixture[str]) -> None:
    trained("whole.mlc", 1)
    assert train("--epochs", "1", "-o", "none.mlc", "--memory", "1K") != 0
    text = capsys.readouterr().err
    found = re.search(r"a run takes at least (\d+) bytes .*, the limit is 1024", text)
    assert found is not None, text
    assert f"raise it to {found[1]}" in text
    assert not Path("none.mlc").exists()
    assert train("--epochs", "1", "-o", "small.mlc", "--memory", found[1]) == 0
    same_parameters("whole.mlc", "small.mlc")


def test_memory_is_limited_where_one_version_of_a_step_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("-o", "t.mlc", "--memory", "1G", "--tune", "dynamic") != 0
    assert "two versions of a step are there" in capsys.readouterr().err
    with pytest.raises(UnsupportedError, match="can be limited on processors"):
        mlc.compile(batched("m.onnx", 32), "vdla", memory=1 << 20)

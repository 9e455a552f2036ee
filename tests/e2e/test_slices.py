"""Batches that run in slices: compiled, the same bits as without, and all tools on them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import mlc
from benchmarks.zoo import build, sample_inputs
from mlc.api import KernelEstimate, estimates, options, tuning_tasks
from mlc.cli.main import run
from mlc.errors import MemoryLimitError, UsageError
from mlc.pipeline import passes
from mlc.records.files import write_records
from mlc.records.measurement import Measurement
from mlc.records.places import journal_of
from mlc.records.record import Fingerprint, Record
from mlc.rewrite.slices import use_slices
from mlc.runtime import open_package
from mlc.targets.base import get_target
from tests.e2e.compiled import assert_same, load, network, reference

OFF = {"disabled_passes": ("slices",)}


def forced(monkeypatch: pytest.MonkeyPatch, images: int) -> None:
    """Slices of so many images, whatever they cost."""
    monkeypatch.setattr(options, "available_cores", lambda: 2)
    monkeypatch.setattr(passes, "use_slices", partial(use_slices, images=images))


def loops(module: mlc.Package) -> list[int]:
    """How many parts every loop has."""
    return [len(step.parts) for step in module.manifest.steps if step.parts]


@pytest.mark.sweep(4)
@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize(
    ("name", "batch"), [("mobilenet_v2", 6), ("shufflenet_v1", 4), ("resnet18", 4), ("bert_tiny", 4)]
)
def test_networks_give_what_they_give_without(
    name: str, batch: int, images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(name, batch, small=True)
    feeds = sample_inputs(model)
    forced(monkeypatch, images)
    package = mlc.compile(load(model), verify_passes=True)
    assert max(loops(package)) > 8
    with package.load(1) as one, package.load(2) as two:
        got, again = one.run(feeds), two.run(feeds)
    for key, want in reference(model, feeds).items():
        np.testing.assert_allclose(got[key], want, rtol=1e-3, atol=1e-4, err_msg=key)
        np.testing.assert_array_equal(got[key], again[key])


@pytest.mark.parametrize("threads", [1, 8, 9])
def test_many_threads_get_whole_batches(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    forced(monkeypatch, 1)
    package = mlc.compile(load(build("mobilenet_v2", 2, small=True)), threads=threads)
    assert bool(loops(package)) == (threads <= 8)


def test_quantised_networks_are_the_same_bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("mobilenet_v2.int8", 4, small=True)
    feeds = sample_inputs(model)
    with mlc.compile(load(model), **OFF).load(1) as module:
        whole = module.run(feeds)
    forced(monkeypatch, 2)
    package = mlc.compile(load(model), verify_passes=True)
    assert loops(package)
    with package.load(1) as module:
        for name, array in module.run(feeds).items():
            np.testing.assert_array_equal(array, whole[name])


def test_a_limit_of_memory_that_slices_miss_is_met_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    found, feeds = between_batches(6)
    model, target = load(found), "x86 -mcpu=nehalem"  # with longer vectors a batch may need more than its slices
    whole = mlc.compile(model, target, **OFF).manifest
    forced(monkeypatch, 2)
    sliced = mlc.compile(model, target)
    least, most = whole.memory, sliced.manifest.memory
    assert loops(sliced)
    assert not sliced.notices
    assert least.workspace_bytes < most.workspace_bytes
    around = sum(t.nbytes for t in (*whole.inputs, *whole.outputs)) + least.params_bytes
    for name, needed, refusal in (
        ("max_memory", least.params_bytes, "the model needs {} bytes to run"),
        ("memory", around, "a run takes at least {} bytes"),
    ):
        limit = needed + least.workspace_bytes
        package = mlc.compile(model, target, **{name: limit})
        assert not loops(package)
        assert package.manifest.memory == least
        wanted = f"the batch is not run in slices, which would take {needed + most.workspace_bytes} bytes, more than"
        assert [notice for notice in package.notices if wanted in notice]
        assert_same(_run(package, feeds), reference(found, feeds), tolerance=1e-4)
        assert loops(mlc.compile(model, target, **{name: needed + most.workspace_bytes}))
        with pytest.raises(MemoryLimitError, match=refusal.format(limit)):
            mlc.compile(model, target, **{name: limit - 1})


def between_batches(batch: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Convolutions between operators that mix images: what slices read and leave lies there, and theirs beside it."""
    rng = np.random.default_rng(0)
    stored = {f"w{k}": rng.normal(size=(4, 4, 3, 3)).astype(np.float32) for k in range(3)}
    nodes = [helper.make_node("Softmax", ["x"], ["r0"], axis=0)]
    for k in range(3):
        nodes.append(helper.make_node("Conv", [f"r{k}", f"w{k}"], [f"c{k}"], pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{k}"], [f"r{k + 1}"]))
    nodes.append(helper.make_node("Softmax", ["r3"], ["y"], axis=0))
    feeds = {"x": rng.normal(size=(batch, 4, 8, 8)).astype(np.float32)}
    return network(nodes, feeds, ["y"], stored), feeds


def convolutions(batch: int, side: int = 64) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Depthwise convolutions and their ReLUs, which a large batch would bring from memory; then a classifier."""
    rng = np.random.default_rng(0)
    nodes, stored, last = [], {}, "x"
    for k in range(4):
        stored[f"w{k}"] = rng.normal(size=(32, 1, 3, 3)).astype(np.float32)
        nodes.append(helper.make_node("Conv", [last, f"w{k}"], [f"c{k}"], f"conv{k}", pads=[1] * 4, group=32))
        nodes.append(helper.make_node("Relu", [f"c{k}"], [f"r{k}"], f"relu{k}"))
        last = f"r{k}"
    stored["fc"] = rng.normal(size=(32, 5)).astype(np.float32)
    nodes.append(helper.make_node("GlobalAveragePool", [last], ["mean"], "mean"))
    nodes.append(helper.make_node("Flatten", ["mean"], ["rows"], "flatten"))
    nodes.append(helper.make_node("MatMul", ["rows", "fc"], ["y"], "classify"))
    feeds = {"x": rng.normal(size=(batch, 32, side, side)).astype(np.float32)}
    return network(nodes, feeds, ["y"], stored), feeds


def test_the_pass_is_taken_where_it_pays_and_can_be_left_out() -> None:
    model, feeds = convolutions(16)
    sliced, whole = (mlc.compile(load(model), target="x86 -mcpu=znver4", **options) for options in ({}, OFF))
    assert loops(sliced)
    assert not loops(whole)
    assert sliced.manifest.memory.workspace_bytes < whole.manifest.memory.workspace_bytes
    small, _ = convolutions(16, side=8)
    assert not loops(mlc.compile(load(small), target="x86 -mcpu=znver4"))
    assert not loops(mlc.compile(load(model), target="x86 -mcpu=znver4", opt_level=2))
    assert_same(_run(mlc.compile(load(model)), feeds), reference(model, feeds), tolerance=1e-4)


def _run(package: mlc.Package, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    with package.load(1) as module:
        return module.run(feeds)


def test_every_kernel_of_a_slice_is_profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    forced(monkeypatch, 2)
    model, feeds = convolutions(6)
    package = mlc.compile(load(model))
    (step,) = [step for step in package.manifest.steps if step.parts]
    assert [part.sources[0] for part in step.parts][:2] == ["conv0", "conv1"]
    assert step.flops == sum(part.flops for part in step.parts)
    with package.load(1) as module:
        times = module.profile(feeds, repeats=3)
    assert [t.step for t in times if t.step in step.parts] == list(step.parts)
    assert all(len(t.ns) == 3 and t.median_ns > 0 for t in times if "conv0" in t.step.sources)


def test_tasks_are_those_of_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    forced(monkeypatch, 2)
    model, _ = convolutions(6)
    weights = {2: 0, 6: 0}  # calls for slices, and for the batch
    for task in tuning_tasks(load(model)):
        weights[task.node.outputs[0].type.shape[0]] += task.weight * any("conv" in s for s in task.sources)
    assert weights == {2: 12, 6: 0}  # four layers for three slices


def tuned(model: mlc.Model, threads: int, file: Path) -> Path:
    """A file with a record of every task, as a run with so many threads leaves it."""
    here = Fingerprint.of(get_target("x86"))
    tasks = tuning_tasks(model, threads=threads)
    write_records(
        file,
        [
            Record.of(
                t, t.untuned, Measurement(1e-3), fingerprint=here, threads=threads, explorer="random", seed=0, trial=0
            )
            for t in tasks
        ],
    )
    return file


def test_records_of_other_batches_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    forced(monkeypatch, 2)
    onnx.save(convolutions(6, side=8)[0], tmp_path / "m.onnx")
    model = mlc.load(tmp_path / "m.onnx")
    of_slices, of_whole = (tuned(model, threads, tmp_path / f"{threads}.jsonl") for threads in (8, 9))

    def notices(**more: Any) -> tuple[str, ...]:
        return mlc.compile(model, **more).notices

    assert notices(threads=8, records=[of_slices]) == ()
    assert notices(threads=9, records=[of_whole]) == ()
    assert notices(threads=9, records=[of_slices, of_whole]) == ()
    found = "records have 2 kernels of the batch in slices, which is how it runs on 8 threads or fewer, and not all of"
    assert notices(threads=9, records=[of_slices]) == (f"{found} the whole batch: --threads 8 takes those",)
    assert notices(threads=8, records=[of_slices], **OFF) == ()  # who wants none
    found = "records have 2 kernels of the whole batch, and not all of its slices: --disable-pass slices takes those"
    assert notices(threads=8, records=[of_whole]) == (found,)
    with pytest.raises(UsageError, match="2 of 2 kernels have no tuned configuration") as refused:
        mlc.compile(model, threads=8, records=[of_whole], require_tuned=True)
    assert refused.value.hint == found

    # who names no records has tuned this model, or another one
    assert notices(threads=8) == ()
    other = tmp_path / "cache" / "mlc" / "records" / "other-00000000.jsonl"
    other.parent.mkdir(parents=True)
    of_whole.rename(other)
    assert notices(threads=8) == ()
    other.rename(other.parent / journal_of(tmp_path, model.info.name or "m", model.info.sha256).name)
    assert notices(threads=8) == (found,)
    assert run(["compile", str(tmp_path / "m.onnx"), "--dry-run", "--threads", "8"]) == 0
    assert f"note: {found}" in " ".join(capsys.readouterr().err.split())


def test_the_list_of_tasks_is_for_as_many_threads_as_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forced(monkeypatch, 2)
    onnx.save(convolutions(6, side=8)[0], tmp_path / "m.onnx")
    calls, file = {}, tmp_path / "list.json"
    for threads in ("8", "9"):
        asked = ["--list", "--threads", threads, "--json", str(file)]
        assert run(["tune", str(tmp_path / "m.onnx"), *asked]) == 0
        calls[threads] = sum(task["calls"] for task in json.loads(file.read_text())["tasks"])
    assert calls == {"8": 15, "9": 5}


def test_the_program_is_written_down(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forced(monkeypatch, 2)
    model, _ = convolutions(6)
    package = mlc.compile(load(model), dump_dir=tmp_path, list_layouts=True)
    (text,) = (path.read_text() for path in tmp_path.glob("*-slices.txt"))
    assert "scan(%x.slices, rounds=3" in text
    header = package.members["include/mlc_model.h"].decode()
    assert "/* Runs step i, one of 0," in header
    assert "void mlc_parts(" in header


def test_tools_see_the_kernels_in_a_loop(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forced(monkeypatch, 2)
    model, _ = convolutions(6)
    file = tmp_path / "module.tar"
    onnx.save(model, tmp_path / "model.onnx")
    assert run(["compile", str(tmp_path / "model.onnx"), "-o", str(file), "--target", "x86 -mcpu=znver4"]) == 0
    assert "kernels      3, called in 6 steps" in capsys.readouterr().out
    assert run(["inspect", str(file)]) == 0
    rows = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert [row for row in rows if row and row[0].startswith("k")] == [
        ["kernel", "steps"], ["k0_conv_relu", "4"], ["k1_reduce_mean", "1"], ["k2_matmul", "1"],
    ]  # fmt: skip


def test_estimates_count_the_calls_of_all_rounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forced(monkeypatch, 2)
    model = load(convolutions(6)[0])

    def estimated(**more: Any) -> dict[str, KernelEstimate]:
        mlc.compile(model, target="x86 -mcpu=skylake-avx512", **more).save(tmp_path / "module.tar")
        with open_package(tmp_path / "module.tar") as package:
            return {e.kernel: e for e in estimates(package)}

    slices, whole = estimated(), estimated(**OFF)
    assert {name: e.steps for name, e in slices.items()} == {"k0_conv_relu": 12, "k1_reduce_mean": 3, "k2_matmul": 3}
    conv, at_once = slices["k0_conv_relu"], whole["k0_conv_relu"]
    assert conv.cycles * conv.steps == pytest.approx(at_once.cycles * at_once.steps, rel=0.2)
    assert conv.share == pytest.approx(at_once.share, rel=0.2)

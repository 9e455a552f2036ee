"""How tensors lie, who asked for it, and what is converted while a model runs."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.ir.graph import Builder, Graph
from mlc.ir.types import TensorType, f32
from mlc.lower.knobs import Config
from mlc.ops import get
from mlc.pipeline.layouts import lay_out, parts_of
from mlc.pipeline.passes import optimise
from mlc.pipeline.placements import Placements, placements_of
from mlc.records.best import best_of
from mlc.records.lookup import Tuned
from mlc.records.measurement import Measurement
from mlc.records.record import Fingerprint, Record
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import get_target
from mlc.tuning.joint import layout_space, loop_space
from mlc.tuning.task import tasks_of

TARGET = get_target("x86 -mcpu=haswell")
OPTIONS = CompileOptions("placements", "onnx", "", disabled_passes=("winograd",))


def net() -> Graph:
    """Two convolutions, the second padded."""
    g = Builder("net")
    rng = np.random.default_rng(0)
    x = g.input("x", TensorType((1, 3, 12, 12), f32))
    attrs = {"strides": (1, 1), "dilations": (1, 1), "groups": 1, "pads": (1,) * 4}
    w1 = g.constant(rng.standard_normal((16, 3, 3, 3)).astype(np.float32), "w1")
    w2 = g.constant(rng.standard_normal((16, 16, 3, 3)).astype(np.float32), "w2")
    (a,) = g.add(get("conv"), [x, w1], attrs, names=["a"], sources=["first"])
    (r,) = g.add(get("relu"), [a], names=["r"], sources=["act"])
    (b,) = g.add(get("conv"), [r, w2], attrs, names=["b"], sources=["second"])
    return g.finish([b])


def placed(tuned: Tuned | None = None) -> Placements:
    fused = optimise(net(), TARGET, OPTIONS, Observer(), configurations=tuned)
    return placements_of(lay_out(parts_of(fused, TARGET)[0], OPTIONS, Observer(), tuned), TARGET)


def test_every_tensor_is_listed_with_who_asked_for_its_layout() -> None:
    found = {t.tensor: t for t in placed().tensors}
    assert (found["x"].layout, found["x"].reason) == ("plain", "an input of the model")
    assert (found["r"].asked_by, found["r"].reason) == ("first, act", "its own choice")
    assert found["r"].layout == "split(1, 8).reorder(0,1,3,4,2)"
    assert found["r"].shape == (1, 2, 12, 12, 8)
    packed = [t for t in found.values() if t.reason == "a constant, packed when compiled"]
    assert {t.asked_by for t in packed} == {"first, act", "second"}


def test_conversions_are_listed_with_the_bytes_that_they_move() -> None:
    steps = [c for c in placed().conversions if c.how == "step"]
    assert [(c.tensor, c.shape, c.nbytes) for c in steps] == [("b", (1, 16, 12, 12), 2 * 16 * 144 * 4)]


def learned(images: int, size: int, taps: int, *, turned: bool) -> Placements:
    """A convolution of images by weights that are an input, or made of one."""
    g = Builder("net")
    x, w = g.input("x", TensorType((images, 64, size, size), f32)), g.input("w", TensorType((64, 64, taps, taps), f32))
    attrs = {"strides": (1, 1), "dilations": (1, 1), "groups": 1, "pads": (taps // 2,) * 4}
    by = g.add(get("transpose"), [w], {"perm": (1, 0, 2, 3)}, names=["turned"])[0] if turned else w
    (y,) = g.add(get("conv"), [x, by], attrs, names=["y"], sources=["conv"])
    fused = optimise(g.finish([y]), TARGET, OPTIONS, Observer())
    return placements_of(lay_out(parts_of(fused, TARGET)[0], OPTIONS, Observer()), TARGET)


def test_weights_that_are_learned_are_packed_while_the_model_runs_where_that_pays() -> None:
    found = learned(8, 14, 3, turned=False)
    (packed,) = [t for t in found.tensors if t.tensor == "w.packed"]
    assert (packed.asked_by, packed.reason) == ("conv", "packed while the model runs")
    assert [c.tensor for c in found.conversions if c.how == "step"] == ["w", "y"]
    assert not [t for t in learned(1, 32, 1, turned=False).tensors if t.tensor == "w.packed"]


@pytest.mark.parametrize(("rows", "packed"), [(64, ["w"]), (32, [])])
def test_learned_weights_of_products_are_packed_where_enough_rows_read_them(rows: int, packed: list[str]) -> None:
    g = Builder("net")
    x, w = g.input("x", TensorType((rows, 1024), f32)), g.input("w", TensorType((1024, 64), f32))
    (y,) = g.add(get("matmul"), [x, w], names=["y"], sources=["product"])
    fused = optimise(g.finish([y]), TARGET, OPTIONS, Observer())
    found = placements_of(lay_out(parts_of(fused, TARGET)[0], OPTIONS, Observer()), TARGET)
    assert [c.tensor for c in found.conversions] == packed


def test_what_is_only_packed_is_made_so() -> None:
    found = learned(8, 14, 3, turned=True)
    (packed,) = [t for t in found.tensors if t.tensor == "w.packed" or t.tensor.startswith("turned")]
    assert packed.tensor == "turned.packed"
    assert packed.layout != "plain"
    assert [c.tensor for c in found.conversions if c.how == "step"] == ["y"]


def test_searched_layouts_come_from_records_and_convert_on_the_way() -> None:
    """What a record names is applied, and the border puts the input into overlapping tiles (ALT, figure 5b)."""
    task = tasks_of(net(), TARGET, OPTIONS, Observer())[0]
    space = layout_space(task, TARGET)
    assert space is not None
    layouts: Config = {**space.default, "layout.h": (3, 4), "layout.w": (1, 12), "layout.o": (2, 8)}
    loops = loop_space(task, TARGET, layouts)
    assert loops is not None
    fingerprint = Fingerprint.of(TARGET)
    record = Record.of(
        task, dict(loops.default), Measurement(1e-6), fingerprint=fingerprint, threads=1, explorer="decided", seed=0,
        trial=0,
    )  # fmt: skip
    found = placed(Tuned(best_of([record], fingerprint, 1), TARGET))
    (result,) = [t for t in found.tensors if t.tensor == "r"]
    assert (result.asked_by, result.reason) == ("first, act", "searched")
    assert result.shape == (1, 3, 1, 2, 4, 12, 8)
    (border,) = [c for c in found.conversions if c.tensor == "x"]
    assert (border.where, border.how, border.shape) == ("first, act", "border", (1, 3, 1, 1, 6, 14, 3))
    assert border.nbytes == 4 * (3 * 144 + 3 * 6 * 14 * 3)

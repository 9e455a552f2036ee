"""Inputs in another order of axes than the model's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mlc.errors import UsageError
from mlc.frontend.base import ImportedModel, ModelSource, TensorInfo
from mlc.frontend.layouts import with_layouts
from mlc.frontend.saved import SavedFrontend, encode_model
from mlc.ir.graph import Builder, verify
from mlc.ir.interp import run_graph
from mlc.ir.types import TensorType, f32
from mlc.ops import get

SHAPES = {3: (2, 3, 5), 4: (2, 3, 5, 7), 5: (2, 3, 5, 7, 2), 2: (3, 5)}


def model(rank: int, format: str = "tflite") -> ImportedModel:
    """Its first result is the input itself, its second that plus one."""
    b = Builder("net")
    x = b.input("x:0", TensorType(SHAPES[rank], f32))
    (y,) = b.add(get("add"), [x, b.constant(np.float32(1))], names=["y"])
    source = ModelSource(
        format, "", "net", "", "0" * 64, (TensorInfo("x:0", SHAPES[rank], "f32"),),
        tuple(TensorInfo(n, SHAPES[rank], "f32") for n in ("same", "y")),
    )  # fmt: skip
    return ImportedModel(b.finish([x, y], ["same", "y"]), source)


@pytest.mark.parametrize(
    ("rank", "format", "text", "said"),
    [
        (4, "tflite", "NCHW", "NHWC->NCHW"), (4, "keras", "nchw", "NHWC->NCHW"), (4, "onnx", "NHWC", "NCHW->NHWC"),
        (3, "tflite", "NCW", "NWC->NCW"), (5, "onnx", "NDHWC", "NCDHW->NDHWC"), (4, "onnx", "CHWN", "NCHW->CHWN"),
        (3, "onnx", "NTC->TNC", "NTC->TNC"), (2, "onnx", "AB->BA", "AB->BA"), (4, "tflite", "NHWC", "NHWC->NHWC"),
    ],
)  # fmt: skip
def test_axes_come_in_the_wanted_order(rank: int, format: str, text: str, said: str, tmp_path: Path) -> None:
    before = model(rank, format)
    after = with_layouts(before, {"x:0": text})
    verify(after.graph)
    own, _, wanted = said.partition("->")
    assert after.source.layouts == {"x:0": said}
    x = np.random.default_rng(0).standard_normal(SHAPES[rank]).astype(np.float32)
    given = x.transpose([own.index(axis) for axis in wanted])
    assert after.source.inputs == (TensorInfo("x:0", given.shape, "f32"),)
    got = run_graph(after.graph, {"x:0": given})
    np.testing.assert_array_equal(got["same"], x)
    np.testing.assert_array_equal(got["y"], x + 1)
    path = tmp_path / "saved.mlc"
    path.write_bytes(b"".join(encode_model(after, "0")))
    assert SavedFrontend().load(path).source == after.source


@pytest.mark.parametrize(
    ("rank", "name", "text", "said"),
    [
        (4, "z", "NCHW", "no input 'z' to give a layout"), (4, "x:0", "NC HW", "'NC HW' is no layout"),
        (4, "x:0", "NHWC->", "is no layout"), (4, "x:0", "NCW", "its axes are NHWC, NCW is no order of them"),
        (4, "x:0", "NHCC->NCHC", "NHCC does not name each once"), (4, "x:0", "NWC->NCW", "has 4 axes, NWC does not"),
        (2, "x:0", "CN", "has 2 axes, whose layout is not known"),
    ],
)  # fmt: skip
def test_what_is_no_layout_is_refused(rank: int, name: str, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said.replace(">", "\\>")):
        with_layouts(model(rank), {name: text})


def test_a_layout_is_given_once() -> None:
    with pytest.raises(UsageError, match="was given the layout NHWC->NCHW when it was imported"):
        with_layouts(with_layouts(model(4), {"x:0": "NCHW"}), {"x:0": "NHWC"})

from __future__ import annotations

import pytest
from onnx import TensorProto, helper

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.shapes import Declared
from mlc.frontend.onnx.shapes import declared_type
from mlc.ir.types import f32, i64
from tests.unit.frontend.onnx.models import INT64, info


def test_declarations_are_read():
    assert declared_type(info("x", ["n", 3, None], INT64)) == Declared("x", i64, ("n", 3, None))
    assert declared_type(info("x")) == Declared("x", f32, None)
    assert declared_type(info("x", [])) == Declared("x", f32, ())
    assert str(declared_type(info("x", ["n", 3, None]))) == "f32[n,3,?]"
    assert str(declared_type(info("x"))) == "f32 of unknown rank"


def test_inputs_that_are_no_tensors_are_refused():
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    with pytest.raises(UnsupportedError, match="input 's': is a sequence, only tensors are supported"):
        declared_type(sequence)
    with pytest.raises(UnsupportedError, match="input 's': element type string is not supported"):
        declared_type(info("s", [1], TensorProto.STRING))
    with pytest.raises(ImportModelError, match="input 's': has no type"):
        declared_type(helper.make_empty_tensor_value_info("s"))

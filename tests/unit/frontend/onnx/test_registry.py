from __future__ import annotations

import pytest

from mlc.frontend.onnx.registry import CONVERTERS, OnnxNode, converter

NODE = OnnxNode("layer", "Frob", "", 17, {"alpha": 1.0}, ("y",))


def test_attributes_have_defaults():
    assert NODE.attr("alpha") == 1.0
    assert NODE.attr("beta", 2) == 2
    assert NODE.attr("beta") is None


def test_an_operator_has_one_converter():
    with pytest.raises(ValueError, match="converter for Relu is registered twice"):
        converter("Relu")(lambda ctx, node, inputs: [])
    assert CONVERTERS.find("ai.onnx", "Relu") is CONVERTERS.find("", "Relu")
    assert CONVERTERS.find("", "NoSuchThing") is None

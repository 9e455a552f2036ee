from __future__ import annotations

from mlc.frontend.onnx import OnnxFrontend
from mlc.frontend.onnx.registry import CONVERTERS


def test_the_list_is_that_of_the_tables():
    found = OnnxFrontend().supported_operators()
    by_name = {(o.domain, o.name): o for o in found}
    assert len(by_name) == len(found)
    assert [(o.domain, o.name) for o in found] == sorted(by_name)
    assert {(c.domain, c.op_type) for c in CONVERTERS.entries.values()} <= set(by_name)
    assert by_name["", "Conv"].via == "converter"
    assert by_name["", "Conv"].limits
    assert "rounds known" in by_name["", "Loop"].limits


def test_operators_defined_by_others_are_listed_as_such():
    by_name = {o.name: o for o in OnnxFrontend().supported_operators() if not o.domain}
    assert by_name["SwiGLU"].via == "function"
    assert by_name["SwiGLU"].since == 28
    assert by_name["HammingWindow"].since == 17
    assert "StringNormalizer" not in by_name
    # its definition is made of sequences
    assert "SequenceMap" not in by_name

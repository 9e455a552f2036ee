from __future__ import annotations

import pytest

from mlc.errors import ImportModelError
from mlc.frontend.limits import Limits


def test_what_is_within_a_limit_passes():
    Limits(nodes=3).check("nodes", 3, "nodes")


def test_what_is_beyond_names_the_limit_and_the_flag():
    with pytest.raises(ImportModelError, match="nodes in the model: 4, the limit 'nodes' is 3") as caught:
        Limits(nodes=3).check("nodes", 4, "nodes in the model")
    assert "--limit nodes=4" in caught.value.hint


def test_sizes_are_given_in_bytes():
    with pytest.raises(ImportModelError, match="tensor 'x': 9 bytes, the limit 'tensor_bytes' is 8 bytes"):
        Limits(tensor_bytes=8).check("tensor_bytes", 9, "tensor 'x'")

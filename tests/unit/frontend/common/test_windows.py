from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import ImportModelError
from mlc.frontend.common.windows import Window, same_pads

small = st.integers(1, 9)


@given(st.integers(1, 40), small, small, st.integers(1, 4), st.booleans())
def test_same_pads_give_an_output_for_every_stride(n, kernel, stride, dilation, upper):
    pads = same_pads([n], [kernel], [stride], [dilation], upper=upper)
    assert Window((kernel,), (stride,), (dilation,), pads).outputs([n]) == (-(-n // stride),)
    begin, end = pads
    assert (end - begin if upper else begin - end) in (0, 1)


def test_cropping_pads_cut_off_the_end():
    assert same_pads([5], [1], [3], [1], crop=True) == (0, -1)
    assert same_pads([5], [1], [3], [1]) == (0, 0)


def test_a_window_beyond_the_input_is_refused():
    with pytest.raises(ImportModelError, match="the window spans 9 on axis 2, the padded input only 4"):
        Window((9,), (1,), (1,), (0, 0)).outputs([4])

"""Arrays for results: aligned, and in memory that no other array alive uses."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import UsageError
from mlc.runtime.buffers import KEPT_FROM, MOST_KEPT, Ports, Recycled, address
from mlc.runtime.tensor_spec import ALIGNMENT, TensorSpec

LARGE = (KEPT_FROM // 4,)


def test_arrays_are_aligned_whether_their_memory_is_new_or_not():
    for shape in ((), (0,), (3, 5), LARGE):
        arrays = Recycled(shape, np.dtype(np.float32))
        for _ in range(3):
            array = arrays.empty()
            assert array.shape == shape
            assert array.__array_interface__["data"][0] % ALIGNMENT == 0


def test_a_large_array_takes_the_memory_of_one_that_is_gone():
    arrays = Recycled(LARGE, np.dtype(np.float32))
    first = arrays.empty()
    at = address(first)
    assert address(arrays.empty()) != at
    del first
    assert at in {address(arrays.empty()) for _ in range(MOST_KEPT)}


def test_memory_that_a_view_still_shows_is_not_used_again():
    arrays = Recycled(LARGE, np.dtype(np.float32))
    array = arrays.empty()
    array[:] = 1
    views = [array[5:9].reshape(2, 2), memoryview(array), array.view(np.int32).T]
    del array
    for view in list(views):
        views.remove(view)
        if views:
            arrays.empty()[:] = 2
            assert all((np.asarray(v).view(np.float32) == 1).all() for v in views)


def test_all_results_of_a_caller_who_keeps_them_are_apart():
    arrays = Recycled(LARGE, np.dtype(np.float32))
    kept = []
    for k in range(MOST_KEPT + 3):
        kept.append(arrays.empty())
        kept[-1][:] = k
    assert [a[0] for a in kept] == list(range(MOST_KEPT + 3))


@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), min_size=1, max_size=7), st.booleans())
def test_written_arrays_are_apart_from_all_others(places, shared):
    """As numpy tells it of every two, but for an output in the very place of the input whose next value it is."""
    memory = np.zeros(64, np.float32)
    arrays = [memory[at : at + 6] for at, _ in places]
    read = [a for a, (_, w) in zip(arrays, places, strict=True) if not w]
    written = {f"y{k}": a for k, (a, (_, w)) in enumerate(zip(arrays, places, strict=True)) if w}
    over = {}
    if shared:
        over = {"z": len(read)}
        read.append(memory[:6])
        written["z"] = memory[:6]
    ports = Ports("output", [TensorSpec(name, "f32", (6,)) for name in written])
    each = [(a, name) for name, a in written.items()]
    pairs = [(a, b) for k, (a, _) in enumerate(each) for b, _ in each[k + 1 :]]
    pairs += [(a, b) for a, name in each for j, b in enumerate(read) if over.get(name) != j]
    if any(np.may_share_memory(a, b) for a, b in pairs):
        with pytest.raises(UsageError, match="shares memory"):
            ports.to_write(written, read, over)
    else:
        assert all(a is b for a, b in zip(ports.to_write(written, read, over), written.values(), strict=True))

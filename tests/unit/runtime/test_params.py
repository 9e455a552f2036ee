"""``params.safetensors``: aligned, without a gap, and readable by the safetensors library."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import PackageError
from mlc.runtime import params as params_module
from mlc.runtime.dtypes import ELEMENTS, numpy_dtype
from mlc.runtime.params import data_start, params_chunks, params_header, plan_params
from mlc.runtime.tensor_spec import ParamSpec, TensorSpec
from tests.fuzz import examples

safetensors = pytest.importorskip("safetensors.numpy")

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=10) | st.sampled_from(
    ["__metadata__", "__pad0", "__pad1", "param:__pad0", "param:", ""]
)
specs = st.lists(
    st.builds(TensorSpec, names, st.sampled_from(sorted(ELEMENTS)), st.lists(st.integers(0, 5), max_size=3).map(tuple)),
    max_size=6,
    unique_by=lambda spec: spec.name,
)


def array_of(spec: TensorSpec, seed: int = 0) -> np.ndarray:
    """Random bytes as an array; booleans and integers of less than a byte are 0 or 1."""
    narrow = spec.dtype in ("bool", "i2", "i4", "u2", "u4")
    raw = np.random.default_rng(seed).integers(0, 2 if narrow else 256, spec.nbytes, np.uint8)
    return raw.view(numpy_dtype(spec.dtype)).reshape(spec.shape)


@given(specs)
@examples(80)
def test_every_tensor_is_aligned_and_the_library_reads_it_back(specs: list[TensorSpec]) -> None:
    plan = plan_params(specs)
    arrays = {spec.name: array_of(spec, i) for i, spec in enumerate(specs)}
    data = b"".join(bytes(chunk) for chunk in params_chunks(plan.params, arrays))
    start = data_start(data[:8], len(data))
    assert start % 64 == 0
    assert len(data) == start + plan.nbytes
    assert plan.nbytes % 64 == 0
    for spec in plan.params:
        assert spec.offset % 64 == 0
        begin = start + spec.offset
        assert data[begin : begin + spec.nbytes] == arrays[spec.name].tobytes()
    # The library's numpy face does not know bfloat16, its parser does.
    loaded = dict(safetensors.deserialize(data))
    for spec in plan.params:
        key = f"param:{spec.name}" if spec.name.startswith(("__", "param:")) else spec.name
        assert bytes(loaded[key]["data"]) == arrays[spec.name].tobytes()
        assert tuple(loaded[key]["shape"]) == spec.shape
        assert loaded[key]["dtype"] == ELEMENTS[spec.dtype].safetensors


def test_offsets_follow_the_given_order() -> None:
    plan = plan_params([TensorSpec("b", "f32", (17,)), TensorSpec("e", "i8", (0,)), TensorSpec("a", "u8", ())])
    assert [(spec.name, spec.offset) for spec in plan.params] == [("b", 0), ("e", 128), ("a", 128)]
    assert plan.nbytes == 192
    assert plan_params([]).nbytes == 0


def test_library_loads_arrays() -> None:
    plan = plan_params([TensorSpec("w", "f32", (3,)), TensorSpec("m", "bool", (2,))])
    arrays = {"w": np.float32([1, 2, 3]), "m": np.array([True, False])}
    loaded = safetensors.load(b"".join(bytes(chunk) for chunk in params_chunks(plan.params, arrays)))
    np.testing.assert_array_equal(loaded["w"], arrays["w"])
    np.testing.assert_array_equal(loaded["m"], arrays["m"])


def test_integers_of_less_than_a_byte_are_written_as_bytes() -> None:
    plan = plan_params([TensorSpec("w", "i4", (3,)), TensorSpec("v", "u2", (2,))])
    arrays = {"w": np.array([-8, 7, -1], ml_dtypes.int4), "v": np.array([255, 2], np.uint8).view(ml_dtypes.uint2)}
    loaded = safetensors.load(b"".join(bytes(chunk) for chunk in params_chunks(plan.params, arrays)))
    np.testing.assert_array_equal(loaded["w"], np.array([-8, 7, -1], np.int8))
    np.testing.assert_array_equal(loaded["v"], np.array([3, 2], np.uint8))


def test_strided_arrays_and_bfloat16_bits_are_written() -> None:
    plan = plan_params([TensorSpec("t", "i32", (3, 2)), TensorSpec("h", "bf16", (2,))])
    arrays = {"t": np.arange(6, dtype=np.int32).reshape(2, 3).T, "h": np.array([0x3F80, 0x4000], np.uint16)}
    data = b"".join(bytes(chunk) for chunk in params_chunks(plan.params, arrays))
    start = data_start(data[:8], len(data))
    assert data[start : start + 24] == arrays["t"].tobytes()
    assert data[start + 64 : start + 68] == arrays["h"].tobytes()


@pytest.mark.parametrize(
    "arrays, message",
    [
        ({}, "parameter 'w' has no array"),
        ({"w": np.zeros(3, np.float32), "z": np.zeros(1)}, "parameter 'z' is not in the manifest"),
        ({"w": np.zeros(3)}, r"parameter 'w': expected f32\[3\], got f64\[3\]"),
        ({"w": np.zeros(3, ">f4")}, r"parameter 'w': expected f32\[3\], got >f4\[3\]"),
        ({"w": np.zeros((3, 1), np.float32)}, r"parameter 'w': expected f32\[3\], got f32\[3,1\]"),
    ],
)
def test_unfit_arrays_are_refused_by_name(arrays: dict[str, np.ndarray], message: str) -> None:
    plan = plan_params([TensorSpec("w", "f32", (3,))])
    with pytest.raises(PackageError, match=message):
        list(params_chunks(plan.params, arrays))


def test_a_header_beyond_what_safetensors_reads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(params_module, "_MAX_HEADER", 60)
    with pytest.raises(PackageError, match="the header would take 120 bytes, more than 60"):
        params_header([ParamSpec("w", "f32", (3,), 0)])


@pytest.mark.parametrize(
    "head, size, message",
    [
        (b"1234", 4, "the header does not fit into 4 bytes"),
        ((1 << 40).to_bytes(8, "little"), 1000, "the header does not fit into 1000 bytes"),
        ((60).to_bytes(8, "little"), 1000, "the data starts at byte 68, not at a multiple of 64"),
    ],
)
def test_a_wrong_data_section_is_refused(head: bytes, size: int, message: str) -> None:
    with pytest.raises(PackageError, match=message):
        data_start(head, size)

"""Damaged and malicious files: one clear error, or a model that means what it says; never a crash or a long wait."""

from __future__ import annotations

import struct
import time

import numpy as np
import pytest

from mlc.errors import ImportModelError, MlcError
from mlc.frontend.limits import Limits
from mlc.frontend.tflite.importer import import_tflite
from mlc.frontend.tflite.model import read_model
from mlc.ir.graph import verify
from tests.unit.frontend.tflite.writer import Op, T, const, write

WINDOW = {"StrideW": 1, "StrideH": 1, "DilationWFactor": 1, "DilationHFactor": 1}


def convolution() -> bytes:
    tensors = [
        T((1, 6, 5, 3), "int8", scale=0.02, zero=4), const(np.ones((4, 3, 3, 3)), np.int8, scale=[0.1, 0.2, 0.3, 0.4]),
        const(np.arange(4), np.int32, scale=0.002), T((1, 6, 5, 4), "int8", scale=0.5), const([1, 120], np.int32),
        T((1, 120), "int8", scale=0.5), T((1, 120), "int8", scale=1 / 256, zero=-128),
    ]  # fmt: skip
    operators = [
        Op("CONV_2D", [0, 1, 2], [3], WINDOW, "Conv2DOptions", 3), Op("RESHAPE", [3, 4], [5], {}, "ReshapeOptions"),
        Op("SOFTMAX", [5], [6], {"Beta": 1.0}, "SoftmaxOptions", 2),
    ]  # fmt: skip
    return write(tensors, operators, [0], [6])


def floats() -> bytes:
    tensors = [
        T((2, 8, 8, 2)), T((2, 4, 4, 2)), const([6, 5], np.int32), T((2, 6, 5, 2)), const([1, 2], np.int32), T((2, 2)),
        const(np.ones((3, 2), np.float32)), T((2, 3)),
    ]  # fmt: skip
    pool = {"StrideW": 2, "StrideH": 2, "FilterWidth": 2, "FilterHeight": 2}
    operators = [
        Op("MAX_POOL_2D", [0], [1], pool, "Pool2DOptions"),
        Op("RESIZE_BILINEAR", [1, 2], [3], {"HalfPixelCenters": True}, "ResizeBilinearOptions", 3),
        Op("MEAN", [3, 4], [5], {}, "ReducerOptions"),
        Op("FULLY_CONNECTED", [5, 6, -1], [7], {"FusedActivationFunction": 1}, "FullyConnectedOptions"),
    ]
    return write(tensors, operators, [0], [7])


def shapes() -> bytes:
    tensors = [
        T((4, 6)), const([0, 1], np.int32), const([4, 5], np.int32), const([1, 2], np.int32), T((4, 2)),
        const([[1, 0], [0, 1]], np.int32), T((5, 3)), T((10, 3)), const([1], np.int32), T((10, 2)),
    ]  # fmt: skip
    operators = [
        Op("STRIDED_SLICE", [0, 1, 2, 3], [4], {}, "StridedSliceOptions"), Op("PAD", [4, 5], [6], {}, "PadOptions"),
        Op("CONCATENATION", [6, 6], [7], {}, "ConcatenationOptions"),
        Op("GATHER", [7, 3], [9], {"Axis": 1}, "GatherOptions"),
    ]  # fmt: skip
    return write(tensors, operators, [0], [9])


def sparse() -> bytes:
    levels = [3, ([0, 2, 2, 5], [1, 3, 0, 2, 3])]
    stored = T((3, 4), raw=np.arange(5, dtype=np.float32).tobytes(), sparsity=([0, 1], [], levels))
    tensors = [stored, T((3, 4)), T((2, 4)), T((2, 3))]
    operators = [Op("DENSIFY", [0], [1], {}, "DensifyOptions"), Op("FULLY_CONNECTED", [2, 1, -1], [3])]
    return write(tensors, operators, [2], [3])


SMALL = {"convolution": convolution(), "floats": floats(), "shapes": shapes(), "sparse": sparse()}
LIMITS = Limits(tensor_bytes=1 << 24, constant_bytes=1 << 22, constants_bytes=1 << 24, nodes=10_000)


def attempt(data: bytes) -> bool:
    """Whether a file is imported; if so its graph holds together. Any error must be one of ours."""
    try:
        graph = import_tflite(data, limits=LIMITS).graph
    except MlcError:
        return False
    verify(graph)
    return True


@pytest.mark.parametrize("name", SMALL)
def test_the_files_themselves_are_sound(name):
    assert attempt(SMALL[name])


@pytest.mark.parametrize("name", SMALL)
def test_truncated_anywhere(name):
    data = SMALL[name]
    for length in range(0, len(data), 13):
        assert not attempt(data[:length])


def flipped(count: int, seed: int) -> int:
    rng = np.random.default_rng(seed)
    survived = 0
    for _ in range(count):
        data = bytearray(SMALL[str(rng.choice(sorted(SMALL)))])
        for _ in range(int(rng.integers(1, 4))):
            data[int(rng.integers(len(data)))] ^= int(rng.integers(1, 256))
        survived += attempt(bytes(data))
    return survived


def test_random_bytes_changed():
    begin = time.monotonic()
    survived = flipped(300, 1)
    # most of a file are weights and padding, and some of the rest are refused
    assert 0 < survived < 300
    assert time.monotonic() - begin < 300


def test_numbers_put_where_offsets_are():
    """Every aligned word in turn becomes huge, negative, and zero."""
    data = SMALL["shapes"]
    for at in range(0, len(data) - 4, 4):
        for word in (0xFFFFFFFF, 0x7FFFFFFF):
            attempt(data[:at] + struct.pack("<I", word) + data[at + 4 :])


def test_a_table_that_many_point_at_is_counted():
    """A vector of offsets that all lead to one table, which a small file can have many of."""
    data = bytearray(write([T((2,)), T((2,))], [Op("RELU", [0], [1])] * 3000, [0], [1]))
    with pytest.raises(ImportModelError, match="the limit 'nodes' is 100"):
        read_model(bytes(data), Limits(nodes=100))


HUGE = {
    "FILL": ([1, 2], [const([1 << 20, 1 << 20], np.int32), const(np.float32(1))], "tensor_bytes"),
    "TILE": ([0, 1], [const([1 << 30], np.int32), const(np.float32(1))], "tensor_bytes"),
    "PAD": ([0, 1], [const([[1 << 30, 1 << 30]], np.int32), const(np.float32(1))], "tensor_bytes"),
    "RANGE": ([1, 2, 2], [const(np.float32(-1e30)), const(np.float32(1))], "constant"),
    "ONE_HOT": ([1, 2, 1, 1], [const(np.int32(5)), const(np.int32(1 << 30))], "tensor_bytes"),
}


@pytest.mark.parametrize("name", HUGE)
def test_small_files_cannot_ask_for_huge_tensors(name):
    inputs, tensors, message = HUGE[name]
    data = write([T((2,)), *tensors, T((2,))], [Op(name, inputs, [3])], [0], [3])
    with pytest.raises(ImportModelError, match=message):
        import_tflite(data, limits=Limits(tensor_bytes=1 << 30))


def test_parts_are_as_many_as_there_are_outputs():
    operator = Op("SPLIT", [1, 0], [2], {"NumSplits": 1 << 30}, "SplitOptions")
    data = write([T((0,)), const(np.int32(0)), T((0,))], [operator], [0], [2])
    with pytest.raises(ImportModelError, match="1073741824 parts of an axis of extent 0, 1 outputs"):
        import_tflite(data)


def test_what_lies_where_no_builder_puts_it():
    data = SMALL["floats"]
    place = data.index(b"a test\0")
    with pytest.raises(ImportModelError, match="Model: description: the text is not ended by a zero"):
        import_tflite(data[: place + 6] + b"!" + data[place + 7 :])
    (root,) = struct.unpack_from("<I", data)
    with pytest.raises(ImportModelError, match=f"Model: it lies at {root + 1}, no multiple of 4"):
        import_tflite(struct.pack("<I", root + 1) + data[4:])

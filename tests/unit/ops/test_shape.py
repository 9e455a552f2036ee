from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import VerifyError
from mlc.ir import te
from mlc.ir.types import TensorType, f32
from mlc.ops.shape import concat_or_join, reshape_indices
from tests.unit.ops.oracle import evaluate


def arange(*shape, dtype=np.float32):
    return np.arange(np.prod(shape, dtype=int), dtype=dtype).reshape(shape)


@pytest.mark.parametrize(
    "source, target",
    [
        ((), ()), ((), (1, 1)), ((1,), ()), ((6,), (2, 3)), ((2, 3), (3, 2)), ((2, 3, 4), (2, 12)),
        ((2, 12), (2, 3, 4)), ((4, 6, 5), (8, 3, 5)), ((2, 1, 3), (1, 2, 3, 1)), ((0, 3), (3, 0)),
        ((0,), (2, 0)), ((5, 1, 7), (7, 5)), ((6, 10, 4), (4, 15, 2, 2)),
    ],
)  # fmt: skip
def test_reshape(source, target):
    x = arange(*source)
    np.testing.assert_array_equal(evaluate("reshape", x, shape=target), x.reshape(target))


def test_reshape_touches_only_the_axes_that_change():
    axes = [te.axis(n, a) for n, a in zip((8, 24, 5), "ijk", strict=True)]
    found = reshape_indices(axes, (8, 4, 6, 5), (8, 24, 5))
    assert [str(f) for f in found] == ["i", "j//6", "j%6", "k"]
    joined = reshape_indices([te.axis(8, "i"), te.axis(4, "j"), te.axis(6, "k")], (8, 24), (8, 4, 6))
    assert [str(f) for f in joined] == ["i", "6*j + k"]


@pytest.mark.parametrize("perm", [(0, 1, 2), (2, 0, 1), (1, 2, 0), (2, 1, 0)])
@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 0, 3), (1, 1, 1)])
def test_transpose(perm, shape):
    x = arange(*shape)
    np.testing.assert_array_equal(evaluate("transpose", x, perm=perm), x.transpose(perm))


def test_transpose_of_a_scalar():
    assert evaluate("transpose", np.float32(3), perm=()) == 3


@pytest.mark.parametrize(
    "begin, end, step",
    [
        ((0, 0), (5, 7), (1, 1)),
        ((1, 2), (4, 7), (1, 2)),
        ((4, 6), (-1, 0), (-1, -3)),
        ((0, 3), (0, 7), (1, 1)),
        ((5, 0), (5, 7), (1, 1)),
        ((2, 6), (3, 7), (1, 1)),
    ],
)
def test_slice(begin, end, step):
    x = arange(5, 7)
    wanted = x[np.ix_(*[list(range(b, e, s)) for b, e, s in zip(begin, end, step, strict=True)])]
    np.testing.assert_array_equal(evaluate("slice", x, begin=begin, end=end, step=step), wanted)


def test_slice_of_a_scalar():
    assert evaluate("slice", np.int64(4), begin=(), end=(), step=()) == 4


@pytest.mark.parametrize(
    "shapes, axis",
    [
        ([(2, 3)], 0), ([(2, 3), (2, 3)], 0), ([(2, 3), (2, 1), (2, 4)], 1), ([(2, 0), (2, 3), (2, 0)], 1),
        ([(2, 0), (2, 0)], 1), ([(0, 2), (0, 3)], 1), ([(1,), (1,), (1,)], 0),
    ],
)  # fmt: skip
def test_concat(rng, shapes, axis):
    arrays = [rng.normal(size=s) for s in shapes]
    for op in ("concat", "join"):
        np.testing.assert_array_equal(evaluate(op, *arrays, axis=axis), np.concatenate(arrays, axis))


@pytest.mark.parametrize(
    "shape, count, axis, name",
    [((4, 16), 64, 1, "concat"), ((4, 16), 65, 1, "join"), ((4, 15), 17, 1, "join"), ((4, 15), 17, 0, "concat")],
)
def test_many_operands_are_joined(shape, count, axis, name):
    assert concat_or_join([TensorType(shape, f32)] * count, axis) == name


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("pads", [(1, 2, 3, 0), (0, 0, 0, 0), (2, 0, 0, 3), (5, 9, 4, 10)])
def test_pad(mode, pads):
    x = arange(4, 3)
    width = [(pads[0], pads[2]), (pads[1], pads[3])]
    extra = {"constant_values": 2.5} if mode == "constant" else {}
    np.testing.assert_array_equal(evaluate("pad", x, pads=pads, mode=mode, value=2.5), np.pad(x, width, mode, **extra))


def test_negative_pads_crop():
    x = arange(4, 5)
    np.testing.assert_array_equal(evaluate("pad", x, pads=(-1, 1, -1, -2)), np.pad(x[1:3, :3], [(0, 0), (1, 0)]))


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_pad_of_one_element_repeats_it(mode):
    np.testing.assert_array_equal(evaluate("pad", np.array([7], np.int32), pads=(2, 1), mode=mode), [7, 7, 7, 7])


def test_pad_of_nothing_and_of_a_scalar():
    np.testing.assert_array_equal(
        evaluate("pad", np.zeros((0, 2), np.float32), pads=(1, 0, 1, 0), value=3.0), [[3, 3]] * 2
    )
    assert evaluate("pad", np.float32(4), pads=()) == 4


@pytest.mark.parametrize(
    "shape, repeats", [((2, 3), (2, 2)), ((2, 3), (1, 0)), ((1, 3), (4, 1)), ((0,), (3,)), ((), ())]
)
def test_tile(shape, repeats):
    x = arange(*shape)
    np.testing.assert_array_equal(evaluate("tile", x, repeats=repeats), np.tile(x, repeats))


@pytest.mark.parametrize(
    "shape, to", [((), (2, 2)), ((3,), (2, 3)), ((2, 1), (4, 2, 3)), ((1,), (0,)), ((2, 3), (2, 3))]
)
def test_broadcast_to(shape, to):
    x = arange(*shape)
    np.testing.assert_array_equal(evaluate("broadcast_to", x, shape=to), np.broadcast_to(x, to))


@pytest.mark.parametrize("k", [-9, -2, 0, 1, 3, 9])
@pytest.mark.parametrize("shape", [(4, 4), (2, 3, 5), (5, 2), (0, 3), (1, 1)])
def test_trilu(shape, k):
    x = arange(*shape) + 1
    np.testing.assert_array_equal(evaluate("trilu", x, upper=True, k=k), np.triu(x, k))
    np.testing.assert_array_equal(evaluate("trilu", x, upper=False, k=k), np.tril(x, k))


X = np.zeros((2, 3), np.float32)


@pytest.mark.parametrize(
    "name, arrays, attrs, message",
    [
        ("reshape", [X], {"shape": (4, 2)}, r"reshape: f32\[2,3\] to \[4, 2\]"),
        ("reshape", [X], {"shape": (-2, -3)}, r"reshape: f32\[2,3\] to \[-2, -3\]"),
        ("transpose", [X], {"perm": (0, 0)}, r"transpose: perm \[0, 0\] of a tensor of rank 2"),
        ("slice", [X], {"begin": (0,), "end": (1,), "step": (1,)}, "slice: begin has 1 values, the tensor 2 axes"),
        ("slice", [X], {"begin": (0, 0), "end": (1, 1), "step": (1, 0)}, "slice: step 0"),
        ("slice", [X], {"begin": (0, 0), "end": (1, 4), "step": (1, 1)}, "slice: 0:4:1 leaves an axis of extent 3"),
        ("slice", [X], {"begin": (0, -1), "end": (1, 2), "step": (1, 1)}, "slice: -1:2:1 leaves an axis of extent 3"),
        ("concat", [], {"axis": 0}, "concat: no operands"),
        ("concat", [X, X.astype(int)], {"axis": 0}, "concat: operands are f32 and i64"),
        ("concat", [X, X[:, :2]], {"axis": 0}, r"concat: f32\[2,3\] and f32\[2,2\] along axis 0"),
        ("concat", [X], {"axis": 2}, "concat: axis 2 of a tensor of rank 2"),
        ("pad", [X], {"pads": (1, 1)}, "pad: 2 pads for a tensor of rank 2"),
        ("pad", [X], {"pads": (1, 1, 1, 1), "mode": "mirror"}, "pad: mode 'mirror', known: constant"),
        ("pad", [X], {"pads": (-1, 0, -2, 0)}, r"pad: pads \[-1, 0, -2, 0\] of f32\[2,3\] crop more than there is"),
        ("pad", [X[:0]], {"pads": (1, 0, 0, 0), "mode": "edge"}, "pad: mode 'edge' has nothing to repeat"),
        ("tile", [X], {"repeats": (1,)}, r"tile: repeats \[1\] of a tensor of rank 2"),
        ("broadcast_to", [X], {"shape": (2, 4)}, r"broadcast_to: f32\[2,3\] does not broadcast to \[2, 4\]"),
        ("trilu", [X[0]], {}, "trilu: x has rank 1"),
    ],
)
def test_mistyped_calls_are_refused(name, arrays, attrs, message):
    with pytest.raises(VerifyError, match=message):
        evaluate(name, *arrays, **attrs)


@pytest.mark.parametrize(
    "shape, groups", [((2, 6, 3), 2), ((1, 15, 2, 2), 3), ((1, 15), 5), ((1, 7, 2), 1), ((1, 7, 2), 7)]
)
def test_channel_shuffle(shape, groups):
    x = arange(*shape)
    n, c, *space = shape
    want = x.reshape(n, groups, c // groups, *space).swapaxes(1, 2).reshape(shape)
    np.testing.assert_array_equal(evaluate("channel_shuffle", x, groups=groups), want)


def test_channel_shuffle_in_blocks():
    x = arange(2, 24, 3)
    want = x.reshape(2, 3, 2, 4, 3).swapaxes(1, 2).reshape(2, 24, 3)
    np.testing.assert_array_equal(evaluate("channel_shuffle", x, groups=3, block=4), want)


def test_channel_shuffle_refuses_groups_that_do_not_divide():
    with pytest.raises(VerifyError, match="4 groups of the channels"):
        evaluate("channel_shuffle", arange(1, 6, 2), groups=4)
    with pytest.raises(VerifyError, match=r"2 groups of the channels of .* in blocks of 2"):
        evaluate("channel_shuffle", arange(1, 6, 2), groups=2, block=2)

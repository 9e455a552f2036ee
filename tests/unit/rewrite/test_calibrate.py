from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc.errors import UsageError
from mlc.rewrite.quantization import Calibration, interpreted, tapped
from mlc.rewrite.quantization.calibrate import calibrate
from mlc.rewrite.quantization.exponents import (
    best_exponents,
    exponent_for,
    exponent_of,
    quantised,
    squared_errors,
    weight_exponents,
)
from mlc.rewrite.quantization.ranges import Distribution, Method, asymmetric
from tests.fuzz import examples
from tests.unit.rewrite.helpers import Net


@examples(100)
@given(st.floats(1e-6, 1e6))
def test_the_first_exponent_is_the_greatest_that_saturates_nothing(greatest):
    e = int(exponent_of(greatest))
    assert greatest * 2.0**e <= 127
    assert greatest * 2.0 ** (e + 1) > 127


def test_zeros_have_an_exponent_too():
    with np.errstate(all="raise"):  # nothing that would warn, either
        assert int(exponent_of(0.0)) == int(exponent_of(-0.0)) == 0
        assert exponent_of(np.array([0.0, 1.0, 1e-30, 5e-324])).tolist() == [0, 6, 30, 30]


@examples(50)
@given(st.integers(0, 10**6), st.sampled_from([None, 0, 1]))
def test_errors_are_those_of_rounding_there_and_back(seed, axis):
    x = np.random.default_rng(seed).standard_normal((3, 4, 2)).astype(np.float32) * 5
    first = exponent_of(
        np.abs(x).max() if axis is None else np.abs(np.moveaxis(x, axis, 0)).reshape(-1, 24 // x.shape[axis]).max(1)
    )
    errors = squared_errors(x, first, axis)
    assert errors.shape == (5, *first.shape)
    for d in range(5):
        e = first + d - 2
        shape = [1, 1, 1]
        if axis is not None:
            shape[axis] = -1
            e = e.reshape(shape)
        back = np.clip(np.rint(x * 2.0**e), -127, 127) / 2.0**e
        others = None if axis is None else tuple(k for k in range(3) if k != axis)
        np.testing.assert_allclose(errors[d], np.square(back - x).sum(axis=others), rtol=1e-4, atol=1e-9)


def test_an_outlier_is_worth_losing():
    # at 2**5 the outlier fits, but all the small numbers become 0
    x = np.concatenate([np.full(400_000, 0.012), [3.9]]).astype(np.float32)
    first = exponent_of(np.abs(x).max())
    assert int(first) == 5
    assert int(best_exponents(first, squared_errors(x, first))) == 6


def test_ties_go_to_the_coarser_exponent():
    assert int(best_exponents(np.asarray(3), np.zeros(5))) == 1


@examples(50)
@given(st.integers(0, 10**6), st.sampled_from([None, 0, -1]))
def test_weights_are_symmetric_and_near(seed, axis):
    rng = np.random.default_rng(seed)
    w = (rng.standard_normal((6, 5)) * np.exp2(rng.integers(-4, 5, (6, 1)))).astype(np.float32)
    axis = None if axis is None else axis % 2
    e = weight_exponents(w, axis)
    q = quantised(w, e, axis)
    assert q.dtype == np.int8
    assert q.min() >= -127
    step = np.exp2(-e.astype(float))
    step = step if axis is None else step.reshape(-1, 1) if axis == 0 else step
    inside = np.abs(w / step) <= 127
    assert (np.abs(q * step - w) <= step / 2)[inside].all()


def test_calibration_sees_every_sample():
    n = Net()
    x = n.x(4)
    y = n.mul(x, n.c([2.0, 2.0, 2.0, 2.0]))
    graph = n(n.relu(y))
    samples = [{"x": np.array([0.1, 0.77, -0.3, 0.5], np.float32) * v} for v in (1, -9, 3)]
    told = []
    run = interpreted(tapped(graph, [x, y]))
    found = calibrate(run, {"tap0": x, "tap1": y}, samples, lambda *at: told.append(at))
    assert {v: exponent_for(d, Calibration()) for v, d in found.items()} == {x: 4, y: 3}  # 0.77 * 9 * 2**4 = 111
    assert (round(found[x].least, 5), round(found[x].most, 5)) == (-6.93, 2.7)
    assert told == [(k, 3) for k in range(1, 4)]


def test_a_histogram_counts_everything_whatever_comes_first():
    numbers = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    d, e = Distribution(), Distribution()
    for part in (numbers[:10] * 1e-3, numbers * 50, np.zeros(7, np.float32)):
        d.add(part)
    for part in (np.zeros(7, np.float32), numbers * 50, numbers[:10] * 1e-3):
        e.add(part)
    assert d.counts.sum() == 1017
    assert (d.reach, d.least, d.most) == (e.reach, e.least, e.most)
    assert np.abs(d.counts - e.counts).sum() <= 20  # of those in the middle, in which bin they are


@pytest.mark.parametrize("method", list(Method))
def test_ranges_hold_zero_and_are_within_what_was_seen(method):
    rng = np.random.default_rng(1)
    for numbers in (rng.standard_normal(5000), np.abs(rng.standard_normal(5000)), np.zeros(4), np.full(3, -2.0)):
        d = Distribution()
        d.add(numbers.astype(np.float32))
        lo, hi = d.range(Calibration(method))
        assert d.least <= lo <= 0 <= hi <= d.most
        scale, zero = asymmetric(lo, hi)
        assert scale > 0
        assert 0 <= zero <= 255
        assert (lo, hi) == (d.least, d.most) or method is not Method.MINMAX


def test_outliers_are_cut_off_by_all_but_minmax():
    rng = np.random.default_rng(2)
    d = Distribution()
    d.add(np.concatenate([rng.standard_normal(200_000), [40.0]]).astype(np.float32))
    assert d.range(Calibration(Method.MINMAX))[1] == 40.0
    for how in (Calibration(Method.PERCENTILE), Calibration(Method.ENTROPY), Calibration(Method.MSE)):
        assert 3 < d.range(how)[1] < 40


@pytest.mark.parametrize("sign", [(1,), (1, -1)])
def test_entropy_does_not_cut_off_for_what_lies_within_a_step(sign):
    """Channels without a signal give a constant each: structure that no number of steps can tell, near zero."""
    rng = np.random.default_rng(4)
    constants = rng.uniform(0.0, 0.4, 60).repeat(400)
    numbers = np.concatenate([rng.exponential(0.5, 40_000), constants]) * rng.choice(sign, 64_000)
    d = Distribution()
    d.add(numbers.astype(np.float32))
    low, high = d.range(Calibration(Method.ENTROPY))
    for found, most in ((high, d.most), *(((low, d.least),) if len(sign) > 1 else ())):
        assert 0.6 < found / most <= 1
    assert np.mean((numbers < low) | (numbers > high)) < 5e-4


def test_least_squares_are_at_most_the_errors_of_the_whole_range():
    numbers = np.random.default_rng(3).laplace(size=20_000).astype(np.float32)
    d = Distribution()
    d.add(numbers)

    def error(how):
        scale, zero = asymmetric(*d.range(how))
        return np.square((np.clip(np.rint(numbers / scale) + zero, 0, 255) - zero) * scale - numbers).sum()

    assert error(Calibration(Method.MSE)) < error(Calibration(Method.MINMAX))


def test_ways_to_calibrate_are_read_from_text():
    assert Calibration.parse("percentile=99.5") == Calibration(Method.PERCENTILE, 99.5)
    assert [str(Calibration.parse(t)) for t in ("mse", "percentile")] == ["mse", "percentile=99.99"]
    with pytest.raises(UsageError, match="no way to calibrate is called 'minmix'") as refused:
        Calibration.parse("minmix")
    assert refused.value.hint.startswith("did you mean minmax?")
    for text in ("mse=3", "percentile=20", "percentile=x"):
        with pytest.raises(UsageError, match="is no way to calibrate"):
            Calibration.parse(text)


def test_refusals():
    n = Net()
    x = n.x(2)
    y = n.reciprocal(x)
    run = interpreted(n(y))
    with pytest.raises(UsageError, match="no samples to calibrate with"):
        calibrate(run, {"out0": y}, [])
    samples = [{"x": np.ones(2, np.float32)}, {"x": np.zeros(2, np.float32)}]
    with pytest.raises(UsageError, match="reciprocal becomes infinite or NaN on sample 1"):
        calibrate(run, {"out0": y}, samples)

"""Recurrent layers against LiteRT."""

from __future__ import annotations

import re

import numpy as np
import pytest

import mlc
from mlc.errors import ImportModelError, UnsupportedError
from tests.unit.frontend.tflite.writer import T, const, imported, litert, one, same

STEPS, BATCH, SIZE, CELLS, OUTPUTS = 5, 2, 4, 6, 3


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def layer(rng, *, coupled=False, peephole=False, projection=False, norm=False, small=False, **options):
    """One layer, its states variables."""
    outputs = OUTPUTS if projection else CELLS

    def weights(*shape):
        if small:
            return const(rng.integers(-127, 128, shape), np.int8, scale=0.01)
        return const((rng.standard_normal(shape) * 0.5).astype(np.float32))

    def vector(n=CELLS):
        return const(rng.standard_normal(n).astype(np.float32))

    time_major = options.get("TimeMajor", False)
    lead = (STEPS, BATCH) if time_major else (BATCH, STEPS)
    gates = [None if coupled else weights(CELLS, SIZE), *(weights(CELLS, SIZE) for _ in range(3))]
    gates += [None if coupled else weights(CELLS, outputs), *(weights(CELLS, outputs) for _ in range(3))]
    diagonal = (lambda: weights(CELLS)) if small else vector
    peepholes = [diagonal() if peephole and not (coupled and k == 0) else None for k in range(3)]
    biases = [None if coupled else vector(), *(vector() for _ in range(3))]
    project = [weights(outputs, CELLS), vector(outputs)] if projection else [None, None]
    states = [T((BATCH, outputs), variable=True), T((BATCH, CELLS), variable=True)]
    norms = [vector() if norm and not (coupled and k == 0) else None for k in range(4)]
    operands = [rng.standard_normal((*lead, SIZE)).astype(np.float32), *gates, *peepholes, *biases, *project, *states]
    if norm:
        operands += norms
    options.setdefault("FusedActivationFunction", 4)
    return one(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", operands, [T((*lead, outputs))], "UnidirectionalSequenceLSTMOptions", **options
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"TimeMajor": True},
        {"coupled": True},
        {"peephole": True},
        {"projection": True},
        {"projection": True, "peephole": True, "CellClip": 0.7, "ProjClip": 0.4},
        {"norm": True},
        {"norm": True, "coupled": True, "peephole": True, "projection": True, "TimeMajor": True},
        {"FusedActivationFunction": 1},
    ],
    ids=str,
)
def test_lstm(rng, options):
    same(layer(rng, **options), rtol=1e-5)


HYBRID = [{}, {"coupled": True}, {"peephole": True, "projection": True}, {"norm": True, "TimeMajor": True}]


@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("options", HYBRID, ids=str)
def test_weights_of_8_bits(rng, options, asymmetric):
    """Data and state are quantised as they come, so results are the kernel's but for last digits."""
    same(layer(rng, small=True, AsymmetricQuantizeInputs=asymmetric, **options), rtol=1e-5)


def integers(rng, *, coupled=False, peephole=False, projection=0, norm=False, cells=CELLS, exponent=-11, **options):
    """One layer in integers, its states variables; ``projection`` is the number of outputs, 0 for none."""
    outputs = projection or cells

    def weights(rows, columns):
        return const(rng.integers(-127, 128, (rows, columns)), np.int8, scale=rng.uniform(0.004, 0.012))

    def bias(count=cells):
        return const(rng.integers(-4000, 4001, count), np.int32, scale=1e-5)

    def vector(scale):
        return const(rng.integers(-32767, 32768, cells), np.int16, scale=scale)

    time_major = options.get("TimeMajor", False)
    lead = (STEPS, BATCH) if time_major else (BATCH, STEPS)
    there = [not coupled, True, True, True]
    gates = [weights(cells, SIZE) if t else None for t in there] + [
        weights(cells, outputs) if t else None for t in there
    ]
    peepholes = [vector(4e-5) if peephole and t else None for t in there[:3]]
    biases = [bias() if t else None for t in there]
    project = [weights(outputs, cells), bias(outputs)] if projection else [None, None]
    states = [
        T((BATCH, outputs), "int8", scale=0.008, zero=5, variable=True),
        T((BATCH, cells), "int16", scale=2.0**exponent, variable=True),
    ]
    norms = [vector(3e-5) if norm and t else None for t in there]
    data = T((*lead, SIZE), "int8", scale=0.03, zero=-7), rng.integers(-128, 128, (*lead, SIZE)).astype(np.int8)
    within = [T((1,), "int16", scale=s) for s in (3e-4, 2e-4, 3e-4, 2.5e-4)] if norm else [T((1,), "int16")] * 4
    within.append(T((1,), "int8", scale=0.009, zero=-3 if projection else 5))
    operands = [data, *gates, *peepholes, *biases, *project, *states, *norms]
    options.setdefault("FusedActivationFunction", 4)
    results = [T((*lead, outputs), "int8", scale=0.008, zero=5)]
    table = "UnidirectionalSequenceLSTMOptions"
    return one("UNIDIRECTIONAL_SEQUENCE_LSTM", operands, results, table, version=2, intermediates=within, **options)


INTEGERS = [
    {},
    {"TimeMajor": True, "cells": 1},
    {"coupled": True, "exponent": -15},
    {"peephole": True, "exponent": -9},
    {"projection": OUTPUTS},
    {"projection": 9, "cells": 5},
    {"projection": OUTPUTS, "peephole": True, "CellClip": 0.7, "ProjClip": 0.4},
    {"projection": OUTPUTS, "peephole": True, "TimeMajor": True},
    {"norm": True},
    {"norm": True, "coupled": True, "peephole": True, "projection": OUTPUTS, "TimeMajor": True, "cells": 16},
]


@pytest.mark.parametrize("options", INTEGERS, ids=str)
def test_integers(rng, options):
    same(integers(rng, **options))


@pytest.mark.parametrize("options", INTEGERS[4:6] + INTEGERS[-1:], ids=str)
def test_compiled_integers(rng, tmp_path, options):
    model, feeds = integers(rng, **options)
    (tmp_path / "m.tflite").write_bytes(model)
    package = mlc.compile(mlc.load(tmp_path / "m.tflite"))
    # products of bytes, in and out of the recurrence
    assert not re.search(r"matmul\(%\S+: i16", package.members["graph.txt"].decode())
    with package.load(1) as module:
        (got,) = module.run(feeds).values()
    np.testing.assert_array_equal(got, litert(model, feeds)[0])


def test_what_is_not_supported_is_refused(rng):
    x = T((2, 3, 4), "int16", scale=0.1), np.zeros((2, 3, 4), np.int16)
    with pytest.raises(UnsupportedError, match="an LSTM on i16"):
        imported(one("UNIDIRECTIONAL_SEQUENCE_LSTM", [x], [T((2, 3, 4), "int16", scale=0.1)])[0])
    model, _ = one("UNIDIRECTIONAL_SEQUENCE_LSTM", [np.zeros((2, 3, 4), np.float32)], [T((2, 3, 4))])
    with pytest.raises(ImportModelError, match=r"weights.* is missing"):
        imported(model)

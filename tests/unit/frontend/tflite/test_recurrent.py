"""Recurrent layers against LiteRT."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import ImportModelError, UnsupportedError
from tests.unit.frontend.tflite.writer import T, const, imported, one, same

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
    peepholes = [vector() if peephole and not (coupled and k == 0) else None for k in range(3)]
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


def test_what_is_not_supported_is_refused(rng):
    x = T((2, 3, 4), "int8", scale=0.1), np.zeros((2, 3, 4), np.int8)
    with pytest.raises(UnsupportedError, match="an LSTM on i8"):
        imported(one("UNIDIRECTIONAL_SEQUENCE_LSTM", [x], [T((2, 3, 4), "int8", scale=0.1)])[0])
    model, _ = one("UNIDIRECTIONAL_SEQUENCE_LSTM", [np.zeros((2, 3, 4), np.float32)], [T((2, 3, 4))])
    with pytest.raises(ImportModelError, match="a gate has no weights"):
        imported(model)

from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import ScheduleError
from mlc.vdla.config import PROFILES
from mlc.vdla.schedules.finish import Epilogue, Lift
from tests.unit.vdla.schedules.layers import make_layer

FULL, NARROW = PROFILES["full"], PROFILES["osdi18_i8"]


def places(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_what_the_matrix_unit_adds() -> None:
    def epilogue(**facts: int) -> Epilogue:
        return Epilogue.of(make_layer(kernel=(1, 1), **facts), FULL)

    assert (epilogue().passes, epilogue().residual) == (0, None)
    assert (epilogue(bias=242_062, residual=6).passes, epilogue(residual=6).residual) == (1, Lift(6, 1))
    assert epilogue(bias=242_063).passes == 2
    assert (epilogue(bias=1 << 30).bias, epilogue(bias=1 << 30).passes) == ("vector", 0)
    assert epilogue(residual=9).residual == Lift(9, 1, 3)


def test_how_a_tensor_comes_among_the_accumulators() -> None:
    assert Lift.of(places(0), FULL) == Lift(0, 1)
    assert Lift.of(places(0), FULL, matrix=False) == Lift(0)
    assert Lift.of(places(5), FULL, matrix=False) == Lift(5, 0, 5)
    assert Lift.of(places(5, 5), NARROW) == Lift(5, 1)
    assert Lift.of(places(5, 4), FULL) == Lift("vector")
    assert [Lift.of(places(k), FULL).cycles for k in (6, 7)] == [1, 2]
    vector = np.arange(16, dtype=np.int32).reshape(1, 16)
    assert Lift("vector").constants("r", (16, 16), vector)["r_scale"].tolist() == [[1 << k for k in range(16)]]
    assert Lift(3, 0, 3).constants("r", (16, 16), vector) == {}
    assert (Lift(8, 1, 2).constants("r", (16, 16), vector)["r_identity"] == 64 * np.eye(16, dtype=np.int8)).all()


def test_without_an_alu_lifting_takes_more_products() -> None:
    layer = make_layer(residual=8)
    assert Epilogue.of(layer, NARROW).residual == Lift(8, 3)
    assert [tile[0, 0] for tile in Epilogue.of(layer, NARROW).constants(layer, (16, 16))["residual_identity"]] == [
        127,
        127,
        2,
    ]
    assert Epilogue.of(make_layer(residual=10), NARROW).residual == Lift(10, 9)


@pytest.mark.parametrize(("count", "matrix"), [(11, True), (0, False)])
def test_refusals(count: int, matrix: bool) -> None:
    with pytest.raises(ScheduleError, match=f"a residual that is moved up by {count} places needs ext_alu"):
        Lift.of(places(count), NARROW, matrix=matrix)

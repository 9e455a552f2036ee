"""Recurrences on a device: round by round, with nothing on the host in between."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import mlc
from mlc.targets.gpu import accelerator
from mlc.targets.gpu.program import GpuProgram, unpack
from mlc.targets.opencl.driver import OpenClDevice
from tests.e2e.compiled import assert_same, load, network, reference
from tests.e2e.test_loops import loop, node, normal
from tests.e2e.test_recurrent import recurrent

TARGET = "opencl -device=pocl"


def check(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> GpuProgram:
    """All of a model runs on the device, in one region, and gives what it should."""
    package = mlc.compile(load(model), TARGET, verify_passes=True)
    assert {d.region for d in package.offloads} == {"region0"}
    with package.load(1) as module:
        for _ in range(2):
            assert_same(module.run(feeds), reference(model, feeds), tolerance=2e-5)
    (data,) = (data for name, data in package.members.items() if name.startswith("device/"))
    assert isinstance(data, bytes)
    (program,) = unpack(data)
    return program


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    "op, steps, batch, layers, direction, lengths, initial, hidden",
    [
        ("LSTM", 1, 3, 1, "bidirectional", True, True, 9),
        ("LSTM", 7, 1, 2, "forward", False, False, 128),  # rows of the state begin where operands may
        ("GRU", 2, 3, 1, "reverse", True, True, 9),
        ("RNN", 12, 2, 1, "bidirectional", True, False, 9),
    ],
)
def test_recurrent_layers(
    pocl: OpenClDevice,
    op: str,
    steps: int,
    batch: int,
    layers: int,
    direction: str,
    lengths: bool,
    initial: bool,
    hidden: int,
) -> None:
    check(*recurrent(op, steps, batch, layers, direction, lengths, initial, hidden))


def test_a_recurrence_in_a_recurrence(pocl: OpenClDevice) -> None:
    nodes = [
        node("Reshape", ["h", "state"], ["first"]),
        node("LSTM", ["x", "w", "r", "", "", "first"], ["", "y_h", ""], hidden_size=4),
        node("Reshape", ["y_h", "flat"], ["g"]),
        node("Identity", ["g"], ["row"]),
    ]
    feeds = {"h0": normal(4), "x": normal(6, 1, 3)}
    stored = {"m": np.int64(5), "w": normal(1, 16, 3), "r": normal(1, 16, 4)}
    shapes = {"state": np.int64([1, 1, 4]), "flat": np.int64([4])}
    program = check(network([loop(nodes, ["last", "all"], **shapes)], feeds, ["last", "all"], stored), feeds)
    assert len(program.commands) >= 30
    assert len(program.steps) < 20  # a row of a profile for each node, not for each round


def test_rounds_of_a_profile_are_added_up(pocl: OpenClDevice) -> None:
    short, long = (check(*recurrent("LSTM", steps, 1, 1, "forward", False, False)) for steps in (3, 6))
    assert len(short.steps) == len(long.steps)
    assert sum(s.flops for s in long.steps) == 2 * sum(s.flops for s in short.steps)


def test_more_launches_than_a_program_holds_stay_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "MOST_LAUNCHES", 10)
    model, _ = recurrent("LSTM", 40, 1, 1, "forward", False, False)
    package = mlc.compile(load(model), TARGET)
    (left,) = (d for d in package.offloads if not d.region)
    assert left.operators == ("scan",)
    assert "launches, 10 are the most" in left.reason

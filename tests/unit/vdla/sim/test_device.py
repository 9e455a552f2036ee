"""Whole programs on the simulated device, against numpy; what a run reports."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from benchmarks.vdla_sim import Convolution
from mlc.errors import DeviceError, ProgramError
from mlc.vdla.check import check
from mlc.vdla.config import PROFILES, with_fields
from mlc.vdla.sim import Device, Report
from mlc.vdla.sim.report import (
    entry,
    eta,
    gops,
    intensity,
    layer_ranges,
    peak_gops,
    roof_gops,
    roof_share,
    useful,
    util,
)
from tests.unit.vdla.convolutions import FULL, POINTWISE, STRIDED, TINY, Case, case


def run(given: Case, **options: bool) -> tuple[np.ndarray, Report]:
    device = Device(FULL)
    y = np.zeros_like(given.expected)
    for name, array in (("x", given.x), ("w", given.w), ("y", y)):
        device.bind(name, array)
    return y, device.run(given.program, **options)


@pytest.mark.parametrize("layer", [TINY, STRIDED, POINTWISE], ids=lambda layer: layer.name)
def test_convolutions_match_numpy(layer: Convolution) -> None:
    given = case(layer)
    assert check(given.program) == []
    y, report = run(given)
    np.testing.assert_array_equal(y, given.expected)
    assert report.cycles > 0


def test_bytes_and_products_match_the_closed_form() -> None:
    layer = TINY
    _, report = run(case(layer))
    total = report.total
    assert total is not None
    tiles, chunks = layer.out // layer.rows, layer.inputs // 16
    rows = layer.size + 2 * (tiles - 1)  # of all tiles together: each needs one more on the sides that it shares
    weights = 9 * layer.inputs * layer.outputs
    assert total.bytes == {
        "UOP": 16 * 9 * layer.blocks * layer.rows,
        "WGT": tiles * weights,
        "INP": rows * layer.size * layer.inputs,
        "OUT": layer.out**2 * layer.outputs,
    }
    assert total.macs == layer.macs == 256 * total.mac_cycles  # this one has nothing to pad
    assert total.task_bytes == total.compulsory_bytes
    assert total.compulsory_bytes == weights + layer.size**2 * layer.inputs + layer.out**2 * layer.outputs
    assert report.tokens["ld->cmp"] == tiles * chunks
    bound = max(total.mac_cycles, sum(total.bytes.values()) / FULL.bytes_per_cycle)
    assert total.cycles >= bound
    assert util(total) == total.mac_cycles / total.cycles
    reached, at, used = gops(total, FULL), intensity(total), useful(total, FULL)
    assert used == util(total)
    assert at == 2 * layer.macs / total.compulsory_bytes
    assert reached == pytest.approx(peak_gops(FULL) * util(total))
    assert reached is not None
    assert reached <= roof_gops(at, FULL)
    assert eta(total, FULL) == roof_share(total, FULL) <= 1


def test_what_the_array_does_besides_is_no_use() -> None:
    given = case(TINY)
    _, plain = run(given)
    given.program.meta["layers"][0] |= {"macs": TINY.macs // 16, "bytes": TINY.task["bytes"] // 2}
    _, report = run(given)
    for part, before in ((report.total, plain.total), (report.layers[0], plain.layers[0])):
        assert part is not None
        assert before is not None
        found, wanted = entry(part, FULL), entry(before, FULL)
        assert {key: found[key] for key in ("util", "eta", "mac_cycles", "bytes", "compulsory_bytes")} == {
            key: wanted[key] for key in ("util", "eta", "mac_cycles", "bytes", "compulsory_bytes")
        }
        for key, by in (("useful", 16), ("gops", 16), ("intensity", 8), ("macs", 16), ("task_bytes", 2)):
            assert found[key] == pytest.approx(wanted[key] / by)
        bound = max(TINY.macs / 16 / 256, TINY.task["bytes"] / 2 / FULL.bytes_per_cycle)
        assert found["roof_share"] == pytest.approx(bound / part.cycles)


def test_a_program_that_does_not_say_what_it_is_for_has_no_useful_work() -> None:
    given = case(TINY)
    del given.program.meta["layers"][0]["macs"]
    _, report = run(given)
    document = report.to_dict()
    unknown = ("macs", "useful", "gops", "intensity", "roof_gops", "roof_share")
    for part in (document, document["layers"][0]):
        assert [part[key] for key in unknown] == [None] * 6
        assert part["util"] > 0


def test_a_layer_alone_has_the_figures_of_the_whole() -> None:
    given = case(TINY)
    given.program.meta["layers"][0]["last"] = len(given.program.instructions)
    _, report = run(given)
    assert report.total is not None
    assert [dataclasses.replace(layer, name="") for layer in report.layers] == [report.total]


def test_layers_add_up_to_the_whole() -> None:
    given = case(TINY)
    half, end = 9, len(given.program.instructions)
    given.program.meta["layers"] = [
        {"name": "a", "first": 0, "last": half, "macs": 3000, "bytes": 40},
        {"name": "b", "first": half, "last": end, "macs": 500, "bytes": 6},
    ]
    _, report = run(given)
    total, layers = report.total, report.layers
    assert total is not None
    assert sum(layer.cycles for layer in layers) == pytest.approx(total.cycles)
    for name in ("macs", "task_bytes", "mac_cycles", "instructions", "port_busy"):
        assert sum(getattr(layer, name) for layer in layers) == pytest.approx(getattr(total, name))
    assert sum(sum(layer.bytes.values()) for layer in layers) == sum(total.bytes.values())


@pytest.mark.parametrize(
    "layers, message",
    [
        ([{"name": "a", "first": 0}], "lacks a name, a first or a last"),
        (["a"], "lacks a name, a first or a last"),
        (7, "layers are 7; expected a list"),
        ([{"name": "a", "first": 0, "last": 9}, {"name": "b", "first": 8, "last": 9}], "does not follow"),
        ([{"name": "a", "first": 3, "last": 2}], "does not follow"),
        ([{"name": 1, "first": 0, "last": 2}], "does not follow"),
        ([{"name": "a", "first": 0, "last": 11}], "ends at instruction 11 of 10"),
        ([{"name": "a", "first": 0, "last": 5, "macs": -1}], "layer 'a' has -1 macs and None bytes; expected numbers"),
        ([{"name": "a", "first": 0, "last": 5, "bytes": "7"}], "layer 'a' has None macs and '7' bytes"),
    ],
)
def test_malformed_layers_are_refused(layers: list, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        layer_ranges({"layers": layers}, 10)


def test_the_report_is_json_with_its_assumptions() -> None:
    _, report = run(case(TINY))
    document = json.loads(json.dumps(report.to_dict()))
    assert document["profile"] == "full"
    assert document["cycles"] == report.cycles
    assert "name" not in document
    assert document["layers"][0]["name"] == "tiny"
    assert any("assumed" in line for line in document["assumptions"])
    assert {"busy", "stalls", "latency", "port", "bytes", "util", "useful", "eta", "gops"} <= document.keys()
    assert document["stalls"]["CMP"].keys() <= {"ld->cmp", "st->cmp", "fetch", "full"}


def test_computing_and_timing_can_be_left_out() -> None:
    given = case(TINY)
    y, report = run(given, timing=False)
    np.testing.assert_array_equal(y, given.expected)
    assert (report.cycles, report.total) == (0, None)
    assert "cycles" not in report.to_dict()
    with_times = run(given)[1].total
    assert Device(FULL).run(given.program, exec=False).total == with_times


def test_times_of_another_clock_need_no_other_program() -> None:
    given = case(TINY)
    slow = Device(with_fields(FULL, {"dram_latency": 500})).run(given.program, exec=False)
    assert slow.cycles > Device(FULL).run(given.program, exec=False).cycles


def test_a_run_leaves_no_memory_behind() -> None:
    given = case(TINY)
    device = Device(FULL)
    for _ in range(2):
        device.run(given.program, exec=False)
        assert device.dram.alloc(1) == 0
        device.dram.free(0)


def test_wrong_bindings_and_programs_are_refused() -> None:
    given = case(TINY)
    device = Device(FULL)
    with pytest.raises(DeviceError, match="nothing is bound to the input 'x'"):
        device.run(given.program)
    device.bind("x", given.x[:1])
    with pytest.raises(DeviceError, match="buffer 'x' has 2048 bytes, the array bound to it 1024"):
        device.run(given.program)
    device.bind("x", given.x)
    device.bind("w", given.w)
    with pytest.raises(DeviceError, match="nothing is bound to the output 'y'"):
        device.run(given.program)
    with pytest.raises(DeviceError, match="'x' is not contiguous"):
        device.bind("x", given.x[:, ::2])
    with pytest.raises(ProgramError, match="the program is for configuration"):
        Device(PROFILES["osdi18"]).run(given.program)


def test_an_empty_part_has_no_figures_to_divide() -> None:
    _, report = run(case(TINY))
    assert report.total is not None
    nothing = dataclasses.replace(report.total, cycles=0.0, macs=0, task_bytes=0, bytes={})
    found = entry(nothing, FULL)
    shares = ("util", "useful", "eta", "gops", "intensity", "port_utilisation", "roof_share")
    assert [found[key] for key in shares] == [0] * 7

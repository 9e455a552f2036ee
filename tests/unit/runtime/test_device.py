"""Packages whose steps are shared with a device: manifests, drivers, and the executor between the two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mlc.errors import DeviceError, PackageError, UsageError
from mlc.ir.graph import Graph
from mlc.ir.interp import run_graph
from mlc.runtime import DeviceCall, DeviceSpec, Manifest, PlaceSpec, load_module, open_package
from mlc.runtime.device import open_device
from tests.devices import ToyAccelerator, ToyDriver, ToyPoint, toy_package
from tests.unit.rewrite.test_offload import Bytes


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> list[ToyPoint]:
    """The drivers that are installed; only the toy's unless changed."""
    found = [ToyPoint()]
    monkeypatch.setattr("mlc.runtime.device.entry_points", lambda group: found if group == "mlc.devices" else [])
    return found


def network() -> Graph:
    n = Bytes()
    x = n.x(1, 6, 4, 4, dtype="i8")
    first = n.layer(x)
    host = n.abs(first)
    return n(n.layer(n.layer(first, 1), 2, residual=host), host)


FEEDS = {"x": np.random.default_rng(0).integers(-128, 128, (1, 6, 4, 4)).astype(np.int8)}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return toy_package(network(), tmp_path / "module.tar", ToyAccelerator())


@pytest.fixture
def expected() -> dict[str, np.ndarray]:
    return run_graph(network(), FEEDS)


def same(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array)


def test_host_and_device_take_turns(points: list, package: Path, expected: dict[str, np.ndarray]) -> None:
    with load_module(package, 1) as module:
        for _ in range(2):
            same(module.run(FEEDS), expected)
        regions = [run.step.kernel for run in module.device_runs]
        assert regions == ["region0", "region1"]
        assert module.device_runs[0].report == {"cycles": 200, "seconds": 0.2}
        calls = [s.device.action for s in module.manifest.steps if s.device is not None]
        assert calls.count("run") == 2
        assert calls[0] == "copy_to"


def test_a_device_s_own_clock_counts(points: list, package: Path) -> None:
    with load_module(package, 1) as module:
        profile = module.profile(FEEDS, repeats=2)
        assert [t.ns for t in profile if t.step.device and t.step.device.action == "run"] == [(200_000_000,) * 2] * 2
        assert all(t.min_ns > 0 for t in profile)
        (time,) = module.benchmark(FEEDS, 0, max_runs=1)
        assert 400_000_000 < time < 500_000_000
        assert module.phases["kernels"] == [400_000_000]
        assert sum(sum(ns) for ns in module.phases.values()) == time
        assert all(module.phases[name] > [0] for name in ("to device", "from device", "host"))


def test_a_device_that_times_its_kernels_has_a_step_for_each(
    points: list, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Timed(ToyDriver):
        def profile(self, program: bytes, addresses: list[int]) -> dict[str, object]:
            both = [{"name": f"k{i}", "seconds": 1e-3 * i, "flops": i, "bytes": 8, "sources": ["a"]} for i in (1, 2)]
            return {**self.run(program, addresses), "kernels": both}

    monkeypatch.setattr(ToyPoint, "load", lambda self: Timed)
    with load_module(package, 1) as module:
        profile = module.profile(FEEDS, repeats=2)
        own = [t for t in profile if t.step.kernel in ("k1", "k2")]
        assert [(t.step.kernel, t.ns, t.step.flops) for t in own[:2]] == [
            ("k1", (1_000_000,) * 2, 1),
            ("k2", (2_000_000,) * 2, 2),
        ]
        assert len(own) == 4
        assert len(profile) == len(module.manifest.steps) + 2


def test_a_trace_has_device_memory_of_its_own(points: list, package: Path, expected: dict[str, np.ndarray]) -> None:
    with load_module(package, 1) as module:
        other = {"x": FEEDS["x"] + np.int8(1)}
        seen = {}
        for _, results in module.trace(FEEDS):
            module.run(other)
            seen.update(results)
        same({"out0": seen[network().outputs[0].name], "out1": seen[network().outputs[1].name]}, expected)


def test_closing_gives_the_device_back(points: list, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[ToyDriver] = []

    class Watched(ToyDriver):
        def __init__(self, options: dict[str, str]) -> None:
            super().__init__(options)
            opened.append(self)

    monkeypatch.setattr(ToyPoint, "load", lambda self: Watched)
    with load_module(package, 1) as module:
        assert opened[0].open
    assert not opened[0].open
    with pytest.raises(UsageError, match="closed"):
        module.run(FEEDS)


def test_a_missing_driver_is_named(points: list, package: Path) -> None:
    points[:] = [ToyPoint("other")]
    with pytest.raises(DeviceError, match=r"module\.tar: the module needs the device 'toy', which has no driver") as e:
        load_module(package)
    assert "drivers here: other" in e.value.hint
    points.clear()
    with pytest.raises(DeviceError, match="has no driver") as e:
        load_module(package)
    assert "drivers here: none" in e.value.hint


def test_drivers_that_cannot_be_told_apart_or_imported(points: list) -> None:
    points.append(ToyPoint("toy", "another:Driver"))
    with pytest.raises(DeviceError, match=r"several drivers are called 'toy': another:Driver, tests\.devices"):
        open_device("toy", {})
    points[:] = [ToyPoint(error="No module named 'gone'")]
    with pytest.raises(DeviceError, match="'toy' cannot be imported: No module named 'gone'"):
        open_device("toy", {})


def test_a_device_that_refuses_a_program_is_given_back(
    points: list, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[ToyDriver] = []

    def refuse(self: ToyDriver, program: bytes) -> Graph:
        raise DeviceError("the program is for another toy")

    monkeypatch.setattr(ToyDriver, "load", refuse)
    monkeypatch.setattr(ToyDriver, "close", lambda self: closed.append(self))
    with pytest.raises(DeviceError, match=r"module\.tar: device/region0\.toy: the program is for another"):
        load_module(package)
    assert len(closed) == 1


def test_the_native_code_refuses_to_run_alone(points: list, package: Path) -> None:
    with open_package(package) as opened:
        header = opened.read("include/mlc_model.h").decode()
        assert opened.read("device/region0.toy").startswith(b"toy program")
    assert 'NEEDS THE RUNTIME OF mlc: parts of the model run on the device "toy"' in header
    with load_module(package, 1) as module:
        native = module._native
        assert native.run(*module._call) == 1


def manifest_of(package: Path) -> Manifest:
    with open_package(package) as opened:
        return opened.manifest


def test_a_manifest_with_a_device_reads_as_it_was_written(points: list, package: Path) -> None:
    manifest = manifest_of(package)
    assert Manifest.from_text(manifest.to_text()) == manifest
    assert manifest.device is not None
    assert (manifest.device.name, manifest.device.options) == ("toy", {"speed": "5"})


def there(offset: int, nbytes: int) -> PlaceSpec:
    return PlaceSpec("device", offset, nbytes)


def here(nbytes: int, space: str = "workspace") -> PlaceSpec:
    return PlaceSpec(space, 0, nbytes)


WRONG: list[tuple[Callable[[Manifest], Manifest], str]] = [
    (lambda m: replace(m, device=None), "since the package names none"),
    (lambda m: with_call(m, DeviceCall("jump", ())), "action: expected copy_to, copy_from or run"),
    (lambda m: with_call(m, DeviceCall("copy_to", (there(0, 4), here(4)))), "places: expected places for copy_to"),
    (lambda m: with_call(m, DeviceCall("copy_to", (here(8), there(0, 4)))), "places: expected places for copy_to"),
    (lambda m: with_call(m, DeviceCall("copy_from", (there(0, 4),))), "places: expected places for copy_from"),
    (lambda m: with_call(m, DeviceCall("run", (here(4),))), "places: expected places for run"),
    (lambda m: with_call(m, DeviceCall("run", (there(0, 4),), "device/none")), "program: expected the name of a"),
    (lambda m: with_call(m, DeviceCall("run", (there(1 << 40, 4),), "device/region0.toy")), "lie outside a space"),
    (lambda m: with_call(m, DeviceCall("copy_to", (here(4, "attic"), there(0, 4)))), "expected one of workspace"),
    (lambda m: with_call(m, DeviceCall("copy_to", (here(1 << 40), there(0, 1 << 40)))), "lie outside a space"),
    (lambda m: replace(m, device=DeviceSpec("toy", 0, {"speed": "5"})), "lie outside a space of 0 bytes"),
]  # fmt: skip


def with_call(manifest: Manifest, call: DeviceCall) -> Manifest:
    steps = (replace(manifest.steps[0], device=call), *manifest.steps[1:])
    return replace(manifest, steps=steps)


@pytest.mark.parametrize(("change", "message"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_device_step_is_refused(
    points: list, package: Path, change: Callable[[Manifest], Manifest], message: str
) -> None:
    with pytest.raises(PackageError, match=message):
        change(manifest_of(package)).check()

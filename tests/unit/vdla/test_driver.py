"""The driver: memory, programs, single instructions with their tokens, and the face that packages see."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import DeviceError, ProgramError, UsageError
from mlc.vdla.check import check
from mlc.vdla.config import PROFILES
from mlc.vdla.driver import Backend, Driver, open_device
from mlc.vdla.isa import Alu, AluOp, Finish, Gemm, GemmMode, Load, Mem, Store, Unit, is_nop, pack_uop
from mlc.vdla.program import BufferSpec, Program
from tests.unit.vdla.convolutions import FULL, TINY, case


def test_a_program_runs_on_what_it_is_bound_to() -> None:
    given = case(TINY)
    with Driver(FULL) as driver:
        loaded = driver.load_program(given.program.to_bytes())
        places = {}
        for name, array in (("x", given.x), ("w", given.w), ("y", given.expected)):
            places[name] = driver.alloc(array.nbytes)
            driver.bind(loaded, name, places[name])
        for scale in (1, -1):
            driver.write(places["x"], given.x)
            driver.write(places["w"], given.w if scale == 1 else -np.maximum(given.w, -127))
            driver.push(loaded)
            report = driver.sync()
            y = driver.read(places["y"], given.expected.nbytes).view(np.int8).reshape(given.expected.shape)
            assert np.array_equal(y, given.expected) == (scale == 1)
        assert report.cycles > 0
        assert driver.load_program(given.program).program is given.program


def test_times_are_simulated_once() -> None:
    given = case(TINY)
    driver = Driver(FULL, Backend.TSIM)
    loaded = driver.load_program(given.program)
    for name in ("x", "w", "y"):
        driver.bind(loaded, name, driver.alloc(1 << 16))
    reports = []
    for _ in range(2):
        driver.push(loaded)
        reports.append(driver.sync())
    assert reports[0] is reports[1]


@pytest.mark.parametrize("backend", list(Backend))
def test_single_instructions_with_tokens_between_units(backend: Backend) -> None:
    """acc = x + 5 for 16 vectors, stored; every dependency as the driver is told of it."""
    driver = Driver(FULL, backend)
    x = np.arange(-128, 128, dtype=np.int32).reshape(16, 16)
    source, target, uops = driver.alloc(x.nbytes), driver.alloc(x.nbytes), driver.alloc(256)
    driver.write(source, x)
    driver.write(uops, pack_uop(0, 0, 0, 0, FULL).reshape(1))
    driver.push(Load(Mem.UOP, 0, uops // 4, 1, 1, 1))
    driver.push(Load(Mem.ACC, 0, source // 64, 1, 16, 16))
    driver.push(Alu(AluOp.ADD, True, 5, 0, 1, 1, 16, 0, 1, 0, 0))
    driver.dep_push(Unit.CMP, Unit.ST)
    driver.dep_pop(Unit.CMP, Unit.ST)
    driver.push(Store(Mem.ACC, 0, target // 64, 1, 16, 16))
    report = driver.sync()
    y = driver.read(target, x.nbytes).view(np.int32).reshape(x.shape)
    np.testing.assert_array_equal(y, np.zeros_like(x) if backend is Backend.TSIM else x + 5)
    assert (report.cycles > 0) == (backend is not Backend.FSIM)
    finish = report.instructions[-1]
    assert isinstance(finish, Finish)
    assert finish.pop_next
    assert not finish.pop_prev


def test_the_stream_of_a_driver_is_valid() -> None:
    driver = Driver(FULL, Backend.TSIM)
    driver.push(Load(Mem.UOP, 0, 1000, 1, 1, 1))
    for tile in range(3):
        if tile:
            driver.dep_pop(Unit.CMP, Unit.LD)
        driver.push(Load(Mem.INP, 0, 2000, 1, 1, 1))
        driver.push(Load(Mem.WGT, 0, 200, 1, 1, 1))
        driver.dep_push(Unit.LD, Unit.CMP)
        driver.dep_pop(Unit.LD, Unit.CMP)
        if tile:
            driver.dep_pop(Unit.ST, Unit.CMP)
        driver.push(Gemm(GemmMode.SET, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0))
        if tile < 2:
            driver.dep_push(Unit.CMP, Unit.LD)
        driver.dep_push(Unit.CMP, Unit.ST)
        driver.dep_pop(Unit.CMP, Unit.ST)
        driver.push(Store(Mem.OUT, 0, 50_000 + tile, 1, 1, 1))
        if tile < 2:
            driver.dep_push(Unit.ST, Unit.CMP)
    stream = list(driver.sync().instructions)
    bases = {Mem.UOP: 1000, Mem.INP: 2000, Mem.WGT: 200, Mem.OUT: 50_000}
    buffers = [BufferSpec("u", "uop", 4), BufferSpec("x", "in", 16), BufferSpec("w", "in", 256)]
    buffers.append(BufferSpec("y", "out", 48))
    relocations = {}
    for at, x in enumerate(stream):
        if isinstance(x, Load | Store) and not is_nop(x):
            stream[at] = x.at(x.dram_base - bases[x.mem])
            relocations[at] = list(bases).index(x.mem)
    uops = pack_uop(0, 0, 0, 1, FULL).reshape(1)
    assert check(Program(FULL, stream, uops, buffers=buffers, relocations=relocations)) == []
    assert not any(is_nop(x) for x in stream if x.unit is not Unit.LD)


def test_tokens_without_an_instruction_to_carry_them_get_a_nop() -> None:
    driver = Driver(FULL, Backend.TSIM)
    driver.dep_push(Unit.LD, Unit.CMP)  # nothing was given to LD yet
    driver.dep_push(Unit.LD, Unit.CMP)  # the one before gives a token already
    driver.dep_pop(Unit.LD, Unit.CMP)
    driver.dep_pop(Unit.LD, Unit.CMP)  # nothing is between the two
    driver.dep_push(Unit.CMP, Unit.ST)  # after what was just waited for
    driver.dep_pop(Unit.CMP, Unit.ST)
    stream = driver.sync().instructions
    flags = [(x.unit, x.pop_prev, x.pop_next, x.push_prev, x.push_next) for x in stream]
    assert flags == [
        (Unit.LD, False, False, False, True),
        (Unit.LD, False, False, False, True),
        (Unit.CMP, True, False, False, False),
        (Unit.CMP, True, False, False, True),
        (Unit.ST, True, False, True, False),
        (Unit.LD, False, False, False, True),
        (Unit.CMP, True, True, False, False),
    ]
    assert len(driver.sync().instructions) == 1


def test_a_finish_of_ones_own_is_the_last_word() -> None:
    driver = Driver(FULL, Backend.TSIM)
    driver.push(Finish())
    assert driver.sync().instructions == [Finish()]


def test_what_is_bound_has_room_and_a_place_of_its_own() -> None:
    given = case(TINY)
    driver = Driver(FULL)
    loaded = driver.load_program(given.program)
    size = {spec.name: spec.nbytes for spec in given.program.buffers}
    places = {name: driver.alloc(size[name]) for name in ("x", "w", "y")}
    with pytest.raises(DeviceError, match=f"output 'y' of {size['y']} bytes does not fit at address 1048576: 0 bytes"):
        driver.bind(loaded, "y", 1 << 20)
    small = driver.alloc(256)
    room = driver.alloc(1 << 16)
    assert size["x"] > 256
    with pytest.raises(DeviceError, match=f"input 'x' of {size['x']} bytes does not fit at address {small}: 256 bytes"):
        driver.bind(loaded, "x", small)
    with pytest.raises(DeviceError, match="does not fit"):
        driver.bind(loaded, "x", room + (1 << 16) - size["x"] + 1)
    own = next(spec for spec in given.program.buffers if spec.kind == "uop")
    with pytest.raises(DeviceError, match=f"input 'x' would lie over '{own.name}', which the program keeps"):
        driver.bind(loaded, "x", loaded.places[own.name])
    driver.bind(loaded, "x", places["x"])
    driver.bind(loaded, "x", places["x"])  # again, as it was
    with pytest.raises(DeviceError, match="output 'y' would lie over the input 'x'"):
        driver.bind(loaded, "y", places["x"])
    driver.bind(loaded, "y", room + 256)
    with pytest.raises(DeviceError, match="input 'w' would lie over the output 'y'"):
        driver.bind(loaded, "w", room + 256 + (size["y"] - 1) // 256 * 256)
    driver.unbind(loaded)
    driver.bind(loaded, "y", places["x"] if size["y"] <= size["x"] else room)
    driver.bind(loaded, "w", places["w"])


def test_inputs_may_share_a_place() -> None:
    given = case(TINY)
    driver = Driver(FULL)
    loaded = driver.load_program(given.program)
    room = driver.alloc(1 << 16)
    driver.bind(loaded, "x", room)
    driver.bind(loaded, "w", room)


def test_wrong_calls_are_refused() -> None:
    given = case(TINY)
    driver = Driver(FULL)
    loaded = driver.load_program(given.program)
    for call in (driver.dep_push, driver.dep_pop):
        with pytest.raises(DeviceError, match="no queue leads from LD to ST"):
            call(Unit.LD, Unit.ST)
    with pytest.raises(ProgramError, match="no buffer is called 'z'"):
        driver.bind(loaded, "z", 0)
    with pytest.raises(DeviceError, match="'uops' is neither an input nor an output"):
        driver.bind(loaded, "uops", 0)
    driver.push(loaded)
    with pytest.raises(DeviceError, match="a program is a stream of its own"):
        driver.push(Finish())
    with pytest.raises(DeviceError, match="nothing is bound to the buffer 'x'"):
        driver.sync()
    driver.push(Finish())
    with pytest.raises(DeviceError, match="a program is a stream of its own"):
        driver.push(loaded)
    with pytest.raises(ProgramError, match="the program is for configuration"):
        Driver(PROFILES["osdi18"]).load_program(given.program)
    driver.close()
    driver.close()
    with pytest.raises(DeviceError, match="the device is closed"):
        driver.alloc(1)


def test_a_package_sees_addresses_and_few_figures() -> None:
    given = case(TINY)
    device = open_device({"profile": "full", "dram_latency": "60"})
    loaded = device.load(given.program.to_bytes())
    arena = device.allocate(1 << 17)
    addresses = [arena, arena + (1 << 15), arena + (1 << 16)]
    for address, array in zip(addresses, (given.x, given.w), strict=False):
        device.write(address, array.reshape(-1).view(np.uint8))
    found = device.run(loaded, addresses)
    y = np.zeros(given.expected.nbytes, np.uint8)
    device.read(addresses[2], y)
    np.testing.assert_array_equal(y.view(np.int8).reshape(given.expected.shape), given.expected)
    assert found["seconds"] == pytest.approx(found["cycles"] / 200e6, rel=1e-3)
    assert [layer["name"] for layer in found["layers"]] == ["tiny"]
    assert any("DRAM latency 60 cycles" in line for line in found["assumptions"])
    with pytest.raises(DeviceError, match="has 3 inputs and outputs; 2 addresses were given"):
        device.run(loaded, addresses[:2])
    device.free(arena)
    device.close()


def test_options_of_a_package_are_checked() -> None:
    given = case(TINY)
    device = open_device({"backend": "fsim"})
    loaded = device.load(given.program.to_bytes())
    assert device.run(loaded, [device.allocate(1 << 15) for _ in range(3)]) == {}
    with pytest.raises(UsageError, match="no backend is called 'rtl'"):
        open_device({"backend": "rtl"})
    with pytest.raises(UsageError, match="no profile is called 'none'"):
        open_device({"profile": "none"})
    with pytest.raises(UsageError, match="no field 'speed'"):
        open_device({"speed": "9"})

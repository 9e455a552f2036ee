"""Kernels on an OpenCL device that is a processor, for tests; without one they are skipped, and say so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from mlc.errors import DeviceError
from mlc.ir.loop import Buffer, Function
from mlc.targets.gpu.emit import emit, source_of
from mlc.targets.gpu.program import Command, GpuProgram, Operand, Step, pack
from mlc.targets.gpu.scalars import Scalars
from mlc.targets.opencl.dialect import POCL_C
from mlc.targets.opencl.driver import OpenClDevice, open_device


@pytest.fixture
def pocl() -> Iterator[OpenClDevice]:
    """PoCL's device."""
    try:
        device = open_device({"device": "pocl"})
    except DeviceError as error:
        pytest.skip(f"{error.message}; {error.hint}")
    yield device
    device.close()


@pytest.fixture
def quick_pocl(pocl: OpenClDevice, monkeypatch: pytest.MonkeyPatch) -> OpenClDevice:
    """PoCL's device, with programs built without optimisation: that takes a quarter of the time."""
    monkeypatch.setenv("PYOPENCL_BUILD_OPTIONS", "-cl-opt-disable")
    return pocl


def program(kernels: Sequence[Function]) -> GpuProgram:
    """Some kernels of distinct names, one after the other: their inputs and outputs are the program's."""
    scalars = Scalars(POCL_C)
    texts, steps, commands = [], [], []
    inputs = outputs = scratch = 0
    for number, fn in enumerate(kernels):
        emitted = emit(fn, scalars)
        split = len(fn.params) - fn.outputs
        places = [
            Operand("input" if k < split else "output", inputs + k if k < split else outputs + k - split, b.nbytes)
            for k, b in enumerate(fn.params)
        ]
        for nbytes in emitted.buffers:
            places.append(Operand("scratch", scratch, nbytes))
            scratch += -(-nbytes // 512) * 512
        commands += [
            Command(number, c.name, tuple(places[k] for k in c.operands), c.grid, c.block) for c in emitted.launches
        ]
        texts.append(emitted.text)
        steps.append(Step(fn.name, (), 0, 0))
        inputs, outputs = inputs + split, outputs + fn.outputs
    source = source_of(scalars, texts)
    return GpuProgram(source, tuple(steps), tuple(commands), [], inputs, outputs, 0, scratch)


def run(device: OpenClDevice, fn: Function, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What a kernel makes of some arrays; results are filled with rubbish before."""
    (found,) = run_all(device, [(fn, inputs)])
    return found


def run_all(device: OpenClDevice, kernels: Sequence[tuple[Function, Sequence[np.ndarray]]]) -> list[list[np.ndarray]]:
    """The same of some kernels, in one program."""
    loaded = device.load(pack([program([fn for fn, _ in kernels])]))
    fed = [(b, array) for fn, inputs in kernels for b, array in zip(fn.params, inputs, strict=False)]
    made = [[(b, device.allocate(b.nbytes)) for b in fn.params[len(inputs) :]] for fn, inputs in kernels]
    addresses = [device.allocate(b.nbytes) for b, _ in fed]
    outputs = [address for group in made for _, address in group]
    try:
        for (_, array), address in zip(fed, addresses, strict=True):
            device.write(address, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        for b, address in (one for group in made for one in group):
            device.write(address, np.full(b.nbytes, 0xA5, np.uint8))
        device.run(loaded, [*addresses, *outputs])
        return [[_read(device, b, address) for b, address in group] for group in made]
    finally:
        for address in (*addresses, *outputs):
            device.free(address)


def _read(device: OpenClDevice, b: Buffer, address: int) -> np.ndarray:
    data = np.empty(b.nbytes, np.uint8)
    device.read(address, data)
    return data.view(b.dtype.numpy).reshape(b.shape)

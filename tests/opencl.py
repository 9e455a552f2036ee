"""Kernels on an OpenCL device that is a processor, for tests; without one they are skipped, and say so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from mlc.errors import DeviceError
from mlc.ir.loop import Function
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


def program(fn: Function) -> GpuProgram:
    """A kernel alone: its inputs and outputs are the program's."""
    scalars = Scalars(POCL_C)
    emitted = emit(fn, scalars)
    split = len(fn.params) - fn.outputs
    places = [
        Operand("input" if k < split else "output", k if k < split else k - split, b.nbytes)
        for k, b in enumerate(fn.params)
    ]
    at = 0
    for nbytes in emitted.buffers:
        places.append(Operand("scratch", at, nbytes))
        at += -(-nbytes // 512) * 512
    commands = [Command(0, c.name, tuple(places[k] for k in c.operands), c.grid, c.block) for c in emitted.launches]
    source, steps = source_of(scalars, [emitted.text]), (Step(fn.name, (), 0, 0),)
    return GpuProgram(source, steps, tuple(commands), [], split, fn.outputs, 0, at)


def run(device: OpenClDevice, fn: Function, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What a kernel makes of some arrays; results are filled with rubbish before."""
    loaded = device.load(pack([program(fn)]))
    addresses = [device.allocate(b.nbytes) for b in fn.params]
    try:
        for array, address in zip(inputs, addresses, strict=False):
            device.write(address, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        for b, address in zip(fn.params[len(inputs) :], addresses[len(inputs) :], strict=True):
            device.write(address, np.full(b.nbytes, 0xA5, np.uint8))
        device.run(loaded, addresses)
        found = []
        for b, address in zip(fn.params[len(inputs) :], addresses[len(inputs) :], strict=True):
            data = np.empty(b.nbytes, np.uint8)
            device.read(address, data)
            found.append(data.view(b.dtype.numpy).reshape(b.shape))
        return found
    finally:
        for address in addresses:
            device.free(address)

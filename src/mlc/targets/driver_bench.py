"""An accelerator as a bench: its programs are run by its driver, and take as long as that says."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Protocol, runtime_checkable

import numpy as np

from mlc.errors import DeviceError, MlcError
from mlc.ir.graph import Node
from mlc.runtime.device import Device, Repeating, open_device
from mlc.targets.base import Accelerator
from mlc.targets.bench import Program

_PATIENCE = 60.0  # seconds in which a device has been opened


@runtime_checkable
class Particular(Protocol):
    """What an accelerator is, too, if its driver may open a device that times are not to be taken on."""

    def unlike(self, device: Device) -> str:
        """How an open device differs from the one that schedules are made for, in words; empty if it does not."""
        ...


class DriverBench:
    """Runs candidates by the driver that packages name, too.

    Args:
        accelerator: names the driver and its options.
        exact: whether the ``seconds`` of the driver's reports are computed, as a simulator's are; else there is one
            such device, and one run at a time.
    """

    def __init__(self, accelerator: Accelerator, *, exact: bool) -> None:
        self._accelerator = accelerator
        self.exact = exact
        self.device = "" if exact else accelerator.device

    def require(self) -> None:
        """Looks whether the device can be had, in a process of its own: drivers do not survive a fork.

        Raises:
            DeviceError: it cannot.
        """
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe(duplex=False)
        child = context.Process(target=_try_to_open, args=(self._accelerator, theirs))
        child.start()
        theirs.close()
        try:
            message, hint = ours.recv() if ours.poll(_PATIENCE) else ("it does not answer", "")
        except EOFError:
            message, hint = "its driver crashes", ""
        child.kill()
        child.join()
        if message:
            raise DeviceError(f"nothing can be measured on {self._accelerator.device}: {message}", hint=hint)

    def open(self, threads: int) -> DriverStand:
        return DriverStand(self._accelerator)


def _try_to_open(accelerator: Accelerator, pipe: Connection) -> None:
    """Tells what goes wrong, as message and hint."""
    try:
        device = open_device(accelerator.device, accelerator.options())
        unlike = accelerator.unlike(device) if isinstance(accelerator, Particular) else ""
        device.close()
        pipe.send((unlike, "name this machine's device in --target"))
    except MlcError as error:
        pipe.send((error.message, error.hint))


class DriverStand:
    """Gives every candidate a device of its own, so that none finds what another has left.

    One more stays open besides: what a process has of a driver goes with the last one, and to have it again (a context
    of CUDA) takes longer than a candidate does.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._held: Device | None = None

    def load(self, program: Program, node: Node, constant: Sequence[bool]) -> DriverProgram:
        if self._held is None:
            self._held = open_device(self._accelerator.device, self._accelerator.options())
        device = open_device(self._accelerator.device, self._accelerator.options())
        try:
            return DriverProgram(device, program.data, node, constant)
        except MlcError:
            device.close()
            raise

    def peak(self) -> float:
        return 0.0


class DriverProgram:
    """A program in a device, with memory for its inputs and results there; its constants are its own."""

    def __init__(self, device: Device, program: bytes, node: Node, constant: Sequence[bool]) -> None:
        self._device = device
        first = {v: k for k, v in reversed(list(enumerate(node.inputs)))}
        self._given = sorted(k for k in first.values() if not constant[k])
        self._outputs = node.outputs
        self._program = device.load(program)
        values = (*(node.inputs[k] for k in self._given), *node.outputs)
        self._addresses = [device.allocate(max(1, v.type.nbytes)) for v in values]

    def run(self, inputs: Sequence[np.ndarray], fill: int) -> float:
        count = len(self._given)
        for k, address in zip(self._given, self._addresses, strict=False):
            self._device.write(address, np.ascontiguousarray(inputs[k]).reshape(-1).view(np.uint8))
        for v, address in zip(self._outputs, self._addresses[count:], strict=True):
            self._device.write(address, np.full(v.type.nbytes, fill, np.uint8))
        return self._timed()

    def results(self) -> list[np.ndarray]:
        found = []
        for v, address in zip(self._outputs, self._addresses[len(self._given) :], strict=True):
            data = np.empty(v.type.nbytes, np.uint8)
            self._device.read(address, data)
            found.append(data.view(v.type.dtype.numpy).reshape(v.type.physical_shape))
        return found

    def check(self) -> None:
        """Nothing of the host's is within the device's reach."""

    def sample(self, calls: int) -> int:
        if isinstance(self._device, Repeating):
            return round(self._device.repeat(self._program, self._addresses, calls) * 1e9)
        return round(sum(self._timed() for _ in range(calls)) * 1e9)

    def cold_sample(self, calls: int) -> int:
        return self.sample(calls)  # what is in a device's memories after a run is the device's business

    def close(self) -> None:
        self._device.close()

    def _timed(self) -> float:
        """Runs once; the seconds by the device's account, or by the clock where it keeps none."""
        start = time.perf_counter()
        report = self._device.run(self._program, self._addresses)
        took = time.perf_counter() - start
        return float(report.get("seconds", took))

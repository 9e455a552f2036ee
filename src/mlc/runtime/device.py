"""Devices beside the host: what a driver must do, and how one is found.

A driver is found by the name that a package gives, among the entry points ``mlc.devices``. An entry point is a callable
that takes the device's options, by name, and gives a :class:`Device`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, Protocol, runtime_checkable

import numpy as np

from mlc.errors import DeviceError, MlcError, UsageError
from mlc.runtime.device_spec import DEVICE, DeviceCall, DeviceSpec, PlaceSpec

GROUP = "mlc.devices"

Report = Mapping[str, Any]
"""What a device says of a run, JSON-able.

``seconds`` is the time it took by the device's own account (a simulated device counts the cycles of a real one), and
``cycles`` is shown beside it. ``operations`` is what the run was asked to compute, should the device count otherwise
than the package does. ``layers`` is a list of mappings alike, shown as a table; ``assumptions`` is a list of lines that
are shown with the figures. ``kernels`` is a list of mappings with what :class:`Profiled` says of each kernel. All of
them may be absent.
"""


class Device(Protocol):
    """An open device with memory of its own, used by one thread at a time."""

    def allocate(self, nbytes: int) -> int:
        """Reserves device memory; the address of it, aligned as the device's programs want it."""
        ...

    def free(self, address: int) -> None:
        """Gives back what ``allocate`` reserved."""
        ...

    def load(self, program: bytes) -> Any:
        """Puts a program into the device, ready to run; gives what ``run`` wants to know it by.

        Raises:
            MlcError: the program is damaged, or not for this device.
        """
        ...

    def write(self, address: int, data: np.ndarray) -> Report | None:
        """Copies ``data``, u8[n], into device memory; what it has to say of it, such as ``seconds``, if anything."""
        ...

    def read(self, address: int, data: np.ndarray) -> Report | None:
        """Copies device memory into ``data``, u8[n]; the same."""
        ...

    def run(self, program: Any, addresses: Sequence[int]) -> Report:
        """Runs a program once.

        Args:
            program: from ``load``.
            addresses: of its inputs, then of its outputs, in the order of the region that it was compiled from.
        Raises:
            DeviceError: it failed.
        """
        ...

    def close(self) -> None:
        """Gives the device back. Twice is fine."""
        ...


@runtime_checkable
class Named(Protocol):
    """What a device is, too, if there may be several of it: the option ``number`` says which one is opened, from 0.

    Attributes:
        name: as its maker calls it.
    """

    name: str


@runtime_checkable
class Profiled(Protocol):
    """What a device is, too, if it can time the kernels of a run one by one, which may make the run slower."""

    def profile(self, program: Any, addresses: Sequence[int]) -> Report:
        """Runs a program once, as ``run`` does.

        Returns:
            a report with ``kernels``, in order: of each its ``name``, its ``seconds``, its ``flops`` and ``bytes``, and
            ``sources``, names of the original model's nodes; and, where the device knows, ``bound`` (what bounds it),
            ``least_seconds`` (what it would take at the device's peaks), ``occupancy`` (the share of a unit's threads
            that it fills) and ``note``.
        Raises:
            DeviceError: it failed.
        """
        ...


@runtime_checkable
class Repeating(Protocol):
    """What a device is, too, if runs in a row cost less than as many runs that are waited for one by one."""

    def repeat(self, program: Any, addresses: Sequence[int], times: int) -> float:
        """Runs a program so many times in a row, as ``run`` does.

        Returns:
            the seconds that all runs took together, by the device's own account.
        Raises:
            DeviceError: one failed.
        """
        ...


CPU = "cpu"


def device_named(text: str) -> tuple[str, int]:
    """``cuda:1`` as a name and a number, which is 0 unless given.

    Raises:
        UsageError: it is nothing of the kind.
    """
    match = re.fullmatch(r"([a-z][a-z0-9_-]*)(?::(\d{1,3}))?", text)
    if match is None:
        raise UsageError(f"{text!r} is no device", hint="for example: cpu, cuda, cuda:1; mlc run --device list")
    return match[1], int(match[2] or 0)


def numbered(options: Mapping[str, str], number: int) -> Mapping[str, str]:
    """Options of the device of a number; the first one is what drivers open anyway."""
    return {**options, "number": str(number)} if number else options


Open = Callable[[Mapping[str, str]], Device]


def device_names() -> list[str]:
    """Names of the devices that have a driver here."""
    return sorted({e.name for e in entry_points(group=GROUP)})


def open_device(name: str, options: Mapping[str, str]) -> Device:
    """Opens a device.

    Args:
        name: as the package says.
        options: the same.
    Raises:
        DeviceError: it has no driver here, or more than one, or cannot be opened.
    """
    found = [e for e in entry_points(group=GROUP) if e.name == name]
    if not found:
        here = ", ".join(device_names()) or "none"
        raise DeviceError(
            f"the module needs the device {name!r}, which has no driver here",
            hint=f"install a package that has one (entry point {GROUP}); drivers here: {here}",
        )
    if len({e.value for e in found}) > 1:
        raise DeviceError(
            f"several drivers are called {name!r}: {', '.join(sorted(e.value for e in found))}",
            hint="uninstall all but one",
        )
    try:
        opener: Open = found[0].load()
    except ImportError as error:
        raise DeviceError(f"the driver of the device {name!r} cannot be imported: {error}") from error
    return opener(options)


class DeviceSide:
    """The part of a loaded model that is on a device: its programs.

    Args:
        spec: which device.
        programs: the members of the package that hold programs, by name.
        number: which device, where there are several.
    Raises:
        DeviceError: the device has no driver here, or refuses a program.
    """

    def __init__(self, spec: DeviceSpec, programs: Mapping[str, bytes], number: int = 0) -> None:
        self._nbytes = spec.memory_bytes
        self._device = open_device(spec.name, numbered(spec.options, number))
        self._programs: dict[str, Any] = {}
        for name, data in programs.items():
            try:
                self._programs[name] = self._device.load(data)
            except MlcError as error:
                self._device.close()
                raise DeviceError(f"{name}: {error.message}", hint=error.hint) from error

    def new_arena(self) -> int:
        """The address of device memory for one execution."""
        return self._device.allocate(self._nbytes)

    def free(self, arena: int) -> None:
        self._device.free(arena)

    def step(
        self, call: DeviceCall, arena: int, host: Callable[[PlaceSpec], np.ndarray], *, profile: bool = False
    ) -> Report | None:
        """Makes one step.

        Args:
            call: what to do.
            arena: from ``new_arena``.
            host: the bytes, u8[n], of a place in the host's memory.
            profile: time the kernels of a run one by one, where the device can.
        Returns:
            what the device says of it.
        """
        if call.action == "run":
            program, addresses = self._programs[call.program], [arena + place.offset for place in call.places]
            if profile and isinstance(self._device, Profiled):
                return self._device.profile(program, addresses)
            return self._device.run(program, addresses)
        source, destination = call.places
        if source.space == DEVICE:
            return self._device.read(arena + source.offset, host(destination))
        return self._device.write(arena + destination.offset, host(source))

    def close(self) -> None:
        """Gives the device back. Twice is fine."""
        self._device.close()

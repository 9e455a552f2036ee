"""What a manifest says of a device beside the host: its name and memory, and the steps that its driver makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mlc.fields import Fields, as_integer, as_list, as_object, as_text, wrong

DEVICE = "device"
"""The space of places in device memory."""


@dataclass(frozen=True)
class PlaceSpec:
    """Where some bytes lie.

    Args:
        space: one of ``tensor_spec.SPACES``, or ``DEVICE``: the arena in device memory.
        offset: bytes from the start of the space.
        nbytes: how many.
        index: which input or output; 0 in the other spaces.
    """

    space: str
    offset: int
    nbytes: int
    index: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"space": self.space, "offset": self.offset, "nbytes": self.nbytes, "index": self.index}

    @classmethod
    def from_json(cls, value: object, where: str) -> PlaceSpec:
        fields = Fields(value, where)
        spec = cls(
            fields.take("space", as_text),
            fields.take("offset", as_integer),
            fields.take("nbytes", as_integer),
            fields.take("index", as_integer),
        )
        fields.end()
        return spec


@dataclass(frozen=True)
class DeviceCall:
    """A step that the driver of a device makes.

    Args:
        action: ``copy_to`` or ``copy_from`` device memory, or ``run``.
        places: of a copy, source and destination; of a run, what is read, then what is written.
        program: the member that holds the program, of a run.
    """

    action: str
    places: tuple[PlaceSpec, ...]
    program: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"action": self.action, "places": [p.to_json() for p in self.places], "program": self.program}

    @classmethod
    def from_json(cls, value: object, where: str) -> DeviceCall:
        fields = Fields(value, where)
        call = cls(
            fields.take("action", as_text),
            fields.take("places", lambda items, place: as_list(items, place, PlaceSpec.from_json)),
            fields.take("program", as_text),
        )
        fields.end()
        return call

    def check(self, where: str) -> None:
        """Checks that the places fit the action.

        Raises:
            PackageError: naming the field.
        """
        device = [p.space == DEVICE for p in self.places]
        wanted = {"copy_to": [False, True], "copy_from": [True, False], "run": [True] * len(device)}.get(self.action)
        if wanted is None:
            raise wrong(f"{where}.action", "copy_to, copy_from or run", self.action)
        if device != wanted or (self.action != "run" and self.places[0].nbytes != self.places[1].nbytes):
            raise wrong(f"{where}.places", f"places for {self.action}", [p.space for p in self.places])


@dataclass(frozen=True)
class DeviceSpec:
    """The device that a package needs beside the host.

    Args:
        name: of its driver.
        memory_bytes: of the arena in its memory.
        options: what the driver is opened with.
    """

    name: str
    memory_bytes: int
    options: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "memory_bytes": self.memory_bytes, "options": dict(self.options)}

    @classmethod
    def from_json(cls, value: object, where: str) -> DeviceSpec:
        fields = Fields(value, where)
        spec = cls(
            fields.take("name", as_text),
            fields.take("memory_bytes", as_integer),
            fields.take("options", lambda items, place: as_object(items, place, as_text)),
        )
        fields.end()
        return spec

"""What boards offer, as they tell it and as clients look for it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mlc import __version__
from mlc.errors import UnsupportedError
from mlc.fields import Fields, as_flag, as_integer, as_list, as_number, as_text, as_whole
from mlc.records.record import Fingerprint
from mlc.targets.base import Target, Whole

FACTS = "mlc"
"""The name among a worker's figures under which a board tells of itself."""

MEMORY = "memory"
"""The resource of which a board has as much as a piece of work may take, in MiB."""


class Kind(StrEnum):
    """What a board can be there for."""

    MEASURE = "measure"  # candidates of tasks, and two versions of a model in turns
    RUN = "run"  # modules
    BUILD = "build"  # candidates for boards that measure them; it does nothing else, and as much of it as it has cores


def mebibytes(nbytes: int) -> int:
    """So much memory as a resource."""
    return -(-nbytes // (1 << 20))


def resource_of(target: Target, *, emulated: bool = False) -> str:
    """The resource that measuring for a target takes: boards whose times can be compared have the same."""
    found = Fingerprint.of(target)
    digest = hashlib.sha256(repr((found.features, found.lanes)).encode()).hexdigest()[:6]
    return f"{target.name}:{found.cpu}:{digest}" + (":emulated" if emulated else "")


def require_tunable(target: Target) -> None:
    """Looks whether a target's operations can be told in text, as work for a pool is.

    Raises:
        UnsupportedError: they cannot.
    """
    if target.accelerator is not None and not isinstance(target.accelerator, Whole):
        raise UnsupportedError(
            f"{target.name}: cannot be tuned through a pool, since its choices depend on the model's constants",
            hint="tune it on the machine that has it, without --pool; a board with --only run runs its modules",
        )


def building_for(resource: str) -> str:
    """The resource that building takes for a target whose own resource this is."""
    return f"{Kind.BUILD}:{resource.removesuffix(':emulated')}"


@dataclass(frozen=True)
class Offer:
    """A target that a board measures and runs.

    Args:
        resource: the resource.
        target: the target's string form, as whoever started the board gave it.
        emulated: whether an emulator has the processor's place.
    """

    resource: str
    target: str
    emulated: bool = False

    @property
    def family(self) -> str:
        """Of the target: ``x86``. Modules for one of its processors run on another one that has all that they use."""
        return self.target.split()[0]


@dataclass(frozen=True)
class BoardInfo:
    """A board as it tells of itself.

    Args:
        name: unique in the pool.
        offers: what it is there for.
        kinds: of work that it does, of :class:`Kind`.
        threads: that a kernel can have; of one that builds, the candidates that it builds at once.
        memory: bytes that a piece of work may take.
        version: of its program.
        done: pieces of work so far.
        busy: whose piece it works on; empty where it waits for one.
        draining: whether it takes no more work.
        seconds: since it joined.
        address: at which the scheduler reaches it.
    """

    name: str
    offers: tuple[Offer, ...]
    kinds: tuple[str, ...]
    threads: int
    memory: int
    version: str = __version__
    done: int = 0
    busy: str = ""
    draining: bool = False
    seconds: float = 0.0
    address: str = ""

    @property
    def resources(self) -> frozenset[str]:
        """What work of its kinds for its targets takes."""
        found: set[str] = set()
        for o in self.offers:
            found |= {o.resource} if Kind.MEASURE in self.kinds else set()
            found |= {o.family} if Kind.RUN in self.kinds else set()
            found |= {building_for(o.resource)} if Kind.BUILD in self.kinds else set()
        return frozenset(found)

    def to_json(self) -> dict[str, Any]:
        offers = [{"resource": o.resource, "target": o.target, "emulated": o.emulated} for o in self.offers]
        return {
            "name": self.name,
            "offers": offers,
            "kinds": list(self.kinds),
            "threads": self.threads,
            "memory": self.memory,
            "version": self.version,
            "done": self.done,
            "busy": self.busy,
            "draining": self.draining,
            "seconds": round(self.seconds, 3),
        }

    @classmethod
    def from_json(cls, value: object, address: str) -> BoardInfo:
        """The inverse, for what a worker says, which may be anything.

        Raises:
            DocumentError: a field is missing, wrong or unknown.
        """
        if isinstance(value, Mapping):  # lists come back as tuples
            value = {k: list(v) if isinstance(v, tuple) else v for k, v in value.items()}
        get = Fields(value, "")
        made = cls(
            get.take("name", as_text),
            get.take("offers", lambda items, where: as_list(items, where, _offer, 64)),
            get.take("kinds", lambda items, where: as_list(items, where, as_text, 16)),
            get.take("threads", as_whole(1)),
            get.take("memory", as_integer),
            get.take("version", as_text),
            get.take("done", as_integer),
            get.take("busy", as_text),
            get.take("draining", as_flag),
            get.take("seconds", as_number),
            address,
        )
        get.end()
        return made

    def has(self, resource: str, memory: int = 0) -> bool:
        """Whether it is there for a resource and gives so many bytes."""
        return memory <= self.memory and resource in self.resources


def _offer(value: Any, where: str) -> Offer:
    get = Fields(value, where)
    made = Offer(get.take("resource", as_text), get.take("target", as_text), get.take("emulated", as_flag))
    get.end()
    return made

"""Two versions of a model in turns on a board: what is sent for it, and the process there that runs them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from mlc.errors import DocumentError, MlcError
from mlc.fields import Fields, as_list, as_object, as_text, as_whole
from mlc.pool.parcel import Parcel
from mlc.pool.processes import received
from mlc.pool.remote import in_memory, reason_of
from mlc.runtime import load_module
from mlc.tuning.measure.frames import Channel
from mlc.tuning.measure.zygote import Shared
from mlc.tuning.whole import compare, losers

TURNS = "turns"
_MOST = 4096  # kernels of a model
_FAR = 1e30  # difference of results beyond which it does not matter how far; JSON knows nothing infinite


@dataclass(frozen=True)
class TurnsJob:
    """Two versions of a model to run in turns.

    Args:
        resource: of the target.
        threads: that run them.
        sources: by workload, the first operators of its steps: whose kernels lose is asked, see
            :func:`~mlc.tuning.whole.losers`; how long the models take, unless given.
        client: whose it is.
        untuned, tuned: the ``module.tar`` of each.
    """

    resource: str
    threads: int
    sources: Mapping[str, Collection[str]] | None
    client: str
    untuned: bytes
    tuned: bytes

    def parcel(self) -> Parcel:
        sources = None if self.sources is None else {key: sorted(set(names)) for key, names in self.sources.items()}
        header = {"resource": self.resource, "threads": self.threads, "sources": sources, "client": self.client}
        return Parcel(TURNS, header, (self.untuned, self.tuned))

    @classmethod
    def of(cls, parcel: Parcel) -> TurnsJob:
        """The job in a parcel.

        Raises:
            DocumentError: there is none.
        """
        if len(parcel.parts) != 2:
            raise DocumentError(f"{len(parcel.parts)} modules, two take turns")
        get = Fields(parcel.header, "")
        made = cls(
            get.take("resource", as_text),
            get.take("threads", as_whole(1, 1024)),
            get.maybe("sources", lambda item, at: as_object(item, at, as_names)),
            get.take("client", as_text)[:100],
            *parcel.parts,
        )
        get.end()
        return made


def as_names(value: Any, where: str) -> tuple[str, ...]:
    """A list of names."""
    return as_list(value, where, as_text, _MOST)


def take_turns(channel: Channel, shared: Shared, args: dict[str, Any]) -> None:
    """Runs two modules in turns: ``{header, sizes}`` and both in, ``{losers}`` or a comparison or a refusal out."""
    message = channel.receive()
    try:
        job = TurnsJob.of(received(message))
        with (
            load_module(in_memory(job.untuned), job.threads) as untuned,
            load_module(in_memory(job.tuned), job.threads) as tuned,
        ):
            if job.sources is not None:
                channel.send({"losers": sorted(losers(untuned, tuned, job.sources))})
            else:
                found = compare(untuned, tuned)
                channel.send(asdict(replace(found, error=min(found.error, _FAR))))
    except MlcError as error:
        channel.send({"refused": reason_of(error)})

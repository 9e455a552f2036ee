"""Two versions of a model compared on a board of a pool, as if that were here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from mlc.errors import DeviceError, DocumentError
from mlc.fields import Fields, as_number, wrong
from mlc.pool.client import Pool
from mlc.pool.turns import TurnsJob, as_names
from mlc.runtime import open_package
from mlc.tuning.whole import Comparison, Share


class PooledTurns:
    """Has a board compare two versions of a model; implements :class:`~mlc.tuning.whole.Turns`.

    Args:
        pool: the connection.
        resource: of the target.
        threads: that run the models.
    """

    def __init__(self, pool: Pool, resource: str, threads: int) -> None:
        self._pool, self._resource, self._threads = pool, resource, threads

    def losers(
        self, untuned: Path, tuned: Path, sources: Mapping[str, Collection[str]], goes_on: Share = lambda _: None
    ) -> set[str]:
        """Workloads whose kernels take longer in the tuned model.

        Raises:
            DeviceError: the pool is gone, or no board can do that.
        """
        get = self._ask(untuned, tuned, sources)
        try:
            found = set(get.take("losers", as_names))
            get.end()
            if not found <= set(sources):
                raise wrong("losers", "workloads that were asked about", sorted(found - set(sources))[0])
        except DocumentError as error:
            raise self._nonsense(error) from None
        return found

    def compare(self, untuned: Path, tuned: Path, goes_on: Share = lambda _: None) -> Comparison:
        """Seconds of both, and how far their results differ.

        Raises:
            DeviceError: the pool is gone, or no board can do that.
        """
        get = self._ask(untuned, tuned, None)
        try:
            found = Comparison(*(get.take(name, as_number) for name in ("untuned", "tuned", "error")))
            get.end()
            if not min(found.untuned, found.tuned) > 0:
                raise wrong("untuned", "seconds", found.untuned)
        except DocumentError as error:
            raise self._nonsense(error) from None
        return found

    def _ask(self, untuned: Path, tuned: Path, sources: Mapping[str, Collection[str]] | None) -> Fields:
        paths = untuned, tuned
        job = TurnsJob(self._resource, self._threads, sources, self._pool.me, *(p.read_bytes() for p in paths))
        memory = 0
        for path in paths:
            with open_package(path) as package:
                memory += package.manifest.memory.params_bytes + package.manifest.memory.workspace_bytes
        try:
            return Fields(self._pool.ask(job.parcel(), self._resource, memory=memory).header, "")
        except DeviceError as error:
            error.hint = error.hint or "--no-check leaves the comparison of the whole model out"
            raise

    def _nonsense(self, error: DocumentError) -> DeviceError:
        return DeviceError(f"{self._pool.url}: a board's answer makes no sense: {error.message}")

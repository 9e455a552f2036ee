"""Programs of the fastest candidates of each task, which are measured once more before the last decision."""

from __future__ import annotations

from mlc.lower.knobs import Config
from mlc.tuning.measure.building import Built

EACH = 16  # candidates of a task: twice as many as take part in a decision, half of which may have layouts of their own
BYTES = 128 << 20  # of all together

Key = tuple[tuple[str, object], ...]


def key_of(config: Config) -> Key:
    """A configuration as what a dictionary can find it by."""
    return tuple(sorted(config.items()))


class Kept:
    """What was built and need not be built again."""

    def __init__(self) -> None:
        self._found: dict[int, dict[Key, tuple[float, Built]]] = {}
        self._bytes = 0

    def add(self, task: int, seconds: float, built: Built) -> None:
        """Keeps a candidate while it is among the fastest of its task.

        Args:
            task: its number.
            seconds: of a call.
            built: its program.
        """
        some = self._found.setdefault(task, {})
        self._drop(task, key_of(built.config))
        some[key_of(built.config)] = seconds, built
        self._bytes += len(built.obj)
        if len(some) > EACH:
            self._drop(task, max(some, key=lambda key: some[key][0]))
        while self._bytes > BYTES:  # others were decided first, or will have most of their trials after this one
            other = next((k for k, held in self._found.items() if held and k != task), task)
            held = self._found[other]
            self._drop(other, max(held, key=lambda key: held[key][0]))

    def find(self, task: int, config: Config) -> Built | None:
        """A candidate that is still kept."""
        found = self._found.get(task, {}).get(key_of(config))
        return None if found is None else found[1]

    def _drop(self, task: int, key: Key) -> None:
        found = self._found[task].pop(key, None)
        if found is not None:
            self._bytes -= len(found[1].obj)

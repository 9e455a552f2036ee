"""Tuned configurations for a compilation, and what was found for which kernel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from mlc.errors import ScheduleError, UsageError
from mlc.ir.graph import Node
from mlc.ir.types import TensorType
from mlc.lower.knobs import Knobs
from mlc.rewrite.group import config_of, configured, is_group, workload_key
from mlc.targets.base import Target
from mlc.tune.records import Best, Fingerprint, Found, Record, best_of
from mlc.tune.task import digest, laid_out, name_of


@dataclass(frozen=True)
class Finding:
    """What records had for one workload of a model.

    Args:
        workload: its key.
        name: the task's name.
        sources: the first operator of each such group in the model's file.
        found: hit, near or miss.
        record: the one that was used, or that comes nearest.
    """

    workload: str
    name: str
    sources: tuple[str, ...]
    found: Found
    record: Record | None


class Tuned:
    """Gives every group of a graph its configuration, where records have one that still fits.

    Args:
        records: trials, of any tasks and processors.
        target: what is compiled for.
        threads: that will run the kernels; any unless given.
    """

    def __init__(self, records: Iterable[Record], target: Target, threads: int | None = None) -> None:
        self._target = target
        self._best: Best = best_of(records, Fingerprint.of(target), threads)
        self._findings: dict[str, Finding] = {}
        self._tunable: set[str] = set()

    def configure(self, node: Node, types: Sequence[TensorType], constant: Sequence[bool], row_major: bool) -> Node:
        """The group with its configuration; for the layout pass."""
        if not is_group(node):
            return node
        text = workload_key(node, types, constant, row_major)
        key = digest(text)
        if key not in self._findings:
            found, record = self._best.find(key, text)
            if found is Found.HIT and record is not None:
                wanted = configured(node, record.config)
                if not _accepts(self._target, wanted, types, constant, row_major):
                    found, record = Found.MISS, None  # of a version whose template asked otherwise
            if found is Found.HIT or _has_choice(self._target, node, types, constant, row_major):
                self._tunable.add(key)
            self._findings[key] = Finding(key, name_of(node), (), found, record)
        finding = self._findings[key]
        self._findings[key] = finding = replace(finding, sources=(*finding.sources, *node.sources[:1]))
        if finding.found is not Found.HIT or finding.record is None:
            return node
        return configured(node, finding.record.config)

    def all_findings(self) -> list[Finding]:
        """What was found for every group that was asked about, whether or not it has anything to choose."""
        return list(self._findings.values())

    def findings(self) -> list[Finding]:
        """What was found for the groups that have something to choose, in the order of the graph."""
        return [f for f in self.all_findings() if f.workload in self._tunable]


def _has_choice(
    target: Target, node: Node, types: Sequence[TensorType], constant: Sequence[bool], row_major: bool
) -> bool:
    knobs = Knobs()
    target.schedule(laid_out(node, types, constant, row_major, target), knobs)
    return bool(knobs.asked)


def _accepts(
    target: Target, node: Node, types: Sequence[TensorType], constant: Sequence[bool], row_major: bool
) -> bool:
    """Whether the target's template takes the node's configuration, every knob of it."""
    config = config_of(node)
    knobs = Knobs(config)
    try:
        target.schedule(laid_out(node, types, constant, row_major, target), knobs)
    except ScheduleError:
        return False
    return set(config) <= set(knobs.asked)


def require_all(findings: Sequence[Finding]) -> None:
    """Complains unless every kernel was found.

    Raises:
        UsageError: names those that were not.
    """
    missing = [f for f in findings if f.found is not Found.HIT]
    if missing:
        names = ", ".join(f.name for f in missing[:4]) + (" …" if len(missing) > 4 else "")
        raise UsageError(
            f"{len(missing)} of {len(findings)} kernels have no tuned configuration: {names}",
            hint="tune the model first: mlc tune MODEL -o FILE, then compile with --records FILE",
        )

"""Tuned configurations for a compilation, and what was found for which kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from mlc.errors import UsageError
from mlc.ir.graph import Node
from mlc.ir.site import Site
from mlc.lower.knobs import Knobs
from mlc.ops.algorithms import Algorithm
from mlc.records.best import Found
from mlc.records.record import ALGORITHM, Record
from mlc.records.workload import laid_out, name_of
from mlc.rewrite.group import configured, device_of, identity_of, is_group
from mlc.rewrite.workload import Document, algorithm_document, workload_document, workload_key
from mlc.targets.base import Target


class Source(Protocol):
    """Some records (:class:`~mlc.records.best.Best`, :class:`~mlc.records.shelf.Shelf`)."""

    def find(self, workload: str, document: Document) -> tuple[Found, Record | None]:
        """What there is for a workload, given its key and its document."""
        ...


@dataclass(frozen=True)
class Finding:
    """What records had for one workload of a model.

    Args:
        workload: its key.
        name: the task's name.
        sources: the first operator of each such group in the model's file.
        found: hit, stale, near or miss.
        record: the one that was used, that is stale, or that comes nearest.
        reason: why it is stale.
    """

    workload: str
    name: str
    sources: tuple[str, ...]
    found: Found
    record: Record | None
    reason: str = ""


class Tuned:
    """Gives every group of a graph its configuration, where records have one that still fits.

    Args:
        source: where to look.
        target: what is compiled for.
    """

    def __init__(self, source: Source, target: Target) -> None:
        self._target = target
        self._source = source
        self._findings: dict[str, Finding] = {}  # by workload
        self._has_choice: dict[str, Callable[[], bool]] = {}
        self._groups: dict[tuple[str, ...], str] = {}  # workloads by the identity of groups

    def algorithm(self, node: Node, known: Sequence[Algorithm]) -> Algorithm | None:
        """What was recorded for an operator; nothing where nothing was, or where the target has no such algorithm."""
        document = algorithm_document(node)
        found, record = self._source.find(workload_key(document), document)
        name = record.config.get(ALGORITHM) if found is Found.HIT and record is not None else None
        return next((a for a in known if a.value == name), None)

    def configure(self, node: Node, site: Site) -> Node:
        """The group with its configuration; for the layout pass, which may ask again after a refusal."""
        if not is_group(node):
            return node
        document = workload_document(node, site)
        key = workload_key(document)
        if key not in self._findings:
            found, record = self._source.find(key, document)
            self._findings[key] = Finding(key, name_of(node), (), found, record)
            self._has_choice[key] = lambda: _has_choice(self._target, node, site)
        finding = self._findings[key]
        if identity_of(node) not in self._groups:
            self._groups[identity_of(node)] = key
            self._findings[key] = finding = replace(finding, sources=(*finding.sources, *node.sources[:1]))
        if finding.found is not Found.HIT or finding.record is None:
            return node
        return configured(node, finding.record.config)

    def refuse(self, group: tuple[str, ...], reason: str) -> None:
        """The record of a group's workload is stale."""
        key = self._groups[group]
        self._findings[key] = replace(self._findings[key], found=Found.STALE, reason=reason)

    def all_findings(self) -> list[Finding]:
        """What was found for every group that was asked about, whether or not it has anything to choose."""
        return list(self._findings.values())

    def used(self) -> list[Finding]:
        """Hits, and those of them that were refused."""
        return [f for f in self.all_findings() if f.found in (Found.HIT, Found.STALE)]

    def findings(self) -> list[Finding]:
        """What was found for the groups that have something to choose, in the order of the graph."""
        used = {f.workload for f in self.used()}
        return [f for f in self.all_findings() if f.workload in used or self._has_choice[f.workload]()]


def _has_choice(target: Target, node: Node, site: Site) -> bool:
    if device_of(node):
        return True  # every operation of a device has been found to have one
    knobs = Knobs()
    choice = target.layouts(node, site, knobs)
    target.schedule(laid_out(node, site.inputs, choice), knobs)
    return bool(knobs.asked)


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

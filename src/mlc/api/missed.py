"""Kernels that were tuned, and that a compilation has no use for: those of a batch in slices, or those of it whole.

Whether a batch runs in slices may follow from the number of threads (:data:`mlc.api.options.SLICED_THREADS`), and
kernels of a slice are not those of the batch. So what was tuned for one number of threads may not be found for another.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mlc.api.models import Model
from mlc.api.options import SLICED_THREADS, SLICES
from mlc.settings import CompileOptions, Observer, Settings

if TYPE_CHECKING:
    from mlc.records.lookup import Source, Tuned
    from mlc.targets.base import Target


def missed(
    model: Model,
    machine: Target,
    options: CompileOptions,
    records: Sequence[str | os.PathLike[str]] | None,
    source: Source,
    tuned: Tuned,
    *,
    left_out: bool,
) -> str:
    """What to tell a user whose records are of the batch as it is not compiled; nothing where they are not.

    The graph passes run once more for it, and layouts are assigned; so this is for whoever has tuned the model.

    Args:
        model: that is compiled,
        machine: for it,
        options: like this.
        records: that the user named.
        source: records that were looked into,
        tuned: and what was found there.
        left_out: whether the user wants no slices, so that these would be no help.
    """
    from mlc.rewrite.slices import batch_of

    whole = SLICES in options.disabled_passes
    if (whole and left_out) or machine.accelerator is not None or batch_of(model.graph) < 2:
        return ""
    if records is None and not _has_tuned(model, options):
        return ""
    found = {f.workload for f in tuned.used()}
    if len(found) == len(tuned.findings()):
        return ""
    disabled = tuple(p for p in options.disabled_passes if p != SLICES) if whole else (*options.disabled_passes, SLICES)
    count = len(_hits(model, machine, replace(options, disabled_passes=disabled), source) - found)
    if not count:
        return ""
    kernels = f"{count} kernel{'s'[: count > 1]} of the {'batch in slices' if whole else 'whole batch'}"
    if whole:
        return (
            f"records have {kernels}, which is how it runs on {SLICED_THREADS} threads or fewer, and not all of the "
            f"whole batch: --threads {SLICED_THREADS} takes those"
        )
    return f"records have {kernels}, and not all of its slices: --disable-pass {SLICES} takes those"


def _has_tuned(model: Model, options: CompileOptions) -> bool:
    """Whether a run of the tuner has left the best of it where compilations look."""
    from mlc.records.places import journal_of, kept

    cache = Settings.from_environment().cache
    return (kept(cache) / journal_of(cache, options.name, model.info.sha256).name).is_file()


def _hits(model: Model, machine: Target, options: CompileOptions, source: Source) -> set[str]:
    """Workloads that records have when a model is compiled like this."""
    from mlc.pipeline.layouts import lay_out, parts_of
    from mlc.pipeline.passes import optimise
    from mlc.records.lookup import Tuned

    tuned, watch = Tuned(source, machine), Observer()
    for part in parts_of(optimise(model.graph, machine, options, watch, configurations=tuned), machine):
        lay_out(part, options, watch, tuned)
    return {f.workload for f in tuned.used()}

"""What is known of a task before anything of it was measured: trees that have learnt from other operators.

They come with the tuner and were taught by ``python -m benchmarks.papers.prior``; the cost model of a task learns what
they leave (AutoTVM eq. 4). They read the loops alone, so any operator's will do.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from mlc.records.record import Fingerprint
from mlc.targets.base import Target
from mlc.tuning.models.gbt import GradientBoosting
from mlc.tuning.models.transfer import Additive

FILE = Path(__file__).with_name("prior.ubj")


def prior_of(target: Target) -> Additive | None:
    """What comes with the tuner for processors like this; nothing for others."""
    model, of = _kept()
    return model if Fingerprint.of(target).is_family_of(of) else None


def keep(model: GradientBoosting, target: Target, file: Path = FILE) -> None:
    """Writes what a model has learnt of operators on a target."""
    of = Fingerprint.of(target)
    model.save(file, {"of": json.dumps({"cpu": of.cpu, "features": of.features, "lanes": of.lanes})})


@cache
def _kept() -> tuple[GradientBoosting, Fingerprint]:
    model, about = GradientBoosting.load(FILE)
    of = json.loads(about["of"])
    return model, Fingerprint(of["cpu"], tuple(of["features"]), of["lanes"])

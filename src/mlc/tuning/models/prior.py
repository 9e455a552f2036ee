"""What is known of a task before anything of it was measured: trees that have learnt from other operators.

They come with the tuner and were taught by ``python -m benchmarks.papers.prior``; the cost model of a task learns what
they leave (AutoTVM eq. 4). They read the loops alone, so any operator's will do. What a processor prefers does not
follow from these: each has trees of its own, and one without takes those of another with the same vectors and units.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from mlc.records.places import family_of
from mlc.records.record import Fingerprint
from mlc.targets.base import Target
from mlc.tuning.models.gbt import GradientBoosting
from mlc.tuning.models.transfer import Additive

FOLDER = Path(__file__).with_name("priors")
_SUFFIX = ".ubj"


def prior_of(target: Target) -> Additive | None:
    """What comes with the tuner for processors like this; nothing for others."""
    own = file_of(target)
    for file in [own] if own.is_file() else sorted(FOLDER.glob(f"{family_of(target)}-*{_SUFFIX}")):
        model, of = _kept(file)
        if Fingerprint.of(target).is_family_of(of):
            return model
    return None


def file_of(target: Target) -> Path:
    """Where what is known for a target's processor is shipped; the file need not exist."""
    return FOLDER / f"{family_of(target)}-{target.describe().get('cpu', '')}{_SUFFIX}"


def keep(model: GradientBoosting, target: Target, file: Path) -> None:
    """Writes what a model has learnt of operators on a target."""
    of = Fingerprint.of(target)
    model.save(file, {"of": json.dumps({"cpu": of.cpu, "features": of.features, "lanes": of.lanes})})


@cache
def _kept(file: Path) -> tuple[GradientBoosting, Fingerprint]:
    model, about = GradientBoosting.load(file)
    of = json.loads(about["of"])
    return model, Fingerprint(of["cpu"], tuple(of["features"]), of["lanes"])

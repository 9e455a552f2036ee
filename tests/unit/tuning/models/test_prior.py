"""What the tuner knows before its first trial."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.papers.held_out import knowns_of
from mlc.targets.base import get_target
from mlc.tuning.models.gbt import GradientBoosting
from mlc.tuning.models.prior import keep, prior_of
from mlc.tuning.options import TuneOptions
from mlc.tuning.transfer import cost_models

TARGET = get_target("x86 -mcpu=znver5")


def test_orders_configurations_of_an_operator_it_has_not_seen() -> None:
    """Fails as well where features have come to mean something else than when it was taught."""
    prior = prior_of(TARGET)
    assert prior is not None
    (known,) = knowns_of(["odd-3x3"], "znver5")
    rows = np.array([known.setting.part.space.at(int(n)) for n in known.table.number[:257]])
    speeds = known.speeds[:257]
    scores = prior.predict(known.features(rows))
    ranks = np.stack([np.argsort(np.argsort(values)) for values in (scores, speeds)])
    assert np.corrcoef(ranks)[0, 1] > 0.5


def test_each_processor_has_its_own_and_others_take_those_of_like_units() -> None:
    zen3, zen4, zen5, rapids, haswell, tiger, skylake = (
        prior_of(get_target(f"x86 -mcpu={cpu}"))
        for cpu in ("znver3", "znver4", "znver5", "sapphirerapids", "haswell", "tigerlake", "skylake-avx512")
    )
    assert len({id(known) for known in (zen3, zen4, zen5, rapids)}) == 4
    assert (haswell, tiger, skylake) == (zen3, zen4, rapids)
    assert haswell is not None


@pytest.mark.parametrize("other", ["x86 -mcpu=nehalem", "arm -mcpu=cortex-a72"])
def test_tells_nothing_of_other_processors(other: str) -> None:
    assert prior_of(get_target(other)) is None


def test_only_the_default_explorer_begins_with_it() -> None:
    assert cost_models(TuneOptions(), TARGET, None) is not None
    assert cost_models(TuneOptions(explorer="annealing"), TARGET, None) is None


def test_trees_survive_storage(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    features = rng.random((64, 5)).astype(np.float32)
    model = GradientBoosting(rounds=5)
    model.fit(features, features[:, 2])
    keep(model, TARGET, tmp_path / "some.ubj")
    again, about = GradientBoosting.load(tmp_path / "some.ubj")
    assert "znver5" in about["of"]
    np.testing.assert_array_equal(again.predict(features), model.predict(features))

"""A measurer of tasks whose candidates misbehave when their configuration says so."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from mlc.tuning.measure import LocalMeasurer, MeasureOptions
from tests.e2e.measure.faulty import QUICK, FaultyTarget
from tests.unit.tuning.measure.tasks import OPTIONS, product, task_of


@pytest.fixture(scope="session")
def target() -> FaultyTarget:
    return FaultyTarget.from_options({})


@pytest.fixture(scope="module")
def measurer(target: FaultyTarget, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalMeasurer]:
    """One measurer for all tests of a module: what one of them breaks must not hurt the next."""
    target.folder = tmp_path_factory.mktemp("faults")
    options = MeasureOptions(build_timeout=2.0, run_timeout=2.0, memory=1 << 30, rule=QUICK)
    with LocalMeasurer(
        [task_of(product(), target), task_of(product(16, 16, 48), target)],
        target,
        threads=1,
        compile_options=OPTIONS,
        options=options,
        rng=np.random.default_rng(0),
    ) as made:
        yield made

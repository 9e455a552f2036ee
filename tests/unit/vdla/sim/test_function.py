"""Every instruction, vectorised, against the plain Python reference."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.vdla.config import PROFILES, VdlaConfig
from tests.unit.vdla.sim.machines import BATCH, SMALL, random_instructions, random_pair

FULL = PROFILES["full"]


@pytest.mark.parametrize("config", [SMALL, BATCH], ids=["square", "batch of 2, 4 by 3"])
@pytest.mark.parametrize("seed", range(8))
def test_random_instructions_change_the_same_state(config: VdlaConfig, seed: int) -> None:
    rng = np.random.default_rng(seed)
    pair = random_pair(config, rng)
    for instruction in random_instructions(config, rng, 60):
        pair.step(instruction)
        pair.compare()

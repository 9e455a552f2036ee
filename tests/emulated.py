"""Modules for other processors, under an emulator, for tests; without one they are skipped, and say so."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import mlc
from mlc.runtime import emulate_module
from mlc.runtime.toolchain import compiler_for, emulator_for
from mlc.targets.arm.target import ArmTarget

PROCESSOR = "MLC_TEST_PROCESSOR"
"""The variable that names the processor that small models are compiled for, where it is not this machine's."""
_MISSING = [
    name
    for name, found in (
        ("qemu-user-static", emulator_for(ArmTarget.triple, "cortex-a53")),
        ("gcc-aarch64-linux-gnu or ziglang", compiler_for(ArmTarget.triple, static=True)),
    )
    if found is None
]
needs_emulator = pytest.mark.skipif(bool(_MISSING), reason=f"not installed: {', '.join(_MISSING)}")


def emulated(package: mlc.Package, feeds: Mapping[str, np.ndarray], threads: int = 1) -> dict[str, np.ndarray]:
    """Outputs of a package for another machine, run through its C example."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "module.tar"
        package.save(path)
        with emulate_module(path, threads) as module:
            return module.run(feeds)

"""The directed tests of operators once more, for ARM processors under an emulator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.emulated import needs_emulator

pytestmark = needs_emulator

FOLDER = Path(__file__).parents[1]
FILES = sorted(path.name for path in FOLDER.glob("test_directed_*.py"))
PROCESSORS = ("cortex-a53", "cortex-a76", "neoverse-v1")


def run(processor: str, file: str, *options: str) -> None:
    """All tests of a file with small models compiled for a processor."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", f"--processor={processor}", *options, file]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:]


def test_a_sample() -> None:
    run("cortex-a53", "test_directed_numbers.py", "-k", "long_integers or nan_and_infinity")


@pytest.mark.slow
@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("file", FILES)
def test_directed_operators(file: str, processor: str) -> None:
    run(processor, file)

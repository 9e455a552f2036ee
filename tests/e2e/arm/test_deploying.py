"""Every command of ``docs/deploying.md``, with qemu in the board's place."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from benchmarks.zoo import build
from tests.emulated import needs_emulator
from tests.ports import free_port

PAGE = Path(__file__).parents[3] / "docs" / "deploying.md"
BOARD, POOL = (
    "".join(re.findall(r"```sh\n(.*?)```", part, re.DOTALL)) for part in PAGE.read_text().split("## A pool of boards")
)


def run(commands: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs commands of the page, with a port that nobody uses."""
    onnx.save(build("resnet8", small=True), folder / "model.onnx")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    commands = commands.replace("8786", str(free_port()))
    return subprocess.run(
        ["bash", "-e", "-c", commands], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@needs_emulator
@pytest.mark.skipif(shutil.which("aarch64-linux-gnu-gcc") is None, reason="no gcc-aarch64-linux-gnu")
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    done = run(BOARD, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "output0.bin: " in done.stdout
    assert "needs          neon" in done.stdout


def test_a_pool_is_made_and_used_as_the_page_says(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    pytest.importorskip("cryptography")
    done = run(POOL, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "GFLOP/s" in done.stdout
    assert "8 trials" in done.stdout + done.stderr
    assert "board1 leaves" in done.stdout + done.stderr

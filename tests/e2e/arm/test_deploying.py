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

PAGE = Path(__file__).parents[3] / "docs" / "deploying.md"
COMMANDS = "".join(re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL))


@needs_emulator
@pytest.mark.skipif(shutil.which("aarch64-linux-gnu-gcc") is None, reason="no gcc-aarch64-linux-gnu")
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    onnx.save(build("resnet8", small=True), tmp_path / "model.onnx")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-e", "-c", COMMANDS], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "output0.bin: " in done.stdout
    assert "needs          neon" in done.stdout

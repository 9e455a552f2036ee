"""Golden texts: compared by those that ask for them, and none outlives its test."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import golden_name

TESTS = Path(__file__).parent

SAMPLE = """
def test_equal(golden): golden("as written")
def test_other(golden): golden("another")
def test_first(golden): golden("not written yet")
def test_forgotten(golden): pass
def test_twice(golden): golden("as written"); golden("as written")
"""


def test_every_golden_text_has_its_test(request: pytest.FixtureRequest) -> None:
    """Down to its parameters, where whole files were collected."""
    options = request.config.option
    picked = options.keyword or any("::" in a for a in request.config.args)
    collected: dict[Path, set[str]] = {}
    for item in [] if picked else request.session.items:
        collected.setdefault(Path(item.path), set()).add(golden_name(item.name))
    orphans = []
    for file in TESTS.rglob("golden/*/*.txt"):
        module = file.parents[2] / f"{file.parent.name}.py"
        test = file.stem.partition("[")[0]
        known = module.exists() and re.search(rf"^def {re.escape(test)}\(.*golden", module.read_text(), re.MULTILINE)
        if not known or file.stem not in collected.get(module, {file.stem}):
            orphans.append(str(file.relative_to(TESTS)))
    assert not orphans


@pytest.mark.parametrize("update", [False, True])
def test_golden_text_is_compared_or_rewritten(tmp_path: Path, update: bool) -> None:
    (tmp_path / "test_sample.py").write_text(SAMPLE)
    folder = tmp_path / "golden" / "test_sample"
    folder.mkdir(parents=True)
    for name in ("equal", "other", "twice"):
        (folder / f"test_{name}.txt").write_text("as written")
    options = ["--update-golden"] if update else []
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        *options,
        tmp_path,
    ]
    done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=False)
    faults = set(re.findall(r"^(?:FAILED|ERROR) .*::(test_\w+)", done.stdout, re.MULTILINE))
    if update:
        assert faults == {"test_forgotten", "test_twice"}
        assert (folder / "test_other.txt").read_text() == "another"
        assert (folder / "test_first.txt").read_text() == "not written yet"
    else:
        assert faults == {"test_other", "test_first", "test_forgotten", "test_twice"}
        assert (folder / "test_other.txt").read_text() == "as written"
        assert not (folder / "test_first.txt").exists()

"""No golden text outlives its test."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent


def test_every_golden_text_has_its_test() -> None:
    orphans = []
    for file in TESTS.rglob("golden/*/*.txt"):
        module = file.parents[2] / f"{file.parent.name}.py"
        test = file.stem.partition("[")[0]
        if not module.exists() or not re.search(rf"^def {re.escape(test)}\(.*golden", module.read_text(), re.MULTILINE):
            orphans.append(str(file.relative_to(TESTS)))
    assert not orphans

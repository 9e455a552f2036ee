"""What a fresh clone and the continuous build install and run."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUN = (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_continuous_build_runs_lint_types_and_tests():
    targets = re.findall(r"^make (.+)$", RUN, re.MULTILINE)
    assert {"lint", "test"} <= {word for line in targets for word in line.split()}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    lint = makefile.partition("\nlint:")[2].partition("\n\n")[0]
    assert "ruff check" in lint
    assert "ruff format --check" in lint
    assert "mypy" in lint


def test_libraries_that_tests_may_skip_for_are_installed_for_them():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *project["optional-dependencies"]["dev"],
        *re.findall(r"'([a-z_]+==[^']+)'", RUN),
    ]
    installed = {re.split(r"[<>=]", w)[0].replace("-", "_") for w in wanted}
    imported = {
        name.partition(".")[0]
        for path in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r'importorskip\("([\w.]+)"', path.read_text(encoding="utf-8"))
    }
    called = {"xgboost": "xgboost_cpu", "cuda": "cuda_bindings", "sklearn": "scikit_learn"}
    assert {called.get(name, name) for name in imported} <= installed

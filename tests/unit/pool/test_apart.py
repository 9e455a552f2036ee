"""Whoever works on one machine needs nothing of a pool."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mlc.errors import MissingDependencyError
from mlc.pool.certificates import Authority, Role
from mlc.pool.cluster import prepared
from mlc.pool.secure import Address, security_of

_LOCAL = """
import sys
import mlc, mlc.api.tuning, mlc.cli.compile_model, mlc.cli.run, mlc.cli.tune, mlc.tuning.drive
found = {name.partition(".")[0] for name in sys.modules} & {"dask", "distributed", "tornado", "cryptography"}
print(found | {name for name in sys.modules if name.startswith("mlc.pool")})
"""


def test_tuning_on_one_machine_imports_nothing_of_it() -> None:
    done = subprocess.run([sys.executable, "-c", _LOCAL], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_libraries_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("dask", "dask.config", "cryptography", "distributed", "distributed.security"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependencyError, match=r"takes dask\.distributed") as missing:
        prepared()
    assert missing.value.hint == "pip install 'mlc[pool]'"
    with pytest.raises(MissingDependencyError, match="takes cryptography"):
        Authority(tmp_path / "ca")
    assert security_of(Address("127.0.0.1", 1, plain=True), None, Role.CLIENT) is None

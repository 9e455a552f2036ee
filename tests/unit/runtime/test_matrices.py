"""Registers of matrices that Linux does not give."""

from __future__ import annotations

import pytest

from mlc.errors import DeviceError
from mlc.runtime import native
from mlc.runtime.manifest import TargetSpec


def test_a_module_that_uses_them_is_refused_where_linux_does_not_give_them(monkeypatch: pytest.MonkeyPatch) -> None:
    import llvmlite.binding as llvm

    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: {"amx-tile": True})
    monkeypatch.setattr(llvm, "get_process_triple", lambda: "x86_64-unknown-linux-gnu")
    spec = TargetSpec("x86 -mcpu=sapphirerapids", "x86_64-unknown-linux-gnu", "sapphirerapids", ("amx-tile",))
    monkeypatch.setattr(native, "has_matrices", lambda: True)
    native.check_device(spec)
    monkeypatch.setattr(native, "has_matrices", lambda: False)
    with pytest.raises(DeviceError, match="Linux refuses AMX") as info:
        native.check_device(spec)
    assert info.value.hint == "compile it with -mattr=-amx-tile"

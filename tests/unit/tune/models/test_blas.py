"""Threads of numpy's linear algebra."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlc.tune.models import blas


def test_one_thread_for_a_while_and_then_as_before() -> None:
    libraries = blas._libraries()
    if not libraries:
        pytest.skip("numpy computes with another library than OpenBLAS")
    before = [get() for get, _ in libraries]
    with blas.one_blas_thread():
        assert [get() for get, _ in libraries] == [1] * len(libraries)
    assert [get() for get, _ in libraries] == before
    with pytest.raises(ZeroDivisionError), blas.one_blas_thread():
        raise ZeroDivisionError
    assert [get() for get, _ in libraries] == before


@pytest.mark.parametrize(
    "maps", [None, "7f00-7f01 r-xp 0000 00:00 1    /nowhere/libopenblas.so.0\n7f02-7f03 r-xp 0 0 0\n"]
)
def test_where_there_is_no_such_library_nothing_happens(
    maps: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "maps"
    if maps is not None:
        file.write_text(maps)
    monkeypatch.setattr(blas, "_MAPS", file)
    blas._libraries.cache_clear()
    try:
        assert blas._libraries() == ()
        with blas.one_blas_thread():
            pass
    finally:
        blas._libraries.cache_clear()

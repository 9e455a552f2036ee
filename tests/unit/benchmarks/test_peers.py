"""The registry of engines and how they are named."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from benchmarks import peers
from benchmarks.peers import PEERS, EngineError, Peer, aligned, parse_engine, parse_engines, require_installed
from benchmarks.peers.ours import keywords


def test_every_engine_has_a_module() -> None:
    for peer in PEERS.values():
        assert importlib.util.find_spec(f"benchmarks.peers.{peer.module}"), peer.name


def test_engines_are_separated_by_commas_outside_brackets() -> None:
    specs = parse_engines("mlc,mlc[opt_level=1,target=x86 -mcpu=haswell],onnxruntime")
    assert [spec.label for spec in specs] == ["mlc", "mlc[opt_level=1,target=x86 -mcpu=haswell]", "onnxruntime"]
    assert dict(specs[1].options) == {"opt_level": "1", "target": "x86 -mcpu=haswell"}
    assert [spec.ours for spec in specs] == [True, True, False]


@pytest.mark.parametrize(
    "text, message",
    [
        ("onxruntime", "no engine is called 'onxruntime'"),
        ("mlc[opt_level", "is not an engine"),
        ("mlc[opt_level]", "is not KEY=VALUE"),
        ("mlc[a=1,a=2]", "comes twice"),
        ("onnxruntime[threads=2]", "onnxruntime has no option threads"),
        ("", "is not an engine"),
    ],
)
def test_engines_that_make_no_sense_are_refused(text: str, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        parse_engine(text)


def test_an_engine_named_twice_is_refused() -> None:
    with pytest.raises(EngineError, match="named twice"):
        parse_engines("mlc,mlc")


def test_a_peer_that_is_not_installed_is_refused_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(peers.PEERS, "absent", Peer("absent", "ort", ("no-such-package",), ""))
    with pytest.raises(EngineError, match=r"absent needs no-such-package, .*pip install '\.\[bench\]'"):
        require_installed([parse_engine("absent")])


def test_options_of_ours_become_arguments() -> None:
    options = {"opt_level": "1", "winograd": "off", "disabled_passes": "fuse+cse", "target": "x86", "source": "src"}
    expected = {"opt_level": 1, "winograd": False, "disabled_passes": ("fuse", "cse"), "target": "x86"}
    assert keywords(options) == expected


def test_aligned_copies_begin_at_cache_lines() -> None:
    array = np.arange(12, dtype=np.int64).reshape(3, 4)
    copy = aligned(array)
    assert copy.ctypes.data % 64 == 0
    assert np.array_equal(copy, array)


@pytest.mark.parametrize("name", PEERS)
def test_modules_of_engines_have_what_the_registry_says(name: str) -> None:
    # Looked up in the text: importing all of these libraries into one process takes long and may end badly.
    spec = importlib.util.find_spec(f"benchmarks.peers.{PEERS[name].module}")
    assert spec is not None
    assert spec.origin is not None
    text = Path(spec.origin).read_text()
    assert ("\ndef compile(" in text) == PEERS[name].ahead
    assert "\ndef load(" in text

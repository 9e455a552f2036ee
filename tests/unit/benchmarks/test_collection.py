"""The collection: names, and what becomes of a network on its way to a file."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from benchmarks.collection import ENTRIES
from benchmarks.collection.__main__ import main
from benchmarks.collection.entry import Entry, answering, export


def test_there_are_many_networks_of_different_names() -> None:
    assert len(ENTRIES) >= 60
    assert all(name == entry.name and name.isidentifier() for name, entry in ENTRIES.items())


def test_list_names_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--models", "timm_rexnet_100,text_bert"]) == 0
    assert capsys.readouterr().out.split() == ["timm_rexnet_100", "text_bert"]


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--models", "nope"])
    assert "not in the collection: nope; --list prints what is" in capsys.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed (extra collection)")
def test_a_network_is_written_as_onnx(tmp_path: Path) -> None:
    import onnx
    import torch

    def build() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
        layers = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
        return answering(layers, lambda network, x: network(x)[:, :2]), (torch.randn(1, 3, 8, 8),)

    export(Entry("small", build), tmp_path / "small.onnx")
    model = onnx.load(tmp_path / "small.onnx")
    assert [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim] == [1, 2, 6, 6]
    assert list(tmp_path.iterdir()) == [tmp_path / "small.onnx"]

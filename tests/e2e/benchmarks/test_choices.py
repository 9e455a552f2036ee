"""What ``mlc tune --list`` shows of the zoo: factorisations and orders nearly everywhere, in large spaces."""

from __future__ import annotations

import subprocess

import pytest

from benchmarks import identical
from benchmarks.choices import HEAVY, LEAST, SHARE, choices_of, main
from benchmarks.zoo import MODELS

SMALLER = {  # products with fewer than 10^5 configurations, and how many they have at least
    "resnet8": 10_000,  # Winograd's over 16 channels, one vector of an AVX-512 processor
    "dcgan": 4,  # the last layer: 3 output channels, row-major
    "lstm_lm": 500,  # gates of a step, whose product has one row
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_nearly_all_operations_have_tilings_and_orders_to_choose(name: str) -> None:
    found = choices_of(name, "x86 -mcpu=znver4")
    assert found.share >= SHARE
    for kind, (size, kernel) in found.least.items():
        assert size >= (SMALLER.get(name, LEAST[kind]) if kind == "product" else LEAST[kind]), kernel
    assert HEAVY < 1 - SHARE


def test_the_command_says_what_is_too_small(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["C3", "--target", "x86 -mcpu=haswell"]) == 0
    monkeypatch.setitem(LEAST, "product", 10**12)
    assert main(["C3", "--target", "x86 -mcpu=haswell"]) == 1
    assert "| NO |" in capsys.readouterr().out


@pytest.mark.slow
def test_kernels_are_those_of_their_revision(capsys: pytest.CaptureFixture[str]) -> None:
    if subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, check=False).returncode:
        pytest.skip("not a repository")
    assert identical.main(["HEAD", "C3", "D9"]) == 0
    with pytest.raises(SystemExit, match="no-such-revision"):
        identical.main(["no-such-revision", "C3"])
    assert "| C3 |" in capsys.readouterr().out

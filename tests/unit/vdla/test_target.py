from __future__ import annotations

import pytest

from mlc.errors import UsageError
from mlc.targets.base import get_target, target_names
from mlc.vdla.config import PROFILES
from mlc.vdla.target import VdlaTarget


def vdla(text: str) -> VdlaTarget:
    target = get_target(text)
    assert isinstance(target, VdlaTarget)
    return target


def test_it_is_in_the_table() -> None:
    assert "vdla" in target_names()
    assert vdla("vdla").config == PROFILES["full"]


def test_options_go_where_they_belong() -> None:
    target = vdla("vdla -profile=osdi18 -dram_latency=60 -host=x86 -mcpu=haswell -ext_alu=on")
    assert (target.config.dram_latency, target.config.ext_alu, target.config.ext_store_requant) == (60, True, False)
    facts = target.describe()
    assert facts["cpu"] == "haswell"
    assert facts["string"] == "vdla -profile=osdi18 -ext_alu=true -dram_latency=60 -host=x86 -mcpu=haswell"
    again = vdla(str(facts["string"]))
    assert again.config == target.config
    assert again.describe() == facts
    assert target.accelerator.options()["dram_latency"] == "60"


def test_a_record_may_come_from_a_file(tmp_path) -> None:
    file = tmp_path / "record.toml"
    file.write_text('profile = "osdi18_i8"\nfreq_mhz = 100\n')
    target = vdla(f"vdla -config={file}")
    config = target.config
    assert str(target.describe()["string"]).startswith("vdla -profile=osdi18_i8 -freq_mhz=100 -host=x86")
    assert (config.freq_mhz, config.ext_store_requant, config.ext_alu) == (100, True, False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vdla -profile=best", "no profile is called 'best'"),
        ("vdla -dram_latency=soon", "dram_latency=soon: expected a whole number"),
        ("vdla -host=vdla", "the host is vdla itself"),
        ("vdla -host=toaster", "target vdla: unknown target 'toaster'"),
        ("vdla -dram=60", "target vdla: target x86 has no option -dram"),
        ("vdla -block_out=32", "blocks of 16 and 32 channels, 1 images; models are compiled for equal blocks"),
        ("vdla -batch=2", "blocks of 16 and 16 channels, 2 images"),
        (
            "vdla -block_in=24 -block_out=24 -inp_bytes=24576 -wgt_bytes=36864 -acc_bytes=98304",
            "blocks of 24 and 24 channels",
        ),
        ("vdla -config=none.toml", "none.toml: cannot be read"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        get_target(text)

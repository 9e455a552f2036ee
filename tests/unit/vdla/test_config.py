"""The hardware record: what follows from it, how it is read, and which records are impossible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlc.errors import UsageError
from mlc.vdla.config import PROFILES, VdlaConfig, load_config, profile_of


def test_the_published_design() -> None:
    config = PROFILES["osdi18"]
    assert (config.inp_depth, config.wgt_depth, config.acc_depth, config.uop_depth) == (2048, 128, 2048, 8192)
    assert (config.inp_element, config.wgt_element, config.acc_element, config.out_element) == (16, 256, 64, 16)
    assert (config.dst_bits, config.src_bits, config.wgt_bits, config.uop_bits, config.uop_end_bits) == (
        11,
        11,
        7,
        13,
        14,
    )
    assert config.macs_per_cycle * config.freq_mhz * 2 / 1000 == 102.4  # the paper's peak, in GOPS
    assert config.bytes_per_cycle == 7.875


def test_the_hash_tells_architectures_apart_and_not_times() -> None:
    assert len({config.hash for config in PROFILES.values()}) == 3
    assert VdlaConfig(dram_latency=1, freq_mhz=100).hash == VdlaConfig().hash
    assert VdlaConfig(dep_queue_depth=8).hash != VdlaConfig().hash


def test_a_file_and_single_fields_change_a_profile(tmp_path: Path) -> None:
    toml, json = tmp_path / "a.toml", tmp_path / "a.json"
    toml.write_text('profile = "osdi18_i8"\nacc_bytes = 65536\n')
    json.write_text('{"ext_alu": true}')
    config = load_config(file=toml, overrides=["dram_latency=60", "dram_bytes_per_cycle=4", "ext_alu=on"])
    assert config == VdlaConfig(
        acc_bytes=65536,
        dram_latency=60,
        dram_bytes_per_cycle=4.0,
        ext_alu=True,
        ext_store_requant=True,
        ext_gemm_set=True,
    )
    assert profile_of(config) is None
    assert load_config("osdi18", file=json) == VdlaConfig(ext_alu=True)
    assert profile_of(load_config()) == "full"


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"batch": 0}, "batch is 0; expected a whole number of at least 1"),
        ({"batch": 1.5}, "batch is 1.5; expected a whole number"),
        ({"dram_latency": -1}, "dram_latency is -1; expected a whole number of at least 0"),
        ({"dram_bytes_per_cycle": float("nan")}, "dram_bytes_per_cycle is nan; expected a number"),
        ({"ext_alu": 1}, "ext_alu is 1; expected true or false"),
        ({"dram_latency": 1 << 40}, "dram_latency is 1099511627776; expected a whole number of at most 1073741824"),
        ({"dram_bytes_per_cycle": 1e-300}, "dram_bytes_per_cycle is 1e-300; expected a number of at least 0.000976562"),
        ({"port_bytes_per_cycle": 1e300}, "port_bytes_per_cycle is 1e.300; expected a number of at most 1073741824"),
        ({"inp_bytes": 1000}, "inp_bytes is 1000; expected two or more whole elements of 16 bytes"),
        ({"wgt_bytes": 256}, "wgt_bytes is 256; expected two or more whole elements"),
        ({"acc_bytes": 1 << 23}, "acc_bytes is 8388608: an address has only 16 bits"),
        ({"uop_bytes": 1 << 16}, "word 0 of GEMM would need 66 bits"),
        ({"acc_bytes": 1 << 18, "ext_alu": True}, "word 1 of ALU would need 68 bits"),
        ({"acc_bytes": 1 << 18, "inp_bytes": 1 << 17, "wgt_bytes": 1 << 18}, "word 1 of GEMM would need 70 bits"),
        ({"wgt_bytes": 1 << 18, "ext_gemm_set": True}, "a micro-op would need 33 bits"),
    ],
)
def test_impossible_records_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        VdlaConfig(**fields)


@pytest.mark.parametrize(
    "text, message",
    [
        ("dram_latency", "'dram_latency' is not FIELD=VALUE"),
        ("dram=1", "the accelerator has no field 'dram'"),
        ("dram_latency=x", "dram_latency=x: expected a whole number"),
        ("dram_bytes_per_cycle=x", "dram_bytes_per_cycle=x: expected a number"),
        ("ext_alu=maybe", "ext_alu=maybe: expected true or false"),
    ],
)
def test_options_that_change_no_field(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_config(overrides=[text])


def test_files_that_are_no_records(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no profile is called 'half'"):
        load_config("half")
    with pytest.raises(UsageError, match=r"gone.toml: cannot be read: No such file"):
        load_config(file=tmp_path / "gone.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("= 1")
    with pytest.raises(UsageError, match=r"bad.toml: not TOML"):
        load_config(file=bad)
    bad = tmp_path / "bad.json"
    bad.write_text("[1]")
    with pytest.raises(UsageError, match=r"bad.json: expected fields by name"):
        load_config(file=bad)
    bad.write_text('{"profile": ["full"]}')
    with pytest.raises(UsageError, match=r"no profile is called \['full'\]"):
        load_config(file=bad)
    bad.write_text('{"unknown": 1}')
    with pytest.raises(UsageError, match="the accelerator has no field 'unknown'"):
        load_config(file=bad)

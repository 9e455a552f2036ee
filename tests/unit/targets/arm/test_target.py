"""The ARM target: its processors, options and refusals."""

from __future__ import annotations

import pytest

from mlc.errors import UsageError
from mlc.targets.arm.features import _OF
from mlc.targets.arm.record import NAMES, record_for
from mlc.targets.arm.target import ArmTarget
from mlc.targets.base import get_target


def test_every_processor_has_a_record_and_features() -> None:
    assert set(_OF) == set(NAMES)
    for name in NAMES:
        record = record_for(name)
        assert (record.lanes, record.registers) == (4, 32)
        assert record.l1 <= record.l2 <= record.l3
        assert record.l2_bandwidth > record.l3_bandwidth > record.memory_bandwidth


def test_small_cores_take_operations_in_order() -> None:
    assert {name for name in NAMES if record_for(name).in_order} == {"cortex-a53", "cortex-a55"}


def test_a_target_says_what_it_is() -> None:
    facts = get_target("arm -mcpu=cortex-a76 -mattr=-dotprod").describe()
    assert facts["string"] == "arm -mcpu=cortex-a76"
    assert facts["triple"] == "aarch64-unknown-linux-gnu"
    assert facts["features"] == ["fullfp16", "lse", "neon", "rdm"]
    assert get_target("arm -mcpu=generic").describe()["features"] == ["neon"]


def test_it_is_linked_for_either_c_library() -> None:
    assert get_target("arm -mcpu=cortex-a53 -libc=musl").describe()["triple"] == "aarch64-unknown-linux-musl"
    assert get_target("arm -libc=gnu").describe()["triple"] == ArmTarget.triple == "aarch64-unknown-linux-gnu"


def test_sums_in_half_have_to_be_asked_for() -> None:
    assert get_target("arm -mcpu=cortex-a76 -sums=f16").describe()["string"] == "arm -mcpu=cortex-a76 -sums=f16"
    assert get_target("arm -mcpu=cortex-a72 -mattr=+fullfp16 -sums=f16").sums_in_half()
    assert not get_target("arm -mcpu=cortex-a76").sums_in_half()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arm -mcpu=cortex-m4", "target arm: unknown processor 'cortex-m4'"),
        ("arm -cores=2", "target arm has no option -cores"),
        ("arm -libc=bionic", "target arm: unknown C library 'bionic'"),
        ("arm -sums=f64", "target arm: sums are not 'f64'"),
        ("arm -mcpu=cortex-a72 -sums=f16", "target arm: cortex-a72 does not compute in f16"),
        ("arm -mattr=dotprod", "target arm: -mattr has 'dotprod'"),
        ("arm -mattr=+dotprot", "target arm: unknown feature 'dotprot'"),
    ],
)
def test_what_it_refuses(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        get_target(text)


def test_native_is_for_arm_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    with pytest.raises(UsageError, match="this machine is no ARM processor"):
        get_target("arm -mcpu=native")
    assert get_target("arm").describe()["cpu"] == "generic"

"""What can be compiled for, and what of it this machine can run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlc.errors import DeviceError, MlcError
from mlc.runtime import TargetSpec
from mlc.runtime.device import CPU, Named, numbered, open_device
from mlc.runtime.native import available_cores, check_device

MOST = 64  # devices of a kind that are looked for


@dataclass(frozen=True)
class TargetInfo:
    """A target, as ``mlc targets`` lists it.

    Args:
        name: what users type.
        facts: what it stands for on this machine, by name: ``triple``, ``cpu``, ``features`` …
        compiles: code for it can be generated here.
        runs: such code can be run here.
        reason: why it does not compile or run; empty when it does both.
    """

    name: str
    facts: Mapping[str, Any]
    compiles: bool
    runs: bool
    reason: str


def targets() -> list[TargetInfo]:
    """Every installed target, and what this machine can do with it."""
    from mlc.targets.base import Tooled, get_target, target_names

    found = []
    for name in target_names():
        try:
            target = get_target(name)
            facts: Mapping[str, Any] = target.describe()
            if isinstance(target.accelerator, Tooled):
                target.accelerator.require_tools()
        except MlcError as error:
            found.append(TargetInfo(name, {}, False, False, error.message))
            continue
        try:
            check_device(TargetSpec.from_facts(facts))
            if (beside := target.accelerator) is not None:
                opened = open_device(beside.device, beside.options())
                opened.close()
                if isinstance(opened, Named):
                    facts = {"device": opened.name, **facts}
            reason = ""
        except DeviceError as error:
            reason = error.message
        found.append(TargetInfo(name, facts, True, not reason, reason))
    return found


def devices() -> list[tuple[str, str]]:
    """What modules can run on here, as ``mlc run --device`` takes it, with what it is; nothing of what has no name."""
    from mlc.targets.base import get_target, target_names

    found = [(CPU, f"{available_cores()} cores")]
    for name in target_names():
        for number in range(MOST):
            try:
                beside = get_target(name).accelerator
                if beside is None:
                    break
                opened = open_device(beside.device, numbered(beside.options(), number))
                opened.close()
            except MlcError:
                break
            found.append((f"{name}:{number}" if number else name, opened.name if isinstance(opened, Named) else ""))
            if not isinstance(opened, Named):
                break
    return found

"""The hardware record of the accelerator, its profiles, and how one is read.

Everything else asks the record: widths of instruction fields, capacities, times. Only the *architectural* fields enter
``VdlaConfig.hash``, which programs carry: those that decide what a program means and whether it is legal. Times do not,
so that one program can be simulated under several assumptions about memory.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from mlc.errors import UsageError
from mlc.vdla.isa.fields import check_widths

_TIME = {"time": True}


@dataclass(frozen=True)
class VdlaConfig:
    """One accelerator. Sizes are bytes, times cycles of ``freq_mhz``; the defaults are profile ``osdi18``.

    Raises:
        UsageError: a field is out of range, or the instruction or micro-op fields that follow from it do not fit.
    Source: TVM (OSDI 2018), section 6.4, for the arrays and their sizes; the board's data sheets for the port and the
        memory; latencies and queue depths are assumptions.
    """

    batch: int = 1
    block_in: int = 16
    block_out: int = 16
    inp_bytes: int = 32 * 1024
    wgt_bytes: int = 32 * 1024
    uop_bytes: int = 32 * 1024
    acc_bytes: int = 128 * 1024
    dep_queue_depth: int = 256
    ext_alu: bool = False
    ext_store_requant: bool = False
    ext_gemm_set: bool = False

    freq_mhz: int = field(default=200, metadata=_TIME)
    port_bytes_per_cycle: float = field(default=8.0, metadata=_TIME)  # a 64-bit AXI port at the fabric's clock
    # 16-bit DDR3-1050 (2.1 GB/s) at 75 % controller efficiency: 1.575 GB/s.
    dram_bytes_per_cycle: float = field(default=7.875, metadata=_TIME)
    dram_latency: int = field(default=48, metadata=_TIME)
    dma_issue: int = field(default=4, metadata=_TIME)
    dma_outstanding: int = field(default=2, metadata=_TIME)
    burst_bytes: int = field(default=128, metadata=_TIME)  # 16 beats of AXI3
    burst_gap: int = field(default=0, metadata=_TIME)
    arb_bytes: int = field(default=1024, metadata=_TIME)
    gemm_fill: int = field(default=12, metadata=_TIME)
    alu_fill: int = field(default=12, metadata=_TIME)
    acc_latency: int = field(default=4, metadata=_TIME)
    cmd_queue_depth: int = field(default=64, metadata=_TIME)

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            _check_field(f.name, getattr(self, f.name), f.default)
        for memory in ("inp", "wgt", "uop", "acc"):
            size, element = getattr(self, f"{memory}_bytes"), getattr(self, f"{memory}_element")
            if size % element or size < 2 * element:
                raise UsageError(
                    f"{memory}_bytes is {size}; expected two or more whole elements of {element} bytes",
                    hint=f"use a multiple of {element}",
                )
        check_widths(self)

    # Bytes of one element of each on-chip memory.

    @property
    def inp_element(self) -> int:
        """Bytes of one input element, int8[batch, block_in]."""
        return self.batch * self.block_in

    @property
    def wgt_element(self) -> int:
        """Bytes of one weight element, int8[block_out, block_in]."""
        return self.block_out * self.block_in

    @property
    def acc_element(self) -> int:
        """Bytes of one accumulator element, int32[batch, block_out]."""
        return 4 * self.batch * self.block_out

    @property
    def out_element(self) -> int:
        """Bytes of one accumulator element narrowed to int8, as stores of OUT and loads of ACC8 move it."""
        return self.batch * self.block_out

    @property
    def uop_element(self) -> int:
        """Bytes of one micro-op."""
        return 4

    # Elements that each on-chip memory holds.

    @property
    def inp_depth(self) -> int:
        """Elements of the input buffer."""
        return self.inp_bytes // self.inp_element

    @property
    def wgt_depth(self) -> int:
        """Elements of the weight buffer."""
        return self.wgt_bytes // self.wgt_element

    @property
    def acc_depth(self) -> int:
        """Elements of the accumulator."""
        return self.acc_bytes // self.acc_element

    @property
    def uop_depth(self) -> int:
        """Micro-ops that the micro-op buffer holds."""
        return self.uop_bytes // self.uop_element

    # Widths, in bits, of the fields whose width follows from the record (see `isa/fields.py`).

    @property
    def dst_bits(self) -> int:
        """Bits of an accumulator index."""
        return _bits(self.acc_depth)

    @property
    def inp_bits(self) -> int:
        """Bits of an input index."""
        return _bits(self.inp_depth)

    @property
    def src_bits(self) -> int:
        """Bits of a micro-op's source: inputs for GEMM, the accumulator for ALU."""
        return max(self.inp_bits, self.dst_bits) if self.ext_alu else self.inp_bits

    @property
    def wgt_bits(self) -> int:
        """Bits of a weight index."""
        return _bits(self.wgt_depth)

    @property
    def uop_bits(self) -> int:
        """Bits of the index of a micro-op."""
        return _bits(self.uop_depth)

    @property
    def uop_end_bits(self) -> int:
        """Bits of an exclusive end in the micro-op buffer."""
        return _bits(self.uop_depth + 1)

    @property
    def first_bits(self) -> int:
        """1 where micro-ops say which product starts a sum; the bit is reserved without the extension that reads it."""
        return int(self.ext_gemm_set)

    @property
    def macs_per_cycle(self) -> int:
        """Multiply-accumulates of one GEMM step."""
        return self.batch * self.block_in * self.block_out

    @property
    def bytes_per_cycle(self) -> float:
        """Effective memory bandwidth: the narrower of port and DRAM."""
        return min(self.port_bytes_per_cycle, self.dram_bytes_per_cycle)

    @cached_property
    def hash(self) -> int:
        """64 bits that tell architectures apart; times have no part in them."""
        facts = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if not f.metadata.get("time")}
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).digest()
        return int.from_bytes(digest[:8], "little")

    def to_dict(self) -> dict[str, int | float | bool]:
        """All fields by name, for reports and program files."""
        return dataclasses.asdict(self)


def load_config(
    profile: str = "full",
    *,
    file: Path | None = None,
    overrides: Iterable[str] = (),
) -> VdlaConfig:
    """A record from a profile, a file that changes some of its fields, and single fields on top.

    Args:
        profile: one of ``PROFILES``; a file's own ``profile`` entry takes precedence.
        file: ``.toml`` or ``.json`` with fields by name.
        overrides: ``FIELD=VALUE`` each, as on the command line.
    Raises:
        UsageError: an unknown profile or field, a value of the wrong type, an unreadable file, a record that is not
            possible.
    """
    changes: dict[str, Any] = {}
    if file is not None:
        changes.update(_read_file(file))
        profile = changes.pop("profile", profile)
    changes.update(_parsed(overrides))
    if not isinstance(profile, str) or profile not in PROFILES:
        raise UsageError(f"no profile is called {profile!r}", hint="profiles: " + ", ".join(PROFILES))
    return with_fields(PROFILES[profile], changes)


def overridden(config: VdlaConfig, overrides: Iterable[str]) -> VdlaConfig:
    """The record with some fields changed, each given as ``FIELD=VALUE``; errors as ``load_config``."""
    return with_fields(config, _parsed(overrides))


def with_fields(config: VdlaConfig, changes: Mapping[str, Any]) -> VdlaConfig:
    """The record with some fields changed; an unknown name or a value of the wrong type is a UsageError."""
    for name in changes:
        _known(name)
    return dataclasses.replace(config, **changes)


def spelling(config: VdlaConfig) -> tuple[str, dict[str, str]]:
    """The profile that is nearest, and the fields that differ from it, as ``load_config`` reads them."""
    facts = config.to_dict()
    differences = {
        name: {key: _spelled(value) for key, value in facts.items() if getattr(known, key) != value}
        for name, known in PROFILES.items()
    }
    nearest = min(differences, key=lambda name: len(differences[name]))
    return nearest, differences[nearest]


def profile_of(config: VdlaConfig) -> str | None:
    """The profile that a record is, times included, or None."""
    return next((name for name, known in PROFILES.items() if known == config), None)


_DEFAULTS = {f.name: f.default for f in dataclasses.fields(VdlaConfig)}

_MOST = 1 << 30  # greater numbers mean nothing, and times would not be exact
_LEAST_RATE = 1 / 1024  # bytes a cycle
# The burst gap may be nothing; everything else that is a number must be something.
_MAY_BE_ZERO = {"burst_gap", "dram_latency", "dma_issue", "gemm_fill", "alu_fill"}


def _spelled(value: int | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _known(name: str) -> Any:
    if name not in _DEFAULTS:
        raise UsageError(f"the accelerator has no field {name!r}", hint="fields: " + ", ".join(_DEFAULTS))
    return _DEFAULTS[name]


def _check_field(name: str, value: Any, default: Any) -> None:
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise UsageError(f"{name} is {value!r}; expected true or false")
        return
    kind = "a number" if isinstance(default, float) else "a whole number"
    types = (int, float) if isinstance(default, float) else (int,)
    if isinstance(value, bool) or not isinstance(value, types) or not _finite(value):
        raise UsageError(f"{name} is {value!r}; expected {kind}")
    least = 0 if name in _MAY_BE_ZERO else _LEAST_RATE if isinstance(default, float) else 1
    if value < least:
        raise UsageError(f"{name} is {value}; expected {kind} of at least {least:g}")
    if value > _MOST:
        raise UsageError(f"{name} is {value}; expected {kind} of at most {_MOST}")


def _finite(value: int | float) -> bool:
    return isinstance(value, int) or math.isfinite(value)


def _parsed(overrides: Iterable[str]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for text in overrides:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"{text!r} is not FIELD=VALUE", hint="for example dram_latency=60")
        changes[name.strip()] = _parse(name.strip(), value.strip())
    return changes


def _parse(name: str, text: str) -> int | float | bool:
    default = _known(name)
    if isinstance(default, bool):
        words = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}
        if text.lower() not in words:
            raise UsageError(f"{name}={text}: expected true or false")
        return words[text.lower()]
    try:
        return float(text) if isinstance(default, float) else int(text)
    except ValueError:
        kind = "a number" if isinstance(default, float) else "a whole number"
        raise UsageError(f"{name}={text}: expected {kind}") from None


def _read_file(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
        facts = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror or error}") from error
    except (ValueError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: not {'JSON' if file.suffix == '.json' else 'TOML'}: {error}") from error
    if not isinstance(facts, dict):
        raise UsageError(f"{file}: expected fields by name")
    return facts


def _bits(count: int) -> int:
    """Bits that tell ``count`` values apart."""
    return (count - 1).bit_length()


PROFILES: dict[str, VdlaConfig] = {
    # As published: sums leave as int32, and the host does bias, requantisation, ReLU and residual additions.
    "osdi18": VdlaConfig(),
    "osdi18_i8": VdlaConfig(ext_store_requant=True, ext_gemm_set=True),
    "full": VdlaConfig(ext_alu=True, ext_store_requant=True, ext_gemm_set=True),
}

"""Where records lie that nobody named: those that come with this program, and those that the user's runs left.

Both hold the best of each kernel only, so a compilation can afford to look into them every time.
"""

from __future__ import annotations

import re
from pathlib import Path

from mlc.targets.base import Target, Whole

SUFFIX = ".jsonl"
SHIPPED = Path(__file__).parents[1] / "logs"
_UNFIT = re.compile(r"[^A-Za-z0-9_.-]+")


def shipped_file(target: Target) -> Path:
    """Where the records of the target's processor, or of its device that takes whole models, are shipped.

    The file need not exist.
    """
    if isinstance(target.accelerator, Whole):
        return SHIPPED / f"{target.accelerator.processor}{SUFFIX}"
    return SHIPPED / f"{family_of(target)}-{target.describe().get('cpu', '')}{SUFFIX}"


def shipped_files(target: Target) -> list[Path]:
    """The shipped records of the target's processor, or else those of all with the same vectors and units.

    What a good register tile is follows from how wide vectors are and how many multiply-adds start in a cycle: a
    Zen 4, which splits 512 bits in two, wants others than a Skylake, which does not. A device is like no other one.
    """
    own = shipped_file(target)
    if isinstance(target.accelerator, Whole):
        return [own] if own.is_file() else []
    return [own] if own.is_file() else sorted(SHIPPED.glob(f"{family_of(target)}-*{SUFFIX}"))


def family_of(target: Target) -> str:
    """Name of the processors with the same vectors and units, such as ``x86-512x2``."""
    facts = target.describe()
    name = str(facts.get("string", "")).split(" ", 1)[0]
    return f"{name}-{facts.get('vector_bits', 0)}x{facts.get('multiply_adds', 0)}"


def kept(cache: Path) -> Path:
    """The folder with the best of the user's own runs."""
    return cache / "records"


def journal_of(cache: Path, model: str, sha256: str) -> Path:
    """The file that holds all trials of a model, where the user names none."""
    return cache / "tuning" / f"{_UNFIT.sub('_', model)[:64]}-{sha256[:8] or 'model'}{SUFFIX}"


def default_files(target: Target, cache: Path) -> list[Path]:
    """Files to look into where the user names none."""
    return [*shipped_files(target), *(f for f in sorted(kept(cache).glob(f"*{SUFFIX}")) if f.is_file())]

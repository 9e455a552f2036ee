"""Where records lie that nobody named: those that come with this program, and those that the user's runs left.

Both hold the best of each kernel only, so a compilation can afford to look into them every time.
"""

from __future__ import annotations

import re
from pathlib import Path

from mlc.targets.base import Target

SUFFIX = ".jsonl"
SHIPPED = Path(__file__).parents[1] / "logs"
_UNFIT = re.compile(r"[^A-Za-z0-9_.-]+")


def family_file(target: Target) -> Path:
    """The file with shipped records for processors like the target's; it need not exist."""
    facts = target.describe()
    return SHIPPED / f"{str(facts.get('string', '')).split(' ', 1)[0]}-{facts.get('vector_bits', 0)}{SUFFIX}"


def kept(cache: Path) -> Path:
    """The folder with the best of the user's own runs."""
    return cache / "records"


def journal_of(cache: Path, model: str, sha256: str) -> Path:
    """The file that holds all trials of a model, where the user names none."""
    return cache / "tuning" / f"{_UNFIT.sub('_', model)[:64]}-{sha256[:8] or 'model'}{SUFFIX}"


def default_files(target: Target, cache: Path) -> list[Path]:
    """Files to look into where the user names none."""
    return [f for f in (family_file(target), *sorted(kept(cache).glob(f"*{SUFFIX}"))) if f.is_file()]

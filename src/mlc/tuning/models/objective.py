"""What a cost model is trained for (AutoTVM §3.2)."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from mlc.errors import UsageError


class Objective(StrEnum):
    """Which loss training minimises."""

    RANK = "rank"  # pairs in the wrong order, AutoTVM eq. 2
    REGRESSION = "regression"  # squared error of the speed

    @classmethod
    def of(cls, name: str) -> Self:
        """The objective of a name.

        Raises:
            UsageError: there is none.
        """
        try:
            return cls(name)
        except ValueError as error:
            raise UsageError(f"unknown objective {name!r}", hint=f"known objectives: {', '.join(cls)}") from error

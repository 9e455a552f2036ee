"""Algorithms: other ways to compute what an operator means.

Which of them a target has for an operator, and which it would take, is its affair (``Target.algorithms``); which one is
taken is a categorical choice, that records can hold. An algorithm that changes sums is an operator of its own, with
expressions that are checked against those of the first.
"""

from __future__ import annotations

from enum import StrEnum


class Algorithm(StrEnum):
    """What can be chosen; the values are what records say."""

    DIRECT = "direct"  # the operator's own expressions
    WINOGRAD_2 = "winograd2"  # minimal filtering of 3×3 taps, by tiles of 2×2 outputs (mlc.ops.winograd)
    WINOGRAD_4 = "winograd4"
    WINOGRAD_6 = "winograd6"
    FUSED = "fused"  # attention as one operator (mlc.ops.attention)
    APART = "apart"  # two products and a softmax
    BITS = "bits"  # a product of numbers of few bits by logic and counts (mlc.rewrite.bits)
    DENSE = "dense"  # a grouped convolution with zeros between its groups (mlc.rewrite.dense)

    @property
    def tile(self) -> int:
        """Outputs along each axis of a tile of Winograd convolution; 0 for other algorithms.

        >>> Algorithm.WINOGRAD_4.tile, Algorithm.DIRECT.tile
        (4, 0)
        """
        return int(self.value.removeprefix("winograd")) if self.value.startswith("winograd") else 0

"""Losses in PyTorch, by the names of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor
from torch.nn import functional as F


def margin_loss(scores: Tensor, target: Tensor) -> Tensor:
    """Equation 4 of Sabour et al., the mean over a batch."""
    present = F.one_hot(target, scores.shape[1]).to(scores.dtype)
    terms = present * F.relu(0.9 - scores) ** 2 + 0.5 * (1 - present) * F.relu(scores - 0.1) ** 2
    return terms.sum(1).mean()


LOSSES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {"margin": margin_loss, "cross_entropy": F.cross_entropy}

"""What the collection knows of a network, and how it becomes an ONNX file."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# Weights and inputs are drawn from this seed; a network's name does not enter, so one can be built alone.
SEED = 0
OPSET = 17


@dataclass(frozen=True, slots=True)
class Entry:
    """A network of the collection.

    Args:
        name: as the file is called; unique in the collection.
        build: makes the module in evaluation mode, and arguments that it takes.
    """

    name: str
    build: Callable[[], tuple[torch.nn.Module, tuple[torch.Tensor, ...]]]


def answering(module: torch.nn.Module, pick: Callable[..., torch.Tensor]) -> torch.nn.Module:
    """A module whose output is what ``pick(module, *inputs)`` takes from those of a network that has several."""
    import torch

    class Answer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = module

        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            return pick(self.network, *inputs)

    return Answer()


def export(entry: Entry, file: Path) -> None:
    """Writes a network as ONNX, with its batch of one as the only size.

    Raises:
        ImportError: a package of the extra ``collection`` is missing.
        OSError: the file cannot be written.
    """
    import torch

    torch.manual_seed(SEED)
    # Attention as its parts: as one node it has no counterpart in this operator set.
    torch.backends.mha.set_fastpath_enabled(False)
    module, arguments = entry.build()
    module.eval()
    settle(module)
    aside = file.with_suffix(".partial")
    with torch.no_grad(), warnings.catch_warnings():
        # Of constants that tracing makes of sizes: the sizes are meant to be fixed.
        warnings.simplefilter("ignore")
        torch.onnx.export(module, arguments, str(aside), opset_version=OPSET, dynamo=False)
    aside.rename(file)


def settle(module: torch.nn.Module) -> None:
    """Statistics and scales as training would leave them: not all alike, so that nothing folds away."""
    import torch

    generator = torch.Generator().manual_seed(SEED)
    for name, values in [*module.named_parameters(), *module.named_buffers()]:
        if values.is_floating_point() and values.dim() == 1:
            if name.endswith(("running_var", "norm.weight", "bn.weight")):
                values.data.uniform_(0.8, 1.2, generator=generator)
            elif name.endswith(("running_mean", "bias")):
                values.data.uniform_(-0.1, 0.1, generator=generator)

"""A wide collection of public architectures with random weights, to measure where the zoo does not look.

The networks come from torchvision, timm and transformers (the extra ``collection``), are built from a seed and exported
to ONNX, so nothing is downloaded: ``python -m benchmarks.collection DIR`` writes them, ``python -m benchmarks --models
DIR/*.onnx`` measures them.
"""

from __future__ import annotations

from benchmarks.collection import language, pytorch_images, torch_vision
from benchmarks.collection.entry import Entry

__all__ = ["ENTRIES", "Entry"]

ENTRIES: dict[str, Entry] = {
    entry.name: entry for family in (torch_vision, pytorch_images, language) for entry in family.ENTRIES
}

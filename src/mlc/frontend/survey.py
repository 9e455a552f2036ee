"""What is in a model file, found without importing it: so it also works for models that cannot be imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Survey:
    """The contents of a model file.

    Args:
        format: name of the front end.
        name: the model's own.
        producer: program that wrote it.
        inputs, outputs: names, and types as the file has them, e.g. ``f32[batch,3,224,224]``.
        operators: how often each occurs, by name (with its domain, if not the format's own), most frequent first;
            bodies of subgraphs and functions included.
        parameters: elements of all stored tensors.
        parameter_bytes: bytes of all stored tensors.
        versions: of the operator sets, by domain.
    """

    format: str
    name: str
    producer: str
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    operators: Mapping[str, int]
    parameters: int
    parameter_bytes: int
    versions: Mapping[str, int] = field(default_factory=dict)


def by_count(counts: Mapping[str, int]) -> dict[str, int]:
    """The most frequent first, equals by name."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

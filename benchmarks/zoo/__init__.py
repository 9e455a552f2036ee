"""Networks and single operators to measure and test with, built from seeded weights: nothing is downloaded.

>>> from benchmarks.zoo import build
>>> model = build("resnet18", batch=1, small=True)
"""

from __future__ import annotations

from onnx import ModelProto

from benchmarks.zoo import convnets, generative, mobile, operators, recurrent, transformers
from benchmarks.zoo.builder import ModelSpec, parameter_count, sample_inputs

__all__ = ["MODELS", "ModelSpec", "build", "parameter_count", "sample_inputs"]

MODELS: dict[str, ModelSpec] = {
    spec.name: spec
    for family in (convnets, mobile, generative, recurrent, transformers, operators)
    for spec in family.SPECS
}


def build(name: str, batch: int = 1, small: bool = False) -> ModelProto:
    """Builds one model.

    Args:
        name: a key of `MODELS`.
        batch: the fixed batch size, >= 1.
        small: the reduced variant: the same structure with odd little sizes and a few thousand weights, for tests that
            go through an interpreter.
    Raises:
        ValueError: the name is unknown, or the batch is not positive.
    """
    if name not in MODELS:
        raise ValueError(f"no model is called {name!r}; there are {', '.join(MODELS)}")
    if batch < 1:
        raise ValueError(f"the batch size must be at least 1, not {batch}")
    return MODELS[name].builder(batch, small)

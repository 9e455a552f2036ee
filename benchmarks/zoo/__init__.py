"""Networks and single operators to measure and test with, built from seeded weights: nothing is downloaded.

>>> from benchmarks.zoo import build
>>> model = build("resnet18", batch=1, small=True)

Every network is there in 8 bits as well, as ``resnet18.int8``, or ``resnet18.int7`` with weights that use 7 of them:
see :mod:`benchmarks.zoo.quantized`.
"""

from __future__ import annotations

from onnx import ModelProto

from benchmarks.zoo import convnets, generative, mobile, operators, quantized, recurrent, transformers
from benchmarks.zoo.builder import ModelSpec, parameter_count, sample_inputs

__all__ = ["MODELS", "ModelSpec", "build", "is_model", "original_of", "parameter_count", "sample_inputs"]

MODELS: dict[str, ModelSpec] = {
    spec.name: spec
    for family in (convnets, mobile, generative, recurrent, transformers, operators)
    for spec in family.SPECS
}


def original_of(name: str) -> str | None:
    """The network that a name such as ``resnet18.int8`` means in 8 bits; ``None`` for another name.

    >>> original_of("resnet18.int8"), original_of("resnet18")
    ('resnet18', None)
    """
    original, dot, suffix = name.rpartition(".")
    known = dot + suffix in quantized.BITS and original in MODELS and MODELS[original].kind == "network"
    return original if known else None


def is_model(name: str) -> bool:
    """Whether a name can be built."""
    return name in MODELS or original_of(name) is not None


def build(name: str, batch: int = 1, small: bool = False) -> ModelProto:
    """Builds one model.

    Args:
        name: a key of `MODELS`, or that of a network with ``.int8`` or ``.int7`` behind it.
        batch: the fixed batch size, >= 1.
        small: the reduced variant: the same structure with odd little sizes and a few thousand weights, for tests that
            go through an interpreter.
    Raises:
        ValueError: the name is unknown, or the batch is not positive.
    """
    if not is_model(name):
        raise ValueError(f"no model is called {name!r}; there are {', '.join(MODELS)}")
    if batch < 1:
        raise ValueError(f"the batch size must be at least 1, not {batch}")
    original = original_of(name)
    if original is not None:
        return quantized.quantize(build(original, batch, small), quantized.BITS[name.removeprefix(original)])
    return MODELS[name].builder(batch, small)

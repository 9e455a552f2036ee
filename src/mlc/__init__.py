"""mlc: a deep-learning compiler from trained models to deployable ``module.tar`` packages.

The public functions live in ``mlc.api`` and are imported on first use: ``import mlc`` itself loads nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "Model",
    "Package",
    "Quantization",
    "__version__",
    "compile",
    "errors",
    "graph",
    "load",
    "load_module",
    "nn",
    "operator",
    "quantize",
    "runtime",
    "te",
    "train",
    "tune",
]

_MODULES = {"errors": "mlc.errors", "runtime": "mlc.runtime", "te": "mlc.define.te", "nn": "mlc.define.nn"}

if TYPE_CHECKING:
    from mlc import errors, runtime
    from mlc.api import (
        Model,
        Package,
        Quantization,
        compile,
        graph,
        load,
        load_module,
        operator,
        quantize,
        train,
        tune,
    )
    from mlc.define import nn, te


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name in __all__:
        return getattr(import_module("mlc.api"), name)
    raise AttributeError(f"module 'mlc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

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
    "load",
    "load_module",
    "quantize",
    "runtime",
    "tune",
]

_MODULES = ("errors", "runtime")

if TYPE_CHECKING:
    from mlc import errors, runtime
    from mlc.api import Model, Package, Quantization, compile, load, load_module, quantize, tune


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"mlc.{name}")
    if name in __all__:
        return getattr(import_module("mlc.api"), name)
    raise AttributeError(f"module 'mlc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

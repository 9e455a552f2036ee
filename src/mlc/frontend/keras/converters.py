"""Importing this module fills the tables of converters."""

from __future__ import annotations

from mlc.frontend.keras import (  # noqa: F401
    activations,
    attention,
    conv,
    conv_recurrent,
    core,
    merge,
    norm,
    operations,
    pooling,
    recurrent,
    reshaping,
    wrappers,
)

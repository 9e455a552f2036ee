"""The list of layers, and the page of the documentation that repeats it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mlc.cli.main import run
from mlc.frontend.base import get_frontend

# the layers that TVM's importer had, and those that it lacked
OTHERS = """
    Dense Activation Softmax ReLU LeakyReLU PReLU ELU ThresholdedReLU AveragePooling2D MaxPooling2D
    GlobalAveragePooling2D GlobalMaxPooling2D Conv2D Conv2DTranspose DepthwiseConv2D SeparableConv2D Flatten
    Reshape Concatenate BatchNormalization BatchNormalizationV1 Add Subtract Multiply ZeroPadding2D UpSampling2D
    Cropping2D Conv1D Conv3D Conv3DTranspose MaxPooling3D AveragePooling3D GlobalMaxPooling3D
    GlobalAveragePooling3D UpSampling3D ZeroPadding3D SimpleRNN LSTM GRU TimeDistributed Average Minimum Maximum
    Dot Permute Embedding RepeatVector InputLayer Dropout AlphaDropout SpatialDropout2D SpatialDropout1D
    GaussianDropout GaussianNoise ZeroPadding1D AveragePooling1D MaxPooling1D GlobalAveragePooling1D
    GlobalMaxPooling1D Cropping1D UpSampling1D Conv1DTranspose Bidirectional LayerNormalization
    MultiHeadAttention Rescaling Normalization GroupNormalization EinsumDense
"""
PAGE = Path(__file__).parents[4] / "docs" / "keras-layers.md"


def test_the_page_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ops", "--frontend", "keras", "--markdown"]) == 0
    printed = capsys.readouterr().out
    table = "\n".join(line for line in PAGE.read_text().splitlines() if line.startswith("|"))
    assert table == printed.strip(), "docs: mlc ops --frontend keras --markdown"
    count = re.search(r"(\d+) layers and operations", PAGE.read_text())
    assert count is not None
    assert int(count[1]) == len(printed.strip().splitlines()) - 2


def test_layers_of_other_compilers_are_there_and_tested() -> None:
    """But for `Lambda`, which holds code, and is refused by name (test_hostile.py)."""
    names = {o.name for o in get_frontend("keras").supported_operators() if not o.domain}
    assert set(OTHERS.split()) <= names
    tests = "".join((Path(__file__).parent / f"test_{name}.py").read_text() for name in ("layers", "models", "hostile"))
    # V1 is the name of Keras 2 for the first; ranks and kinds are put together from parts
    parts = {re.sub(r"^(Max|Average|Global(Max|Average))|[123]D$|V1$", "", name) for name in OTHERS.split()}
    assert not [part for part in parts if part not in tests]

"""The list of operators, and the page of the documentation that repeats it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mlc.cli.main import run
from mlc.frontend.base import get_frontend
from mlc.frontend.tflite.schema import enumeration

# the operators that TVM's importer had, but for TAN, which the format does not
OTHERS = """
    ABS ADD ADD_N ARG_MAX ARG_MIN AVERAGE_POOL_2D BATCH_TO_SPACE_ND BATCH_MATMUL CAST CEIL CONCATENATION CONV_2D
    COS DENSIFY DEPTH_TO_SPACE DEPTHWISE_CONV_2D DEQUANTIZE TFLite_Detection_PostProcess DIV ELU EQUAL EXP
    EXPAND_DIMS FAKE_QUANT FILL FLOOR_DIV FLOOR_MOD FLOOR FULLY_CONNECTED GATHER GATHER_ND GREATER_EQUAL GREATER
    GELU HARD_SWISH L2_NORMALIZATION L2_POOL_2D LEAKY_RELU LESS_EQUAL LESS LOCAL_RESPONSE_NORMALIZATION LOG
    LOG_SOFTMAX LOGICAL_AND LOGICAL_NOT LOGICAL_OR LOGISTIC MATRIX_DIAG MATRIX_SET_DIAG MAX_POOL_2D MAXIMUM MEAN
    MINIMUM MIRROR_PAD MUL NEG NOT_EQUAL ONE_HOT PACK PAD PADV2 POW PRELU RANGE QUANTIZE REDUCE_ANY REDUCE_MAX
    REDUCE_MIN REDUCE_PROD RELU RELU6 RELU_N1_TO_1 RESHAPE RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR ROUND RSQRT
    REVERSE_SEQUENCE REVERSE_V2 SELECT SHAPE SIN SLICE SOFTMAX SPACE_TO_BATCH_ND SPACE_TO_DEPTH SPARSE_TO_DENSE
    SPLIT SPLIT_V SQRT SQUARE SQUARED_DIFFERENCE SQUEEZE STRIDED_SLICE SUB SUM TANH TILE TOPK_V2 TRANSPOSE_CONV
    TRANSPOSE UNPACK UNIDIRECTIONAL_SEQUENCE_LSTM WHERE ZEROS_LIKE NON_MAX_SUPPRESSION_V5
"""
PAGE = Path(__file__).parents[4] / "docs" / "tflite-operators.md"


def test_the_page_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ops", "--frontend", "tflite", "--markdown"]) == 0
    printed = capsys.readouterr().out
    table = "\n".join(line for line in PAGE.read_text().splitlines() if line.startswith("|"))
    assert table == printed.strip(), "docs: mlc ops --frontend tflite --markdown"
    count = re.search(r"(\d+) operators", PAGE.read_text())
    assert count is not None
    assert int(count[1]) == len(printed.strip().splitlines()) - 2


def test_every_operator_is_one_of_the_format() -> None:
    names = set(enumeration("BuiltinOperator").values())
    found = get_frontend("tflite").supported_operators()
    assert {o.name for o in found if not o.domain} <= names


def test_operators_of_other_compilers_are_there() -> None:
    assert len(OTHERS.split()) == 106
    assert set(OTHERS.split()) <= {o.name for o in get_frontend("tflite").supported_operators()}
    assert "TAN" not in enumeration("BuiltinOperator").values()

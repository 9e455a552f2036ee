"""Networks of the zoo in 8 bits, as ONNX Runtime's own tool quantises them for processors with VNNI, or without.

QuantizeLinear and DequantizeLinear around every operator that ONNX Runtime has for 8 bits (of transformers, around
products by weights), activations unsigned with a zero point, weights signed by channel, ranges from random inputs. What
ONNX Runtime recommends without VNNI is that weights use 7 bits (``reduce_range``).
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto

from benchmarks.zoo.builder import sample_inputs

BITS = {".int8": 8, ".int7": 7}  # that weights use, by what stands behind the name of a network
SAMPLES = 4  # random inputs that ranges come from


def quantize(model: ModelProto, bits: int) -> ModelProto:
    """The same model with QuantizeLinear and DequantizeLinear around its operators; the same for the same model.

    Args:
        model: in floats.
        bits: that weights use, 7 or 8.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Samples(CalibrationDataReader):  # type: ignore[misc]
        """Random inputs, none of them the one that models are measured with."""

        def __init__(self) -> None:
            self._left: Iterator[dict[str, npt.NDArray[np.generic]]] = iter(
                [sample_inputs(model, seed) for seed in range(1, SAMPLES + 1)]
            )

        def get_next(self) -> dict[str, npt.NDArray[np.generic]] | None:
            return next(self._left, None)

    products = any(node.op_type == "Softmax" for node in model.graph.node)
    with tempfile.TemporaryDirectory(prefix="mlc-quantize-") as name:
        given, prepared, made = (Path(name, f"{stage}.onnx") for stage in ("given", "prepared", "made"))
        onnx.save(model, given)
        level, root = logging.getLogger().level, logging.getLogger()
        root.setLevel(logging.ERROR)  # the tool recommends to prepare models, of those that were
        try:
            quant_pre_process(str(given), str(prepared), skip_symbolic_shape=True)
            quantize_static(
                str(prepared),
                str(made),
                Samples(),
                quant_format=QuantFormat.QDQ,
                op_types_to_quantize=["MatMul", "Gemm"] if products else None,
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                reduce_range=bits < 8,
                extra_options={"MatMulConstBOnly": True},
            )
        finally:
            root.setLevel(level)
        quantized = onnx.load(made)
    del quantized.metadata_props[:]
    quantized.metadata_props.extend(model.metadata_props)  # which say what inputs suit it
    return quantized

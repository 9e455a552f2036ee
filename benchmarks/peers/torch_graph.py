"""An ONNX graph as a PyTorch module: every node one functional call, so that ``torch.compile`` sees the whole graph.

Covers the operators of the zoo at opset 17; any other is refused by name. Constants that decide shapes are Python
values; weights, and whatever else is a tensor, are the module's, so that they go where it goes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import NodeProto, TensorProto, helper, numpy_helper
from torch import Tensor, nn
from torch.nn import functional as F

Attributes = dict[str, Any]
# Makes the call of one node from its attributes and its constant operands (by position).
Maker = Callable[[Attributes, dict[int, np.ndarray]], Callable[..., Tensor]]


def _conv(attrs: Attributes, constants: dict[int, np.ndarray]) -> Callable[..., Tensor]:
    rank = len(attrs["kernel_shape"])
    function = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    pads = _symmetric(attrs, rank)
    strides, dilations = attrs.get("strides", [1] * rank), attrs.get("dilations", [1] * rank)
    return lambda x, w, b=None: function(x, w, b, strides, pads, dilations, attrs.get("group", 1))


def _conv_transpose(attrs: Attributes, constants: dict[int, np.ndarray]) -> Callable[..., Tensor]:
    rank = len(attrs["kernel_shape"])
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    pads, extra = _symmetric(attrs, rank), attrs.get("output_padding", [0] * rank)
    strides, dilations = attrs.get("strides", [1] * rank), attrs.get("dilations", [1] * rank)
    return lambda x, w, b=None: function(x, w, b, strides, pads, extra, attrs.get("group", 1), dilations)


def _symmetric(attrs: Attributes, rank: int) -> list[int]:
    pads = list(attrs.get("pads", [0] * 2 * rank))
    if pads[:rank] != pads[rank:] or attrs.get("auto_pad", b"NOTSET") != b"NOTSET":
        raise NotImplementedError("padding that differs between the two sides")
    return pads[:rank]


def _max_pool(attrs: Attributes, constants: dict[int, np.ndarray]) -> Callable[..., Tensor]:
    kernel = attrs["kernel_shape"]
    strides, pads = attrs.get("strides", [1] * len(kernel)), _symmetric(attrs, len(kernel))
    return lambda x: F.max_pool2d(x, kernel, strides, pads, ceil_mode=bool(attrs.get("ceil_mode", 0)))


def _average_pool(attrs: Attributes, constants: dict[int, np.ndarray]) -> Callable[..., Tensor]:
    kernel = attrs["kernel_shape"]
    strides, pads = attrs.get("strides", [1] * len(kernel)), _symmetric(attrs, len(kernel))
    counted = bool(attrs.get("count_include_pad", 0))
    return lambda x: F.avg_pool2d(x, kernel, strides, pads, bool(attrs.get("ceil_mode", 0)), counted)


def _gemm(attrs: Attributes, constants: dict[int, np.ndarray]) -> Callable[..., Tensor]:
    if attrs.get("alpha", 1.0) != 1.0 or attrs.get("beta", 1.0) != 1.0 or attrs.get("transA", 0):
        raise NotImplementedError("Gemm with factors or a transposed first operand")
    if attrs.get("transB", 0):
        return F.linear
    return lambda x, w, b=None: F.linear(x, w.t(), b)


def _reshape(attrs: Attributes, constants: dict[int, np.ndarray]) -> Callable[..., Tensor]:
    shape = constants[1].tolist()
    return lambda x: x.reshape([x.shape[i] if size == 0 else size for i, size in enumerate(shape)])


def _squeeze(attrs: Attributes, constants: dict[int, np.ndarray]) -> Callable[..., Tensor]:
    axes = tuple(constants[1].tolist())
    return lambda x: x.squeeze(axes)


def _unsqueeze(attrs: Attributes, constants: dict[int, np.ndarray]) -> Callable[..., Tensor]:
    axes = sorted(constants[1].tolist())

    def call(x: Tensor) -> Tensor:
        for axis in axes:
            x = x.unsqueeze(axis)
        return x

    return call


def _gather(attrs: Attributes, constants: dict[int, np.ndarray]) -> Callable[..., Tensor]:
    axis = attrs.get("axis", 0)
    if 1 in constants:
        index = constants[1]
        if index.ndim == 0:
            position = int(index)
            return lambda x: x.select(axis, position)
        return _Positions(axis, index)
    if axis != 0:
        raise NotImplementedError("Gather of computed positions along an axis other than 0")
    return lambda x, at: F.embedding(at, x)


class _Positions(nn.Module):
    """A gather of constant positions along an axis."""

    def __init__(self, axis: int, index: np.ndarray) -> None:
        super().__init__()
        self.axis, self.shape = axis, index.shape
        self.register_buffer("positions", torch.from_numpy(index.reshape(-1).copy()))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x.index_select(self.axis, self.positions)
        return found.reshape([*x.shape[: self.axis], *self.shape, *x.shape[self.axis + 1 :]])


def _cast(attrs: Attributes, constants: dict[int, np.ndarray]) -> Callable[..., Tensor]:
    kind = torch.from_numpy(np.empty(0, helper.tensor_dtype_to_np_dtype(attrs["to"]))).dtype
    return lambda x: x.to(kind)


def _layer_norm(attrs: Attributes, constants: dict[int, np.ndarray]) -> Callable[..., Tensor]:
    if attrs.get("axis", -1) != -1:
        raise NotImplementedError("LayerNormalization over more than the last axis")
    return lambda x, w, b=None: F.layer_norm(x, x.shape[-1:], w, b, attrs.get("epsilon", 1e-5))


def _recurrent(kind: str) -> Maker:
    # The gates of ONNX in the order of PyTorch's, by thirds or quarters of the weights.
    order = {"LSTM": [0, 2, 3, 1], "RNN": [0]}[kind]

    def make(attrs: Attributes, constants: dict[int, np.ndarray]) -> Callable[..., Tensor]:
        weight, recurrence, bias = constants[1], constants[2], constants[3]
        if weight.shape[0] != 1 or set(constants) != {1, 2, 3}:
            raise NotImplementedError(f"{kind} in two directions or with an initial state")
        hidden = attrs["hidden_size"]
        layer = getattr(nn, kind)(weight.shape[2], hidden)

        def gates(array: np.ndarray) -> Tensor:
            parts = torch.from_numpy(array.copy()).split(hidden)
            return torch.cat([parts[index] for index in order])

        with torch.no_grad():
            for name, value in (
                ("weight_ih_l0", weight[0]),
                ("weight_hh_l0", recurrence[0]),
                ("bias_ih_l0", bias[0][: len(order) * hidden]),
                ("bias_hh_l0", bias[0][len(order) * hidden :]),
            ):
                getattr(layer, name).copy_(gates(value))
        return _Recurrent(layer)

    return make


class _Recurrent(nn.Module):
    """A layer whose results have ONNX's axis of directions."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x)[0]
        return found.unsqueeze(1)


def _transpose(attrs: Attributes, constants: dict[int, np.ndarray]) -> Callable[..., Tensor]:
    perm = list(attrs["perm"])
    if len(perm) > 2 and perm[-2] == len(perm) - 1:
        # Spelled as in attention layers; the compiler takes the keys of a fused one for transposed otherwise.
        swapped = [*perm[:-2], perm[-1], perm[-2]]
        return lambda x: x.permute(swapped).transpose(-2, -1)
    return lambda x: x.permute(perm)


def _clip(attrs: Attributes, constants: dict[int, np.ndarray]) -> Callable[..., Tensor]:
    low, high = (float(constants[i]) if i in constants else None for i in (1, 2))
    return lambda x: torch.clamp(x, low, high)


def _plain(function: Callable[..., Tensor]) -> Maker:
    return lambda attrs, constants: function


# Operators, and which of their operands must be constants known to the maker.
MAKERS: dict[str, tuple[Maker, tuple[int, ...]]] = {
    "Add": (_plain(torch.add), ()),
    "AveragePool": (_average_pool, ()),
    "BatchNormalization": (
        lambda attrs, _: (
            lambda x, w, b, mean, var: F.batch_norm(x, mean, var, w, b, False, 0.0, attrs.get("epsilon", 1e-5))
        ),
        (),
    ),
    "Cast": (_cast, ()),
    "Clip": (_clip, (1, 2)),
    "Concat": (lambda attrs, _: lambda *xs: torch.cat(xs, attrs["axis"]), ()),
    "Conv": (_conv, ()),
    "ConvTranspose": (_conv_transpose, ()),
    "Div": (_plain(torch.div), ()),
    "Erf": (_plain(torch.erf), ()),
    "Flatten": (lambda attrs, _: lambda x: x.flatten(attrs.get("axis", 1)), ()),
    "Gather": (_gather, (1,)),
    "Gemm": (_gemm, ()),
    "GlobalAveragePool": (_plain(lambda x: x.mean(tuple(range(2, x.dim())), keepdim=True)), ()),
    "LSTM": (_recurrent("LSTM"), (1, 2, 3, 4, 5, 6)),
    "LayerNormalization": (_layer_norm, ()),
    "MatMul": (_plain(torch.matmul), ()),
    "MaxPool": (_max_pool, ()),
    "Mul": (_plain(torch.mul), ()),
    "RNN": (_recurrent("RNN"), (1, 2, 3, 4, 5)),
    "Relu": (_plain(F.relu), ()),
    "Reshape": (_reshape, (1,)),
    "Sigmoid": (_plain(torch.sigmoid), ()),
    "Softmax": (lambda attrs, _: lambda x: F.softmax(x, attrs.get("axis", -1)), ()),
    "Squeeze": (_squeeze, (1,)),
    "Sub": (_plain(torch.sub), ()),
    "Tanh": (_plain(torch.tanh), ()),
    "Transpose": (_transpose, ()),
    "Unsqueeze": (_unsqueeze, (1,)),
}


class OnnxModule(nn.Module):
    """A model as a module; called with its inputs in order, it gives a tuple of its outputs.

    Args:
        file: of the model.
        half: whether floats are float16, what the model casts to included; those of inputs are the caller's affair.
    Raises:
        NotImplementedError: the graph has an operator, or a use of one, that is not in the table.
    """

    def __init__(self, file: Path, *, half: bool = False) -> None:
        super().__init__()
        graph = onnx.load(file).graph
        constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        self.inputs = [value.name for value in graph.input if value.name not in constants]
        self.results = [value.name for value in graph.output]
        self._calls: list[tuple[Callable[..., Tensor], tuple[str, ...], str]] = []
        self._weights: dict[str, str] = {}  # the model's name -> the buffer's
        # Python numbers, as people write them: the compiler recognises attention by its constant scale.
        self._scalars = {name: value.item() for name, value in constants.items() if value.ndim == 0}
        for node in graph.node:
            if node.op_type not in MAKERS:
                raise NotImplementedError(f"operator {node.op_type}")
            maker, wanted = MAKERS[node.op_type]
            known = {i: constants[node.input[i]] for i in wanted if i < len(node.input) and node.input[i] in constants}
            attrs = _attributes(node)
            if half and node.op_type == "Cast" and attrs["to"] == TensorProto.FLOAT:
                attrs["to"] = TensorProto.FLOAT16
            call = maker(attrs, known)
            if isinstance(call, nn.Module):
                self.add_module(f"call{len(self._calls)}", call)
            operands = tuple(name for i, name in enumerate(node.input) if name and i not in known)
            self._calls.append((call, operands, node.output[0]))
            for name in operands:
                if name in constants and name not in self._scalars and name not in self._weights:
                    self._weights[name] = f"weight{len(self._weights)}"
                    value = torch.from_numpy(constants[name].copy())
                    self.register_buffer(self._weights[name], value)
        if half:
            self.half()

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        values: dict[str, Any] = {**dict(zip(self.inputs, inputs, strict=True)), **self._scalars}
        values |= {name: getattr(self, attribute) for name, attribute in self._weights.items()}
        for call, operands, result in self._calls:
            values[result] = call(*[values[name] for name in operands])
        return tuple(values[name] for name in self.results)


def _attributes(node: NodeProto) -> Attributes:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}

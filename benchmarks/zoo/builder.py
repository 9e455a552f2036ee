"""A small helper that writes ONNX graphs the way exporters do: readable names, weights as initialisers, opset 17."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, helper

from benchmarks.zoo import moments
from benchmarks.zoo.moments import Moments

OPSET = 17
# The version that belongs to opset 17, so that older readers open the files too.
IR_VERSION = 8
# Integer inputs index tables: `sample_inputs` draws below the bound noted in the model under this prefix.
BOUND_KEY = "exclusive_bound:"

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One entry of the zoo.

    Args:
        name: as given on the command line.
        kind: ``"network"``, ``"single"`` (a network on one word or token) or ``"operator"``.
        description: one line, with the source.
        builder: called with the batch size and whether the reduced variant is wanted.
    """

    name: str
    kind: str
    description: str
    builder: Callable[[int, bool], ModelProto]


class Net:
    """An ONNX graph under construction.

    Methods append one layer and return the name of its result, which is also the name of its node. Weights are drawn
    from a generator seeded by the model's name, so every build gives the same file.
    """

    def __init__(self, name: str) -> None:
        self.rng = np.random.default_rng(zlib.crc32(name.encode()))
        # Everything is written straight into the final message: moving it there later would copy every weight again.
        self._model = ModelProto(ir_version=IR_VERSION, producer_name="mlc model zoo")
        self._model.opset_import.add(domain="", version=OPSET)
        self._graph = self._model.graph
        self._graph.name = name
        self._constants: set[str] = set()
        self._moments: dict[str, Moments] = {}

    # Graph

    def input(self, name: str, shape: Sequence[int]) -> str:
        """A float32 input; along axis 1 lie its channels."""
        self._graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)))
        self._moments[name] = Moments.standard(shape[1])
        return name

    def index_input(self, name: str, shape: Sequence[int], bound: int) -> str:
        """An int64 input with values in ``[0, bound)``."""
        self._graph.input.append(helper.make_tensor_value_info(name, TensorProto.INT64, list(shape)))
        self._model.metadata_props.add(key=BOUND_KEY + name, value=str(bound))
        return name

    def output(self, name: str, shape: Sequence[int]) -> None:
        """Declares a float32 result of the graph."""
        self._graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)))

    def constant(self, name: str, value: npt.NDArray[np.generic]) -> str:
        """An initialiser."""
        if name in self._constants:
            raise ValueError(f"two initialisers are called {name}")
        self._constants.add(name)
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        self._graph.initializer.add(name=name, dims=value.shape, data_type=kind, raw_data=value.tobytes())
        return name

    def scalar(self, name: str, value: float) -> str:
        """A float32 constant of rank 0, shared by all that ask for the same name."""
        return name if name in self._constants else self.constant(name, np.array(value, np.float32))

    def op(self, kind: str, *inputs: str, name: str, result: str = "", **attributes: Any) -> str:
        """Any operator with one result, called like its node unless ``result`` says otherwise."""
        result = result or name
        self._graph.node.append(helper.make_node(kind, inputs, [result], name=name, **attributes))
        return result

    def nodes(self, *nodes: NodeProto) -> None:
        """Appends nodes that no method here can make."""
        self._graph.node.extend(nodes)

    def model(self) -> ModelProto:
        """The finished model."""
        return self._model

    # Weights

    def normal(self, shape: Sequence[int], std: float) -> FloatArray:
        """Seeded Gaussian weights."""
        values = self.rng.standard_normal(shape, dtype=np.float32)
        values *= np.float32(std)
        return values

    def uniform(self, shape: Sequence[int], low: float, high: float) -> FloatArray:
        """Seeded uniform weights."""
        return self.rng.uniform(low, high, shape).astype(np.float32)

    # Layers

    def conv(
        self,
        x: str,
        channels: tuple[int, int],
        kernel: int | tuple[int, ...],
        *,
        name: str,
        stride: int | tuple[int, ...] = 1,
        pad: int | tuple[int, ...] | None = None,
        groups: int = 1,
        bias: bool = False,
        rank: int = 2,
        result: str = "",
    ) -> str:
        """A convolution with He-initialised weights, ``channels`` in and out; ``pad=None`` keeps the image size.

        With a bias there is no normalisation to follow, so weights and bias are set to give unit variance about zero:
        otherwise the means of rectified inputs add up, and after a few layers no result depends on the input any more.
        """
        window, strides = spread(kernel, rank), spread(stride, rank)
        pads = tuple(k // 2 for k in window) if pad is None else spread(pad, rank)
        fan_in = channels[0] // groups * int(np.prod(window))
        weight = self.normal((channels[1], channels[0] // groups, *window), (2 / fan_in) ** 0.5)
        after = moments.after_conv(self._moments[x], weight, groups)
        operands = [x, f"{name}.weight"]
        if bias:
            weight *= np.float32(after.var.mean() ** -0.5)
            after = moments.after_conv(self._moments[x], weight, groups)
            offset = self.normal((channels[1],), 0.1) - after.mean.astype(np.float32)
            operands.append(self.constant(f"{name}.bias", offset))
            after = moments.after_affine(after, np.ones_like(offset), offset)
        self.constant(f"{name}.weight", weight)
        attributes: dict[str, Any] = {"kernel_shape": window, "strides": strides, "pads": pads * 2, "group": groups}
        y = self.op("Conv", *operands, name=name, result=result, dilations=(1,) * rank, **attributes)
        self._moments[y] = after
        return y

    def conv_transpose(
        self, x: str, channels: tuple[int, int], kernel: int, *, name: str, stride: int, pad: int, bias: bool = False
    ) -> str:
        """A transposed 2-D convolution."""
        std = stride * (2 / (channels[0] * kernel * kernel)) ** 0.5
        weight = self.normal((*channels, kernel, kernel), std)
        operands = [x, self.constant(f"{name}.weight", weight)]
        if bias:
            operands.append(self.constant(f"{name}.bias", self.normal((channels[1],), 0.05)))
        y = self.op(
            "ConvTranspose",
            *operands,
            name=name,
            kernel_shape=(kernel, kernel),
            strides=(stride, stride),
            pads=(pad,) * 4,
            dilations=(1, 1),
            group=1,
        )
        self._moments[y] = moments.after_conv_transpose(self._moments[x], weight, stride)
        return y

    def batch_norm(self, x: str, *, name: str) -> str:
        """Batch normalisation whose statistics are those of its input, up to the noise that training leaves."""
        before = self._moments[x]
        channels = len(before.mean)
        gamma, beta = self.uniform((channels,), 0.5, 1.5), self.normal((channels,), 0.2)
        mean = before.mean + np.sqrt(before.var) * self.normal((channels,), 0.1)
        var = before.var * self.uniform((channels,), 0.8, 1.25)
        y = self.op(
            "BatchNormalization",
            x,
            self.constant(f"{name}.weight", gamma),
            self.constant(f"{name}.bias", beta),
            self.constant(f"{name}.running_mean", mean.astype(np.float32)),
            self.constant(f"{name}.running_var", var.astype(np.float32)),
            name=name,
            epsilon=1e-5,
        )
        scale = gamma / np.sqrt(var + 1e-5)
        self._moments[y] = moments.after_affine(before, scale, beta - mean * scale)
        return y

    def relu(self, x: str, *, name: str) -> str:
        """``max(x, 0)``."""
        y = self.op("Relu", x, name=name)
        self._moments[y] = moments.after_relu(self._moments[x])
        return y

    def relu6(self, x: str, *, name: str) -> str:
        """``min(max(x, 0), 6)``, spelled Clip."""
        y = self.op("Clip", x, self.scalar("relu6.min", 0.0), self.scalar("relu6.max", 6.0), name=name)
        self._moments[y] = moments.after_relu(self._moments[x])
        return y

    def add(self, x: str, y: str, *, name: str) -> str:
        """Elementwise sum of two tensors of one shape."""
        z = self.op("Add", x, y, name=name)
        self._moments[z] = moments.after_add(self._moments[x], self._moments[y])
        return z

    def concat(self, *parts: str, name: str) -> str:
        """Concatenation along the channels."""
        y = self.op("Concat", *parts, name=name, axis=1)
        self._moments[y] = moments.after_concat(*(self._moments[p] for p in parts))
        return y

    def max_pool(self, x: str, kernel: int, *, name: str, stride: int, pad: int = 0, ceil: bool = False) -> str:
        """2-D maximum pooling."""
        y = self._pool("MaxPool", x, kernel, stride, pad, name, ceil_mode=int(ceil))
        self._moments[y] = moments.after_max_pool(self._moments[x])
        return y

    def average_pool(self, x: str, kernel: int, *, name: str, stride: int, pad: int = 0) -> str:
        """2-D average pooling that counts the padding, as PyTorch does unless told otherwise."""
        y = self._pool("AveragePool", x, kernel, stride, pad, name, count_include_pad=1)
        self._moments[y] = moments.after_mean(self._moments[x], kernel * kernel)
        return y

    def _pool(self, kind: str, x: str, kernel: int, stride: int, pad: int, name: str, **more: Any) -> str:
        window: dict[str, Any] = {"kernel_shape": (kernel, kernel), "strides": (stride, stride), "pads": (pad,) * 4}
        return self.op(kind, x, name=name, **window, **more)

    def channel_shuffle(self, x: str, shape: Sequence[int], groups: int, *, name: str) -> str:
        """ShuffleNet's shuffle of an NCHW tensor of ``shape``: reshape, transpose, reshape."""
        n, c, h, w = shape
        split = self.constant(f"{name}.split", np.array([n, groups, c // groups, h, w], np.int64))
        joined = self.constant(f"{name}.join", np.array([n, c, h, w], np.int64))
        y = self.op("Reshape", x, split, name=f"{name}.reshape_in")
        y = self.op("Transpose", y, name=f"{name}.transpose", perm=(0, 2, 1, 3, 4))
        y = self.op("Reshape", y, joined, name=f"{name}.reshape_out")
        self._moments[y] = moments.after_shuffle(self._moments[x], groups)
        return y

    def reshape_channels(self, x: str, shape: Sequence[int], *, name: str) -> str:
        """Reshapes features ``(n, c*h*w)`` into an image of ``shape`` (n, c, h, w)."""
        y = self.op("Reshape", x, self.constant(f"{name}.shape", np.array(shape, np.int64)), name=name)
        features, channels = self._moments[x], shape[1]
        self._moments[y] = Moments(
            features.mean.reshape(channels, -1).mean(axis=1), features.var.reshape(channels, -1).mean(axis=1)
        )
        return y

    def linear(self, x: str, features: tuple[int, int], *, name: str, result: str = "", gain: float = 2.0) -> str:
        """A fully connected layer on rows, as the Gemm that PyTorch exports."""
        weight = self.normal((features[1], features[0]), (gain / features[0]) ** 0.5)
        operands = [x, self.constant(f"{name}.weight", weight)]
        operands.append(self.constant(f"{name}.bias", self.normal((features[1],), 0.05)))
        y = self.op("Gemm", *operands, name=name, result=result, alpha=1.0, beta=1.0, transB=1)
        if x in self._moments:
            self._moments[y] = moments.after_conv(self._moments[x], weight, groups=1)
        return y

    def classifier(self, x: str, features: tuple[int, int], *, batch: int) -> str:
        """Global average pooling and a fully connected layer; declares the output ``logits``."""
        y = self.op("GlobalAveragePool", x, name="avgpool")
        y = self.op("Flatten", y, name="flatten", axis=1)
        y = self.linear(y, features, name="fc", result="logits")
        self.output(y, (batch, features[1]))
        return y


def spread(value: int | tuple[int, ...], rank: int) -> tuple[int, ...]:
    """One number for each of ``rank`` axes."""
    return (value,) * rank if isinstance(value, int) else value


def sample_inputs(model: ModelProto, seed: int = 0) -> dict[str, npt.NDArray[np.generic]]:
    """Random inputs that suit a model of the zoo: standard normal floats, integers below their noted bound."""
    rng = np.random.default_rng(seed)
    bounds = {entry.key: int(entry.value) for entry in model.metadata_props if entry.key.startswith(BOUND_KEY)}
    inputs: dict[str, npt.NDArray[np.generic]] = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape = [dim.dim_value for dim in kind.shape.dim]
        if kind.elem_type == TensorProto.FLOAT:
            inputs[value.name] = rng.standard_normal(shape, dtype=np.float32)
        else:
            inputs[value.name] = rng.integers(0, bounds.get(BOUND_KEY + value.name, 2), shape, dtype=np.int64)
    return inputs


def parameter_count(model: ModelProto) -> int:
    """Trainable parameters, counted as papers count them: without running statistics and without shape constants."""
    statistics = {name for node in model.graph.node if node.op_type == "BatchNormalization" for name in node.input[3:]}
    return sum(
        int(np.prod(tensor.dims))
        for tensor in model.graph.initializer
        if tensor.data_type == TensorProto.FLOAT and tensor.dims and tensor.name not in statistics
    )

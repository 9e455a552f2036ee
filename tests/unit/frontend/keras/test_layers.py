"""Layer by layer against Keras, from ``.keras``, from ``.h5`` and alive: odd sizes, all paddings, both data formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from mlc.frontend.keras import KerasFrontend
from mlc.ir.interp import run_graph
from tests.unit.frontend.keras.oracle import L, chain, check, keras, saved, seeded

FIRST = {"data_format": "channels_first"}
IMAGE, VOLUME = (7, 5, 3), (5, 4, 6, 2)
# torch, behind Keras, takes other windows where the padding of averages is uneven
EXTENTS = {"Max": (7, 6, 5), "Average": (7, 5, 9)}


def images(*layers: Any) -> Any:
    return chain(*layers, shape=IMAGE)


def turned(*layers: Any) -> Any:
    return chain(*layers, shape=(3, 7, 5))


def steps(*layers: Any, size: int = 3) -> Any:
    return chain(*layers, shape=(9, size))


CONVOLUTIONS = {
    "conv1d": lambda: steps(L.Conv1D(4, 3, strides=2, padding="same")),
    "conv1d_causal": lambda: steps(L.Conv1D(4, 3, padding="causal", dilation_rate=2, activation="relu")),
    "conv1d_first": lambda: chain(L.Conv1D(4, 3, padding="same", **FIRST), shape=(3, 9)),
    "conv2d": lambda: images(L.Conv2D(4, (3, 2), strides=(2, 1), padding="same", activation="silu")),
    "conv2d_valid": lambda: images(L.Conv2D(4, 3, strides=2, use_bias=False)),
    "conv2d_dilated": lambda: images(L.Conv2D(4, 2, dilation_rate=(2, 3), padding="same")),
    "conv2d_softmax": lambda: images(L.Conv2D(4, 1, activation="softmax")),
    "conv2d_groups": lambda: chain(L.Conv2D(6, 3, groups=2, padding="same"), shape=(7, 5, 4)),
    "conv2d_first": lambda: turned(L.Conv2D(4, 3, strides=2, padding="same", **FIRST)),
    "conv3d": lambda: chain(L.Conv3D(3, (2, 3, 1), strides=2, padding="same"), shape=VOLUME),
    "depthwise1d": lambda: steps(L.DepthwiseConv1D(3, strides=2, padding="same", depth_multiplier=2)),
    "depthwise2d": lambda: images(L.DepthwiseConv2D(3, depth_multiplier=2, padding="same", activation="relu6")),
    "depthwise2d_first": lambda: turned(L.DepthwiseConv2D((3, 2), strides=2, **FIRST)),
    "separable1d": lambda: steps(L.SeparableConv1D(4, 3, depth_multiplier=2)),
    "separable2d": lambda: images(L.SeparableConv2D(4, 3, strides=2, padding="same", depth_multiplier=2)),
    "separable2d_first": lambda: turned(L.SeparableConv2D(4, 3, padding="same", **FIRST)),
    "transpose1d": lambda: steps(L.Conv1DTranspose(4, 3, strides=2)),
    "transpose1d_short": lambda: steps(L.Conv1DTranspose(4, 2, strides=3)),
    "transpose2d": lambda: images(L.Conv2DTranspose(4, (3, 5), padding="same", activation="relu")),
    "transpose2d_stride": lambda: images(L.Conv2DTranspose(4, 4, strides=2, padding="same", use_bias=False)),
    "transpose2d_dilated": lambda: images(L.Conv2DTranspose(4, 3, dilation_rate=2)),
    "transpose2d_extra": lambda: images(L.Conv2DTranspose(4, 3, strides=2, output_padding=1)),
    "transpose2d_first": lambda: turned(L.Conv2DTranspose(4, 2, strides=2, **FIRST)),
    "transpose3d": lambda: chain(L.Conv3DTranspose(3, 2, strides=2), shape=VOLUME),
}

POOLS = {
    **{
        f"{kind}{rank}d_{padding}_{fmt}": (
            lambda kind=kind, rank=rank, padding=padding, fmt=fmt: chain(
                getattr(L, f"{kind}Pooling{rank}D")(
                    2 if padding == "valid" else 3, strides=None if padding == "valid" else 2, padding=padding,
                    data_format=fmt,
                ),
                shape=(*EXTENTS[kind][:rank], 3) if fmt == "channels_last" else (3, *EXTENTS[kind][:rank]),
            )
        )
        for kind in ("Max", "Average")
        for rank in (1, 2, 3)
        for padding in ("valid", "same")
        for fmt in ("channels_last", "channels_first")
    },
    **{
        f"global_{kind}{rank}d_{fmt}": (
            lambda kind=kind, rank=rank, fmt=fmt: chain(
                getattr(L, f"Global{kind}Pooling{rank}D")(data_format=fmt, keepdims=rank == 2),
                shape=(4, 5, 3, 2)[-rank - 1 :],
            )
        )
        for kind in ("Max", "Average")
        for rank in (1, 2, 3)
        for fmt in ("channels_last", "channels_first")
    },
}  # fmt: skip

SHAPES = {
    "flatten": lambda: images(L.Flatten()),
    "flatten_first": lambda: turned(L.Flatten(**FIRST)),
    "reshape": lambda: images(L.Reshape((5, -1, 3))),
    "permute": lambda: images(L.Permute((3, 1, 2))),
    "repeat_vector": lambda: chain(L.RepeatVector(3), shape=(5,)),
    "zero_padding1d": lambda: steps(L.ZeroPadding1D((2, 1))),
    "zero_padding2d": lambda: images(L.ZeroPadding2D(((1, 0), (2, 3))), L.Conv2D(2, 3)),
    "zero_padding2d_first": lambda: turned(L.ZeroPadding2D((1, 2), **FIRST)),
    "zero_padding3d": lambda: chain(L.ZeroPadding3D(((1, 0), (0, 2), (1, 1))), shape=VOLUME),
    "cropping1d": lambda: steps(L.Cropping1D((2, 1))),
    "cropping2d": lambda: images(L.Cropping2D(((1, 0), (2, 1)))),
    "cropping2d_first": lambda: turned(L.Cropping2D(1, **FIRST)),
    "cropping3d": lambda: chain(L.Cropping3D(((1, 0), (0, 2), (1, 1))), shape=VOLUME),
    "up_sampling1d": lambda: steps(L.UpSampling1D(3)),
    "up_sampling2d": lambda: images(L.UpSampling2D((2, 3))),
    "up_sampling2d_bilinear": lambda: images(L.UpSampling2D((2, 3), interpolation="bilinear")),
    "up_sampling2d_first": lambda: turned(L.UpSampling2D(2, **FIRST)),
    "up_sampling3d": lambda: chain(L.UpSampling3D((1, 2, 3)), shape=VOLUME),
    "resizing": lambda: images(L.Resizing(4, 9)),
    "dropouts": lambda: images(
        L.Dropout(0.3), L.SpatialDropout2D(0.2), L.GaussianNoise(0.5), L.GaussianDropout(0.2), L.AlphaDropout(0.2),
        L.Activation("tanh"), L.ActivityRegularization(0.1),
    ),
    "spatial_dropout1d": lambda: steps(L.SpatialDropout1D(0.2), L.ReLU()),
    "augmentation": lambda: images(L.RandomFlip(), L.RandomRotation(0.2), L.RandomContrast(0.2), L.ReLU()),
}  # fmt: skip

NORMS = {
    "batch": lambda: images(L.BatchNormalization()),
    "batch_dense": lambda: chain(L.Dense(4), L.BatchNormalization(scale=False), shape=(5,)),
    "batch_axis": lambda: turned(L.BatchNormalization(axis=1, center=False, epsilon=0.1)),
    "batch_steps": lambda: steps(L.BatchNormalization()),
    "frozen": lambda: chain(L.Dense(4), L.BatchNormalization(trainable=False), L.Dense(2), shape=(5,)),
    "layer": lambda: images(L.LayerNormalization()),
    "layer_axes": lambda: images(L.LayerNormalization(axis=[1, 3], epsilon=0.01)),
    "layer_plain": lambda: images(L.LayerNormalization(center=False, scale=False)),
    "rms": lambda: images(L.RMSNormalization()),
    "group": lambda: chain(L.GroupNormalization(2), shape=(7, 5, 6)),
    "group_instance": lambda: images(L.GroupNormalization(-1, scale=False)),
    "group_axis": lambda: chain(L.GroupNormalization(3, axis=1), shape=(6, 5)),
    "unit": lambda: images(L.UnitNormalization()),
    "rescaling": lambda: images(L.Rescaling(1 / 127.5, offset=-1)),
    "rescaling_vector": lambda: images(L.Rescaling([1.0, 2.0, 3.0], offset=[0.1, 0.2, 0.3])),
    "normalization": lambda: images(L.Normalization(mean=[0.1, 0.2, 0.3], variance=[0.5, 2.0, 3.0])),
    "normalization_inverse": lambda: images(L.Normalization(axis=None, mean=0.3, variance=2.0, invert=True)),
    "normalization_adapted": lambda: adapted(),
}


def adapted() -> Any:
    layer = L.Normalization(axis=-1)
    layer.adapt(np.random.default_rng(0).uniform(1, 3, (4, 7, 5, 3)).astype("float32"))
    return keras.Sequential([keras.Input(IMAGE), layer])


ACTIVATION_LAYERS = {
    "relu": lambda: L.ReLU(),
    "relu_max": lambda: L.ReLU(max_value=1.0),
    "relu_slope": lambda: L.ReLU(negative_slope=0.3),
    "relu_all": lambda: L.ReLU(max_value=1.5, negative_slope=0.2, threshold=0.3),
    "leaky_relu": lambda: L.LeakyReLU(0.1),
    "elu": lambda: L.ELU(0.7),
    "prelu": lambda: L.PReLU(),
    "prelu_shared": lambda: L.PReLU(shared_axes=[1, 2]),
    "softmax": lambda: L.Softmax(axis=1),
    "as_object": lambda: L.Conv2D(2, 1, activation=L.LeakyReLU(0.2)),
}

ATTENTION = {
    "multi_head": lambda: heads(L.MultiHeadAttention(2, 4)),
    "multi_head_other": lambda: heads(L.MultiHeadAttention(3, 2, value_dim=5, use_bias=False, output_shape=7)),
    "causal": lambda: heads(L.MultiHeadAttention(2, 4), use_causal_mask=True),
    "scores": lambda: heads(L.MultiHeadAttention(2, 4), return_attention_scores=True),
    "mask": lambda: masked_heads(),
    "attention": lambda: plain(L.Attention(use_scale=True)),
    "attention_causal": lambda: plain(L.Attention(), use_causal_mask=True),
    "additive": lambda: plain(L.AdditiveAttention()),
}


def heads(layer: Any, **options: Any) -> Any:
    q, v = keras.Input((5, 6)), keras.Input((7, 4))
    return seeded(keras.Model([q, v], layer(q, v, **options)))


def masked_heads() -> Any:
    q, v, m = keras.Input((5, 6)), keras.Input((7, 4)), keras.Input((5, 7), dtype="bool")
    return seeded(keras.Model([q, v, m], L.MultiHeadAttention(2, 4)(q, v, attention_mask=m)))


def plain(layer: Any, **options: Any) -> Any:
    q, v = keras.Input((5, 6)), keras.Input((7, 6))
    return seeded(keras.Model([q, v], layer([q, v], **options)))


DENSE = {
    "dense": lambda: chain(L.Dense(4, activation="gelu"), shape=(5,)),
    "dense_steps": lambda: steps(L.Dense(4, use_bias=False)),
    "einsum": lambda: steps(L.EinsumDense("abc,cde->abde", output_shape=(None, 2, 4), bias_axes="de")),
    "einsum_dots": lambda: steps(L.EinsumDense("...x,xy->...y", output_shape=4, bias_axes="y", activation="relu")),
    "einsum_two": lambda: chain(L.EinsumDense("abcd,cde->abe", output_shape=(None, 5)), shape=(3, 2, 4)),
    "einsum_steps": lambda: steps(L.EinsumDense("abc,bd->adc", output_shape=(4, 3), bias_axes="d")),
    "embedding": lambda: chain(L.Embedding(6, 3), L.Flatten(), L.Dense(2), shape=(7,), dtype="int32"),
    "embedding_of_floats": lambda: floats_embedded(),
    "float16": lambda: chain(L.Dense(4, dtype="float16"), L.Dense(2, dtype="float32"), shape=(5,)),
    "float64": lambda: chain(L.Dense(4, dtype="float64"), shape=(5,), dtype="float64"),
}


def floats_embedded() -> Any:
    x = keras.Input((4,))
    return seeded(keras.Model(x, L.Embedding(6, 3)(keras.ops.absolute(x))))


ALL = {
    f"{family}-{name}": build
    for family, table in (
        ("conv", CONVOLUTIONS), ("pool", POOLS), ("shape", SHAPES), ("norm", NORMS), ("attention", ATTENTION),
        ("dense", DENSE),
    )
    for name, build in table.items()
}  # fmt: skip


@pytest.mark.parametrize("case", ALL)
def test_layer(case: str, tmp_path: Path) -> None:
    check(ALL[case](), tmp_path, rtol=2e-3 if "float16" in case else 1e-4)


@pytest.mark.parametrize("case", ACTIVATION_LAYERS)
def test_activation_layer(case: str, tmp_path: Path) -> None:
    check(images(ACTIVATION_LAYERS[case]()), tmp_path)


NAMES = (
    "celu elu exponential gelu glu hard_shrink hard_sigmoid hard_silu hard_tanh leaky_relu linear log_sigmoid "
    "log_softmax mish relu relu6 selu sigmoid silu soft_shrink softmax softplus softsign sparse_plus sparse_sigmoid "
    "squareplus tanh tanh_shrink"
)


def test_activations_by_name(tmp_path: Path) -> None:
    x = keras.Input((5, 6))
    outputs = [L.Activation(name)(keras.ops.multiply(x, 1.5)) for name in NAMES.split()]
    check(keras.Model(x, outputs), tmp_path)


MERGES = ("Add", "Average", "Multiply", "Maximum", "Minimum", "Subtract", "Concatenate")


@pytest.mark.parametrize("name", MERGES)
def test_merge(name: str, tmp_path: Path) -> None:
    count = 2 if name == "Subtract" else 3
    inputs = [keras.Input((5, 4)) for _ in range(count)]
    options = {"axis": 1} if name == "Concatenate" else {}
    check(keras.Model(inputs, getattr(L, name)(**options)(inputs)), tmp_path)


def test_merge_of_other_ranks(tmp_path: Path) -> None:
    a, b = keras.Input((5, 4)), keras.Input((4,))
    check(keras.Model([a, b], [L.Add()([a, b]), L.Multiply()([b, a])]), tmp_path)


@pytest.mark.parametrize("axes, normalize", [(1, False), ((2, 1), True), (-1, True)])
def test_dot(axes: Any, normalize: bool, tmp_path: Path) -> None:
    a, b = keras.Input((4, 4)), keras.Input((4, 4))
    c, d = keras.Input((6,)), keras.Input((6,))
    outputs = [L.Dot(axes, normalize=normalize)([a, b]), L.Dot(1)([c, d])]
    check(keras.Model([a, b, c, d], outputs), tmp_path)


def test_averages_with_uneven_padding() -> None:
    """As TensorFlow and JAX compute them: an odd element of padding goes to the end, and padding does not count."""
    imported = KerasFrontend().load(chain(L.AveragePooling1D(3, strides=2, padding="same"), shape=(6, 1)))
    given = {imported.graph.inputs[0].name: np.array([1, 2, 3, 4, 5, 6], np.float32).reshape(1, 6, 1)}
    (got,) = run_graph(imported.graph, given).values()
    np.testing.assert_allclose(got.reshape(-1), [2, 4, 5.5])


def test_thresholded_relu(tmp_path: Path) -> None:
    """Keras 3 has none, files of Keras 2 do."""
    path = saved(images(L.ReLU(max_value=7.0, name="cut")), tmp_path, ".h5")
    with h5py.File(path, "r+") as file:
        config = json.loads(file.attrs["model_config"])
        (layer,) = [entry for entry in config["config"]["layers"] if entry["config"]["name"] == "cut"]
        layer["class_name"], layer["config"] = "ThresholdedReLU", {"name": "cut", "theta": 0.5}
        file.attrs["model_config"] = json.dumps(config)
    imported = KerasFrontend().load(path)
    x = np.random.default_rng(0).standard_normal((1, *IMAGE)).astype(np.float32)
    (got,) = run_graph(imported.graph, {imported.graph.inputs[0].name: x}).values()
    np.testing.assert_array_equal(got, np.where(x > 0.5, x, 0))

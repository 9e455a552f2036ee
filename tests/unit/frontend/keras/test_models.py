"""Whole models: sequential, functional, nested; shared layers; several inputs and outputs; recurrence; masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlc.errors import UnsupportedError
from mlc.frontend.common.problems import UnsupportedModelError
from mlc.frontend.keras.importer import import_keras
from tests.unit.frontend.keras.oracle import Build, L, chain, check, compare, forms, keras, saved, seeded

ops = keras.ops


def steps(*layers: Any) -> Any:
    return chain(*layers, shape=(6, 3))


RECURRENT = {
    "simple": lambda: steps(L.SimpleRNN(4)),
    "lstm": lambda: steps(L.LSTM(4)),
    "lstm_all": lambda: steps(L.LSTM(4, return_sequences=True, activation="relu", recurrent_activation="hard_sigmoid")),
    "lstm_back": lambda: steps(L.LSTM(4, return_sequences=True, go_backwards=True, use_bias=False)),
    "gru": lambda: steps(L.GRU(4, return_sequences=True)),
    "gru_before": lambda: steps(L.GRU(4, reset_after=False)),
    "gru_back": lambda: steps(L.GRU(4, go_backwards=True)),
    "cell": lambda: steps(L.RNN(L.LSTMCell(4), return_sequences=True)),
    "stacked": lambda: steps(L.RNN([L.LSTMCell(4), L.GRUCell(5), L.LSTMCell(2), L.SimpleRNNCell(3)])),
    "one_step": lambda: chain(L.LSTM(4, return_sequences=True), shape=(1, 3)),
    **{
        f"both_{mode}": (lambda mode=mode: steps(L.Bidirectional(L.LSTM(4, return_sequences=True), merge_mode=mode)))
        for mode in ("concat", "sum", "ave", "mul")
    },
    "both_last": lambda: steps(L.Bidirectional(L.GRU(4))),
    "both_other": lambda: steps(L.Bidirectional(L.GRU(4), backward_layer=L.LSTM(4, go_backwards=True))),
    "distributed": lambda: steps(L.TimeDistributed(L.Dense(4, activation="relu"))),
    "distributed_images": lambda: chain(L.TimeDistributed(L.Conv2D(2, 3)), L.Flatten(), shape=(3, 5, 4, 2)),
    "distributed_model": lambda: chain(
        L.TimeDistributed(chain(L.Conv2D(2, 3), L.BatchNormalization(), L.Flatten(), shape=(5, 4, 2))),
        L.LSTM(3), shape=(3, 5, 4, 2),
    ),
    "masked_last": lambda: chain(L.Embedding(5, 3, mask_zero=True), L.LSTM(4), shape=(7,), dtype="int32"),
    "masked_all": lambda: chain(
        L.Embedding(5, 3, mask_zero=True), L.Dropout(0.5), L.GRU(4, return_sequences=True), L.LSTM(3),
        shape=(7,), dtype="int32",
    ),
    "masked_both": lambda: chain(
        L.Embedding(5, 3, mask_zero=True), L.Bidirectional(L.LSTM(4, return_sequences=True)),
        L.TimeDistributed(L.Dense(2)), shape=(7,), dtype="int32",
    ),
    "masked_mean": lambda: chain(
        L.Embedding(5, 3, mask_zero=True), L.GlobalAveragePooling1D(), shape=(7,), dtype="int32",
    ),
    "masking": lambda: steps(L.ReLU(), L.Masking(0.0), L.SimpleRNN(4)),
    "conv1": lambda: chain(L.ConvLSTM1D(3, 2, padding="same", return_sequences=True), shape=(4, 5, 2)),
    "conv2": lambda: chain(L.ConvLSTM2D(3, (2, 3), strides=(2, 1), activation="relu"), shape=(3, 5, 6, 2)),
    "conv2_back": lambda: chain(
        L.ConvLSTM2D(2, 3, dilation_rate=2, go_backwards=True, return_sequences=True, use_bias=False),
        L.ConvLSTM2D(1, 1, recurrent_activation="hard_sigmoid"), shape=(3, 7, 6, 1),
    ),
    "conv3": lambda: chain(L.ConvLSTM3D(2, 2, return_sequences=True), shape=(2, 3, 4, 3, 2)),
    "conv_masked": lambda: chain(
        L.Embedding(5, 3, mask_zero=True), L.TimeDistributed(L.Reshape((3, 1))),
        L.ConvLSTM1D(2, 2, return_sequences=True), L.ConvLSTM1D(1, 1), shape=(6,), dtype="int32",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", RECURRENT)
def test_recurrent(case: str, tmp_path: Path) -> None:
    check(RECURRENT[case](), tmp_path, dims={"batch": 2})


def test_states_in_and_out(tmp_path: Path) -> None:
    x, h, c = keras.Input((6, 3)), keras.Input((4,)), keras.Input((4,))
    y, *states = L.LSTM(4, return_sequences=True, return_state=True)(x, initial_state=[h, c])
    z, s = L.GRU(4, return_state=True)(y, initial_state=states[0])
    both = L.Bidirectional(L.GRU(2, return_state=True), merge_mode=None)(x)
    check(seeded(keras.Model([x, h, c], [y, *states, z, s, *both])), tmp_path)


def branches() -> Any:
    """A shared layer, two inputs, outputs in a dictionary, a model within a model within a model."""
    a, b = keras.Input((8, 8, 3), name="left"), keras.Input((8, 8, 3), name="right")
    inner = keras.Sequential(
        [keras.Input((8, 8, 4)), L.Conv2D(5, 3), L.BatchNormalization(trainable=False), L.Conv2D(2, 1)], name="inner"
    )
    p, q = keras.Input((8, 8, 4)), keras.Input((8, 8, 4))
    middle = keras.Model([p, q], [L.Add()([inner(p), inner(q)]), L.BatchNormalization()(q)], name="middle")
    shared = L.Conv2D(4, 3, padding="same", name="shared")
    u, v = middle([shared(a), shared(L.ReLU()(b))])
    w, _ = middle([shared(b), shared(a)])
    return seeded(keras.Model({"a": a, "b": b}, [{"sum": u + w, "plain": v}, L.GlobalMaxPooling2D()(w)]))


def test_branches(tmp_path: Path) -> None:
    model = branches()
    made = forms(model, tmp_path)
    assert str(made["h5"].graph) == str(made["keras"].graph) == str(made["live"].graph)
    assert [v.name for v in made["keras"].graph.inputs] == ["left", "right"]
    compare(renamed(model), made["keras"])


def renamed(model: Any) -> Any:
    """A callable that takes the inputs by position."""
    return lambda inputs, training=False: model({"a": inputs[0], "b": inputs[1]}, training=training)


def test_operations(tmp_path: Path) -> None:
    x = keras.Input((4, 6))
    y = ops.transpose(x, (0, 2, 1))
    outputs = [
        ops.mean(x, axis=1), ops.sum(x), ops.max(x, axis=(1, 2), keepdims=True), x[:, 1:3], x[..., 0], x[:, -1, ::2],
        x[:, None, :, 1:-1], ops.reshape(x, (-1, 24)), ops.concatenate([x, x * 2], axis=1), ops.stack([x, -x], axis=2),
        *ops.split(x, 3, axis=-1), ops.expand_dims(x, 1), ops.squeeze(x[:, :1], 1), ops.softmax(x, axis=1),
        ops.matmul(x, y), ops.einsum("abc,abd->acd", x, x), ops.where(x > 0.5, x, -1.0), ops.cast(x > 0, "float32"),
        ops.clip(x, -0.5, 0.7), ops.pad(x, ((0, 0), (1, 2), (0, 1))), abs(x) ** 1.5, 1 - x / 3, x // 0.5,
        ops.rsqrt(ops.square(x) + 1), ops.flip(x, 1), ops.swapaxes(x, 1, 2), ops.repeat(x, 2, axis=1),
        ops.tile(x, (1, 2, 1)),
        ops.cast(ops.argmax(x, -1), "float32"), ops.gelu(x), ops.relu6(x * 4), ops.leaky_relu(x), ops.elu(x, 0.5),
        ops.maximum(x, 0.1), ops.convert_to_tensor([1.0, 2, 3, 4, 5, 6]) * x, ops.logical_and(x > 0, x < 1),
        ops.image.resize(ops.expand_dims(x, -1), (5, 9)), ops.sigmoid(x), ops.exp(x), ops.minimum(x, y[:, :4, :1]),
    ]  # fmt: skip
    check(keras.Model(x, outputs), tmp_path)


def test_open_dimensions_of_images_take_a_shape(tmp_path: Path) -> None:
    model = seeded(
        keras.Sequential([keras.Input((None, None, 3), name="image"), L.Conv2D(4, 3), L.GlobalMaxPooling2D()])
    )
    imported = check(model, tmp_path, shapes={"image": (2, 9, 7, 3)})
    assert imported.graph.inputs[0].type.shape == (2, 9, 7, 3)


def test_a_model_without_an_input_layer_that_was_called(tmp_path: Path) -> None:
    model = keras.Sequential([L.Dense(4), L.ReLU()])
    model.build((None, 5))
    check(seeded(model), tmp_path)


def test_constants_become_part_of_the_graph(tmp_path: Path) -> None:
    a, b = keras.Input((3,), name="a"), keras.Input((3,), name="b")
    path = saved(keras.Model([a, b], a + b), tmp_path)
    imported = import_keras(path, constants={"b": [[1.0, 2.0, 3.0]]})
    assert [v.name for v in imported.graph.inputs] == ["a"]
    assert imported.source.constants[0].name == "b"


class Own(L.Layer):
    """A layer of one's own."""

    def call(self, x: Any) -> Any:
        return x


def test_all_that_is_refused_is_named_at_once(tmp_path: Path) -> None:
    x = keras.Input((6, 3))
    y = Own(name="mine")(L.Lambda(lambda t: t * 2, name="code", output_shape=(6, 3))(x))
    y = L.Dense(2, name="good")(L.Discretization(bin_boundaries=[0.0, 1.0], name="memory")(y))
    path = saved(keras.Model(x, y), tmp_path)
    with pytest.raises(UnsupportedModelError) as refused:
        import_keras(path)
    message = str(refused.value)
    for name in (
        "Lambda, layer 'code'",
        "a Lambda layer holds code",
        "Own",
        "'mine'",
        "Discretization, layer 'memory'",
    ):
        assert name in message
    assert "good" not in message


def test_stateful_layers_are_refused(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((6, 3), batch_size=1), L.LSTM(2, stateful=True, name="memory")])
    with pytest.raises(UnsupportedError, match=r"LSTM, layer 'memory': setting 'stateful' is True"):
        import_keras(saved(model, tmp_path))


def masked(*names: str) -> Any:
    """Embeddings of small integers, of which 0 does not count: the inputs and their vectors."""
    ids = [keras.Input((5,), dtype="int32", name=name) for name in names]
    return ids, [L.Embedding(5, 4, mask_zero=True)(v) for v in ids]


def mean(y: Any) -> Any:
    """Of the steps that count: what attention gives for others differs from backend to backend."""
    return L.GlobalAveragePooling1D()(y)


def attended(**options: Any) -> Any:
    """A tensor is for one call only, which takes its mask away."""
    ids, (x, y, z, u) = masked("a", "b", "c", "d")
    made = L.MultiHeadAttention(2, 3, **options)
    return keras.Model(ids, [mean(made(x, x)), mean(made(y, z)), mean(made(u, u, use_causal_mask=True))])


def with_key() -> Any:
    ids, (x, y, z) = masked("a", "b", "c")
    free = L.Dense(4)(keras.ops.cast(ids[0][..., None], "float32"))
    return keras.Model(ids, [mean(L.MultiHeadAttention(2, 3)(x, free, y)), L.MultiHeadAttention(1, 2)(free, z)])


def plain(kind: Any) -> Any:
    ids, (x, y) = masked("a", "b")
    return keras.Model(ids, [mean(kind()([x, y])), mean(kind()([y, x], use_causal_mask=True)), kind()([x, x])])


def joined() -> Any:
    ids, (x, y) = masked("a", "b")
    free = L.Dense(4)(keras.ops.cast(ids[0][..., None], "float32"))
    parts = [L.Concatenate()([x, y]), L.Concatenate(1)([x, y]), L.Concatenate(1)([free, x]), L.Concatenate()([x, free])]
    return keras.Model(ids, [mean(v) for v in parts])


MASKED: dict[str, Build] = {
    "heads": attended, "heads_dropout": lambda: attended(dropout=0.1), "key": with_key,
    "dot": lambda: plain(L.Attention), "additive": lambda: plain(L.AdditiveAttention), "joined": joined,
}  # fmt: skip


@pytest.mark.parametrize("case", MASKED)
def test_masks_are_followed(case: str, tmp_path: Path) -> None:
    check(seeded(MASKED[case]()), tmp_path, dims={"batch": 3})


def test_a_mask_is_taken_away_once(tmp_path: Path) -> None:
    ids, (x,) = masked("a")
    both = [mean(L.MultiHeadAttention(1, 2, name=name)(x, x)) for name in ("one", "two")]
    with pytest.raises(UnsupportedError, match="a tensor whose mask another MultiHeadAttention takes away"):
        import_keras(saved(keras.Model(ids, both), tmp_path))


def test_masks_that_nobody_can_follow_are_refused(tmp_path: Path) -> None:
    ids, (x,) = masked("a")
    with pytest.raises(UnsupportedError, match="it reads a mask") as refused:
        import_keras(saved(keras.Model(ids, L.Softmax()(x)), tmp_path))
    assert "mask_zero" in refused.value.hint

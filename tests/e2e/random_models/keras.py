"""Random Keras models: functional graphs of layers over vectors, sequences, images and volumes.

Layers take both orders of axes, odd extents and all paddings; some are shared between two places, some lie in a model
within the model, and some tensors are outputs as well as operands.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.unit.frontend.keras.oracle import L, keras

_ACTIVATIONS = (
    "linear", "relu", "relu6", "sigmoid", "tanh", "elu", "selu", "softplus", "softsign", "silu", "gelu", "hard_sigmoid",
    "leaky_relu", "mish", "exponential", "hard_silu",
)  # fmt: skip
_MOST = 3000  # elements of a tensor

_Shape = tuple[int, ...]


@dataclass
class _Drawn:
    """A model while it grows.

    Args:
        rng: draws all.
        first: whether channels come first in images, sequences and volumes.
        live: tensors to go on with; shapes are without the batch.
    """

    rng: random.Random
    first: bool
    live: list[Any] = field(default_factory=list)
    layers: list[str] = field(default_factory=list)

    def add(self, tensor: Any) -> None:
        self.live.append(tensor)

    def apply(self, layer: Any, *operands: Any) -> None:
        self.layers.append(type(layer).__name__)
        self.add(layer(operands[0] if len(operands) == 1 else list(operands)))

    # -- what is drawn ------------------------------------------------------------------------------------------
    @property
    def order(self) -> dict[str, str]:
        return {"data_format": "channels_first" if self.first else "channels_last"}

    def axis(self) -> int:
        """Of channels."""
        return 1 if self.first else -1

    def space(self, shape: _Shape) -> _Shape:
        return shape[1:] if self.first else shape[:-1]

    def channels(self, shape: _Shape) -> int:
        return shape[0] if self.first else shape[-1]

    def pick(self, *ranks: int) -> Any | None:
        """A tensor whose shape, without the batch, has one of these ranks; rather a late one."""
        found = [t for t in self.live if len(t.shape) - 1 in ranks]
        return self.rng.choice(found[-3:]) if found else None

    def activation(self) -> str:
        return self.rng.choice(_ACTIVATIONS)

    def window(self, space: _Shape, most: int = 3) -> _Shape:
        return tuple(self.rng.randint(1, min(n, most)) for n in space)

    def steps(self, size: _Shape, *, dilated: bool = True, equal: bool = False) -> dict[str, Any]:
        """Strides or dilations of a convolution; Keras takes no both."""
        kind = self.rng.choice(("plain", "strides", "dilation" if dilated else "plain"))
        rank = len(size)
        if kind == "strides":
            step = (2,) * rank if equal else tuple(self.rng.choice((1, 2, 3)) for _ in size)
            return {"strides": step}
        return {"dilation_rate": (2,) * rank} if kind == "dilation" else {}


def _conv(m: _Drawn) -> None:
    if (x := m.pick(2, 3, 4)) is None:
        return
    shape = tuple(x.shape[1:])
    rank, c = len(shape) - 1, m.channels(shape)
    layer = (L.Conv1D, L.Conv2D, L.Conv3D)[rank - 1]
    groups = m.rng.choice([g for g in (1, 1, 1, 2, 3) if c % g == 0])
    filters = groups * m.rng.choice((1, 2, 3, 4))
    size = m.window(m.space(shape))
    options = m.steps(size)
    fits = all((k - 1) * options.get("dilation_rate", (1,))[0] < n for k, n in zip(size, m.space(shape), strict=True))
    paddings = ["same"] + ["valid"] * fits + ["causal"] * (rank == 1 and not m.first)
    m.apply(
        layer(filters, size, groups=groups, padding=m.rng.choice(paddings), activation=m.activation(),
              use_bias=m.rng.random() < 0.7, **options, **m.order), x
    )  # fmt: skip


def _apart(m: _Drawn) -> None:
    """Depthwise and separable convolutions."""
    if (x := m.pick(2, 3)) is None:
        return
    shape = tuple(x.shape[1:])
    size = m.window(m.space(shape))
    options = m.steps(size, equal=True)
    fits = all((k - 1) * options.get("dilation_rate", (1,))[0] < n for k, n in zip(size, m.space(shape), strict=True))
    facts: dict[str, Any] = {
        "depth_multiplier": m.rng.choice((1, 1, 2)), "activation": m.activation(),
        "padding": m.rng.choice(["same", "valid"] if fits else ["same"]), **options, **m.order,
    }  # fmt: skip
    if len(shape) == 2:
        options = {k: v[0] for k, v in options.items()}
        facts |= options
        size = size[0]
    if m.rng.random() < 0.5:
        m.apply((L.DepthwiseConv1D if len(shape) == 2 else L.DepthwiseConv2D)(size, **facts), x)
    else:
        layer = L.SeparableConv1D if len(shape) == 2 else L.SeparableConv2D
        m.apply(layer(m.rng.choice((1, 3, 4)), size, **facts), x)


def _transposed(m: _Drawn) -> None:
    if (x := m.pick(2, 3, 4)) is None or math.prod(x.shape[1:]) > _MOST // 8:
        return
    rank = len(x.shape) - 2
    layer = (L.Conv1DTranspose, L.Conv2DTranspose, L.Conv3DTranspose)[rank - 1]
    size = tuple(m.rng.randint(1, 3) for _ in range(rank))
    padding, stride = m.rng.choice(("same", "valid")), m.rng.choice((1, 2))
    m.apply(layer(m.rng.choice((1, 2, 3)), size, stride, padding=padding, activation=m.activation(), **m.order), x)


def _pool(m: _Drawn) -> None:
    if (x := m.pick(2, 3, 4)) is None:
        return
    shape = tuple(x.shape[1:])
    rank = len(shape) - 1
    kind = m.rng.choice(("Max", "Average"))
    if m.rng.random() < 0.25:
        m.apply(getattr(L, f"Global{kind}Pooling{rank}D")(keepdims=m.rng.random() < 0.5, **m.order), x)
        return
    size = m.window(m.space(shape))
    strides = m.rng.choice((None, tuple(m.rng.randint(1, 2) for _ in size)))
    steps = strides or size
    borders = [max(0, (-(-n // s) - 1) * s + k - n) for n, k, s in zip(m.space(shape), size, steps, strict=True)]
    # Keras with torch averages copies of the border where it has to pad one side more than the other
    uneven = kind == "Average" and any(n % 2 for n in borders)
    padding = m.rng.choice(("valid", "valid" if uneven else "same"))
    m.apply(getattr(L, f"{kind}Pooling{rank}D")(size, strides, padding=padding, **m.order), x)


def _borders(m: _Drawn) -> None:
    if (x := m.pick(2, 3, 4)) is None or math.prod(x.shape[1:]) > _MOST // 4:
        return
    shape = tuple(x.shape[1:])
    rank, space = len(shape) - 1, m.space(tuple(x.shape[1:]))
    match m.rng.randrange(3):
        case 0:
            pads = tuple((m.rng.randint(0, 2), m.rng.randint(0, 2)) for _ in space)
            m.apply(getattr(L, f"ZeroPadding{rank}D")(pads[0] if rank == 1 else pads, **m.order), x)
        case 1:
            # in one dimension, Keras cuts the first axis, whichever that is
            cuts = tuple((0, 1) if n > 2 else (0, 0) for n in (shape[:1] if rank == 1 else space))
            m.apply(L.Cropping1D(cuts[0]) if rank == 1 else getattr(L, f"Cropping{rank}D")(cuts, **m.order), x)
        case _:
            sizes = tuple(m.rng.randint(1, 2) for _ in space)
            if rank == 1:
                if not m.first:
                    m.apply(L.UpSampling1D(sizes[0]), x)
            elif rank == 2:
                how = m.rng.choice(("nearest", "bilinear"))
                m.apply(L.UpSampling2D(sizes, interpolation=how, **m.order), x)
            else:
                m.apply(L.UpSampling3D(sizes, **m.order), x)


def _normalise(m: _Drawn) -> None:
    if (x := m.pick(1, 2, 3, 4)) is None:
        return
    c = m.channels(tuple(x.shape[1:]))
    axis = m.axis() if len(x.shape) > 2 else -1
    match m.rng.randrange(5):
        case 0 | 1:
            m.apply(L.BatchNormalization(axis=axis, scale=m.rng.random() < 0.8, center=m.rng.random() < 0.8), x)
        case 2:
            m.apply(L.LayerNormalization(epsilon=0.01), x)  # Keras with torch knows no other axis
        case 3 if len(x.shape) > 2:
            groups = m.rng.choice([g for g in (1, 2, 3, c) if c % g == 0])
            m.apply(L.GroupNormalization(groups, axis=axis, epsilon=0.01), x)
        case _:
            m.apply(L.UnitNormalization(axis=axis), m.live[-1] if len(m.live[-1].shape) == len(x.shape) else x)


def _activate(m: _Drawn) -> None:
    if (x := m.pick(1, 2, 3, 4)) is None:
        return
    rank = len(x.shape) - 1
    shared = list(range(2 if m.first else 1, rank + (1 if m.first else 0))) if rank > 1 else None
    layers: list[Callable[[], Any]] = [
        lambda: L.Activation(m.activation()), lambda: L.ReLU(max_value=2.0, negative_slope=0.2, threshold=0.1),
        lambda: L.LeakyReLU(0.3), lambda: L.PReLU(shared_axes=m.rng.choice((None, shared))), lambda: L.ELU(0.7),
        lambda: L.Softmax(axis=m.rng.choice((1, -1))), lambda: L.Rescaling(0.5, 0.1), lambda: L.Dropout(0.3),
        lambda: L.GaussianNoise(0.1), lambda: L.Identity(),
    ]  # fmt: skip
    m.apply(m.rng.choice(layers)(), x)


def _merge(m: _Drawn) -> None:
    if (x := m.pick(1, 2, 3, 4)) is None:
        return
    same = [t for t in m.live if tuple(t.shape) == tuple(x.shape)]
    other = m.rng.choice(same)
    names = ("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum", "Concatenate")
    name = m.rng.choice(names)
    if name == "Concatenate" and math.prod(x.shape[1:]) < _MOST // 2:
        m.apply(L.Concatenate(axis=m.rng.choice((m.axis(), 1))), x, other)
    elif name != "Concatenate":
        m.apply(getattr(L, name)(), x, other)


def _reshape(m: _Drawn) -> None:
    if (x := m.pick(1, 2, 3, 4)) is None:
        return
    shape = tuple(x.shape[1:])
    match m.rng.randrange(4):
        case 0:
            m.apply(L.Flatten(), x)
        case 1 if len(shape) > 1:
            order = list(range(1, len(shape) + 1))
            m.rng.shuffle(order)
            m.apply(L.Permute(order), x)
        case 2 if len(shape) == 1 and shape[0] < _MOST // 4:
            m.apply(L.RepeatVector(m.rng.randint(1, 4)), x)
        case _:
            size = math.prod(shape)
            divisor = m.rng.choice([d for d in range(1, size + 1) if size % d == 0])
            m.apply(L.Reshape(m.rng.choice(((divisor, -1), (size // divisor, divisor), (divisor, 1, -1)))), x)


def _dense(m: _Drawn) -> None:
    if (x := m.pick(1, 2, 3)) is None or x.shape[-1] > 500:
        return
    units = m.rng.choice((1, 3, 4, 7))
    if len(x.shape) == 3 and m.rng.random() < 0.3:
        m.apply(L.EinsumDense("abc,cd->abd", output_shape=(x.shape[1], units), bias_axes="d"), x)
    elif len(x.shape) == 3 and m.rng.random() < 0.3:
        m.apply(L.TimeDistributed(L.Dense(units, activation=m.activation())), x)
    else:
        m.apply(L.Dense(units, activation=m.activation(), use_bias=m.rng.random() < 0.7), x)


def _recur(m: _Drawn) -> None:
    if (x := m.pick(2)) is None or x.shape[1] > 12 or x.shape[2] > 60:
        return
    units = m.rng.choice((1, 3, 4))
    options = {"return_sequences": m.rng.random() < 0.6, "use_bias": m.rng.random() < 0.8}
    kind = m.rng.choice((L.LSTM, L.GRU, L.SimpleRNN))
    more = {"reset_after": m.rng.random() < 0.5} if kind is L.GRU else {}
    more |= {"activation": m.rng.choice(("tanh", "relu"))} if kind is not L.SimpleRNN else {}
    if m.rng.random() < 0.4:
        merge = m.rng.choice(("concat", "sum", "mul", "ave"))
        m.apply(L.Bidirectional(kind(units, **options, **more), merge_mode=merge), x)
    else:
        m.apply(kind(units, go_backwards=m.rng.random() < 0.3, **options, **more), x)


def _attend(m: _Drawn) -> None:
    if (x := m.pick(2)) is None or x.shape[1] > 20 or x.shape[2] > 60:
        return
    heads, size = m.rng.choice((1, 2, 3)), m.rng.choice((1, 2, 4))
    m.layers.append("MultiHeadAttention")
    m.add(L.MultiHeadAttention(heads, size, value_dim=m.rng.choice((None, 3)), use_bias=m.rng.random() < 0.7)(x, x))


def _share(m: _Drawn) -> None:
    """One layer, or a model of some, in two places."""
    if (x := m.pick(1, 2, 3)) is None or x.shape[-1] > 200:
        return
    other = m.rng.choice([t for t in m.live if tuple(t.shape) == tuple(x.shape)])
    units = m.rng.choice((2, 5))
    if m.rng.random() < 0.5:
        layer = L.Dense(units, activation="tanh")
    else:
        inner = keras.Input(x.shape[1:])
        y = L.LayerNormalization(epsilon=0.01)(L.Dense(units)(inner))
        layer = keras.Model(inner, L.Add()([y, L.Dense(units, activation="relu")(inner)]))
    m.layers.append("shared")
    m.add(L.Add()([layer(x), layer(other)]))


_STEPS: tuple[tuple[Callable[[_Drawn], None], int], ...] = (
    (_conv, 6), (_apart, 3), (_transposed, 2), (_pool, 3), (_borders, 3), (_normalise, 3), (_activate, 3), (_merge, 4),
    (_reshape, 2), (_dense, 3), (_recur, 3), (_attend, 1), (_share, 2),
)  # fmt: skip


def _weighted(model: Any, numbers: np.random.Generator) -> None:
    """Weights that keep numbers about 1, and are nowhere all zeros or ones."""
    arrays = []
    for v in model.weights:
        taps = max(1, math.prod(v.shape[:-1])) if len(v.shape) > 1 else 4
        low, high = (0.5, 1.5) if any(word in v.name for word in ("variance", "gamma")) else (-1.0, 1.0)
        values = numbers.uniform(low, high, v.shape) / (1 if low > 0 else math.sqrt(taps))
        arrays.append(values.astype(np.float32) if "float" in str(v.dtype) else np.asarray(v))
    model.set_weights(arrays)


def draw(seed: int) -> tuple[Any, str]:
    """A model of about eight layers, and their names.

    Args:
        seed: decides everything.
    """
    rng = random.Random(f"keras {seed}")
    m = _Drawn(rng, first=rng.random() < 0.4)
    keras.utils.set_random_seed(seed)
    rank = rng.choice((1, 2, 2, 3, 3, 3, 3, 4))
    space = tuple(rng.randint(3, {1: 9, 2: 9, 3: 9, 4: 5}[rank]) for _ in range(rank - 1))
    c = rng.choice((1, 2, 3, 4, 6))
    shape = (c, *space) if m.first else (*space, c)
    inputs = [keras.Input(shape, name=f"x{k}") for k in range(rng.choice((1, 1, 2)))]
    m.live.extend(inputs)
    wanted = rng.randint(3, 10)
    for _ in range(60):
        if len(m.layers) >= wanted:
            break
        (step,) = rng.choices([s for s, _ in _STEPS], [w for _, w in _STEPS])
        step(m)
    made = m.live[len(inputs) :]
    outputs = made[-1:] + [t for t in made[:-1] if rng.random() < 0.15]
    model = keras.Model(inputs, outputs)
    _weighted(model, np.random.default_rng(seed))
    return model, f"seed {seed}, channels {'first' if m.first else 'last'}: {', '.join(m.layers)}"

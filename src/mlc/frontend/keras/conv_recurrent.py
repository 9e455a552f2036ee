"""ConvLSTM: an LSTM whose products are convolutions.

The convolutions of the input are one over all time steps; what remains of a step is that of the state, for all gates at
once. States go from step to step as rows, ``[batch, channels * space]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.context import Context
from mlc.frontend.common.conv import convolve
from mlc.frontend.common.emit import reshape, split, transpose, zeros
from mlc.frontend.common.recurrent import State, run_steps
from mlc.frontend.common.windows import Window, same_pads
from mlc.frontend.keras.activations import apply_activation
from mlc.frontend.keras.axes import as_given, channels_first
from mlc.frontend.keras.conv import turned_weights, window_of
from mlc.frontend.keras.model import Layer, flatten
from mlc.frontend.keras.recurrent import reversed_steps
from mlc.frontend.keras.registry import Arguments, bias, floats, layer, named, weight
from mlc.frontend.limits import Limits
from mlc.ir.graph import Value


@layer("ConvLSTMCell", variables=named("kernel", "recurrent_kernel", "bias"), limits="inside of ConvLSTM")
def _cell(ctx: Context, layer: Layer, call: Arguments) -> Value:
    raise UnsupportedError("a cell that is called by itself", hint="cells are supported inside of ConvLSTM")


def _own_cell(layer: Layer, limits: Limits) -> Mapping[str, Layer]:
    return {"cell": Layer("ConvLSTMCell", layer.name, layer.config, version=layer.version)}


@layer("ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D", parts=_own_cell, masks="use", limits="not stateful")
def _conv_lstm(ctx: Context, layer: Layer, call: Arguments) -> list[Value]:
    config, cell = layer.config, layer.parts["cell"]
    config.refuse("stateful")
    first, *more = call.many()
    given = list(flatten(call.get(1, "initial_state"))) or more
    x = floats(ctx, layer, first)
    rank = int(layer.class_name[-2])
    if x.type.rank != rank + 3 or not x.type.shape[1]:
        raise ImportModelError(f"called on {x.type}, which is not of rank {rank + 3} with steps")
    batch, steps, *rest = x.type.shape
    (filters,), kernel = config.positive("filters", 1), config.positive("kernel_size", rank)
    rows = reshape(ctx, transpose(ctx, x, (1, 0, *range(2, rank + 3))), (steps * batch, *rest))
    rows = channels_first(ctx, rows, config)
    window = window_of(layer, rows, kernel)
    w, r = (
        _gates(ctx, cell, name, (*kernel, n))
        for name, n in (("kernel", rows.type.shape[1]), ("recurrent_kernel", filters))
    )
    products = convolve(ctx, rows, w, bias(ctx, cell, 4 * filters), window)
    space = products.type.shape[2:]
    wide = filters * prod(space)
    again = Window(kernel, (1,) * rank, (1,) * rank, same_pads(space, kernel, (1,) * rank, (1,) * rank))

    def step(parts: Sequence[Value], state: State) -> State:
        shape = (batch, 4 * filters, *space)
        memory = convolve(ctx, reshape(ctx, state[0], (batch, filters, *space)), r, None, again)
        total = ctx.add("add", [reshape(ctx, parts[0], shape), memory])
        i, f, c, o = (reshape(ctx, v, (batch, wide)) for v in split(ctx, total, 1, [filters] * 4))
        i, f, o = (apply_activation(ctx, cell, v, "recurrent_activation") for v in (i, f, o))
        new = ctx.add("mul", [i, apply_activation(ctx, cell, c)])
        carry = ctx.add("add", [ctx.add("mul", [f, state[1]]), new])
        return ctx.add("mul", [o, apply_activation(ctx, cell, carry)]), carry

    def outside(v: Value, *leading: int) -> Value:
        """A state or all states as the layer gives them."""
        count = prod(leading)
        y = as_given(ctx, reshape(ctx, v, (count, filters, *space)), config)
        return reshape(ctx, y, (*leading, *y.type.shape[1:]))

    nothing = zeros(ctx, (batch, wide), x.type.dtype)
    if given and (len(given) != 2 or not all(isinstance(v, Value) for v in given)):
        raise ImportModelError(f"{len(given)} initial states, 2 are needed")
    before = tuple(reshape(ctx, channels_first(ctx, v, config), (batch, wide)) for v in given) or (nothing, nothing)
    running = None
    if call.mask is not None:
        if given:
            raise UnsupportedError("a mask together with initial states")
        running = reshape(ctx, transpose(ctx, call.mask, (1, 0)), (steps, batch, 1))
    backward, sequences = config.flag("go_backwards"), config.flag("return_sequences")
    history, after = run_steps(
        ctx, [reshape(ctx, products, (steps, batch, 4 * wide))], before, step, running=running, nothing=nothing,
        hold=running is not None, backward=backward, wanted=sequences,
    )  # fmt: skip
    if history is not None:
        history = outside(reversed_steps(ctx, history) if backward else history, steps, batch)
        y = transpose(ctx, history, (1, 0, *range(2, rank + 3)))
    else:
        y = outside(after[0], batch)
    return [y, *(outside(v, batch) for v in after)] if config.flag("return_state") else [y]


def _gates(ctx: Context, cell: Layer, name: str, shape: Sequence[int]) -> Value:
    """Weights of all gates as one convolution's."""
    *kernel, channels = shape
    (filters,), rank = cell.config.positive("filters", 1), len(kernel)
    array = weight(ctx, cell, name, (*shape, 4 * filters))
    return turned_weights(ctx, array, (rank + 1, rank, *range(rank)), (4 * filters, channels, *kernel))

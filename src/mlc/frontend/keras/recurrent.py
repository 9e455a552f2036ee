"""Recurrent layers: SimpleRNN, LSTM, GRU, their cells in RNN, and both directions at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import arith, concat, reshape, transpose
from mlc.frontend.common.recurrent import Cell, Direction, Function, gru_cell, lstm_cell, rnn_cell, run_direction
from mlc.frontend.keras.activations import apply_activation
from mlc.frontend.keras.config import Config
from mlc.frontend.keras.model import Layer, flatten, part_of
from mlc.frontend.keras.registry import Arguments, floats, layer, named, weight
from mlc.frontend.limits import Limits
from mlc.ir.graph import Value

_CELLS = {"SimpleRNN": "SimpleRNNCell", "LSTM": "LSTMCell", "GRU": "GRUCell"}
_STATES = {"SimpleRNNCell": 1, "LSTMCell": 2, "GRUCell": 1}


@layer(*_CELLS.values(), variables=named("kernel", "recurrent_kernel", "bias"), limits="inside of RNN")
def _cell(ctx: Context, layer: Layer, call: Arguments) -> Value:
    raise UnsupportedError("a cell that is called by itself", hint="cells are supported inside of RNN")


def _stacked(layer: Layer, limits: Limits) -> Mapping[str, Layer]:
    """The cells, numbered by class as the paths of files are."""
    cells = layer.config.get("cells")
    if not isinstance(cells, list) or not cells:
        raise ImportModelError("setting 'cells' is no list of cells")
    found: dict[str, Layer] = {}
    for k, entry in enumerate(cells):
        cell = part_of(Layer("", "", Config({"cell": entry}), version=layer.version), "cell", limits)
        if cell.class_name not in _STATES or cell.custom:
            raise UnsupportedError(f"the cell {cell.label!r}", hint=f"supported: {', '.join(_STATES)}")
        kind = {"SimpleRNNCell": "simple_rnn_cell", "LSTMCell": "lstm_cell", "GRUCell": "gru_cell"}[cell.class_name]
        count = sum(c.class_name == cell.class_name for c in list(found.values())[:k])
        found[f"cells/{kind}_{count}" if count else f"cells/{kind}"] = cell
    return found


@layer("StackedRNNCells", parts=_stacked, limits="inside of RNN")
def _stacked_cells(ctx: Context, layer: Layer, call: Arguments) -> Value:
    raise UnsupportedError("cells that are called by themselves", hint="cells are supported inside of RNN")


def _own_cell(layer: Layer, limits: Limits) -> Mapping[str, Layer]:
    """The cell that a layer makes from its own settings, or is given."""
    if layer.class_name in _CELLS:
        return {"cell": Layer(_CELLS[layer.class_name], layer.name, layer.config, version=layer.version)}
    entry = layer.config.get("cell")
    if isinstance(entry, list):  # Keras 2 lets a list stand for stacked cells
        config = {"name": layer.name, "cells": entry}
        return {"cell": Layer("StackedRNNCells", layer.name, Config(config), version=layer.version)}
    cell = part_of(layer, "cell", limits)
    if cell.custom or cell.class_name not in (*_STATES, "StackedRNNCells"):
        raise UnsupportedError(f"the cell {cell.label!r}", hint=f"supported: {', '.join(_STATES)}, StackedRNNCells")
    return {"cell": cell}


@dataclass(frozen=True)
class _Result:
    """What a recurrent layer computed: all steps in the order of time, ``[steps, batch, units]``, and last states."""

    history: Value | None
    states: list[Value]
    last: Value


@layer("SimpleRNN", "LSTM", "GRU", "RNN", parts=_own_cell, masks="use", limits="not stateful")
def _recurrent(ctx: Context, layer: Layer, call: Arguments) -> list[Value]:
    found = _run(ctx, layer, call)
    sequences = layer.config.flag("return_sequences")
    history = found.history
    if sequences and layer.config.flag("go_backwards") and history is not None:
        history = reversed_steps(ctx, history)  # steps come in the order in which they were computed
    y = transpose(ctx, history, (1, 0, 2)) if sequences and history is not None else found.last
    return [y, *found.states] if layer.config.flag("return_state") else [y]


def reversed_steps(ctx: Context, x: Value) -> Value:
    """A tensor with its first axis the other way round."""
    shape = x.type.shape
    begin, step = (shape[0] - 1, *[0] * (len(shape) - 1)), (-1, *[1] * (len(shape) - 1))
    return ctx.add("slice", [x], begin=begin, end=(-1, *shape[1:]), step=step)


def _run(ctx: Context, layer: Layer, call: Arguments) -> _Result:
    """A layer over its input, in its own direction."""
    config = layer.config
    for key in ("stateful", "time_major"):
        config.refuse(key)
    first, *more = call.many()
    given = list(flatten(call.get(1, "initial_state"))) or more
    x = floats(ctx, layer, first)
    if x.type.rank != 3:
        raise ImportModelError(f"called on {x.type}, which is not of rank 3")
    if not x.type.shape[1]:
        raise ImportModelError("called on a sequence without steps")
    outer = layer.parts["cell"]
    cells = list(outer.parts.values()) if outer.class_name == "StackedRNNCells" else [outer]
    wanted = config.flag("return_sequences")
    zero = config.flag("zero_output_for_mask")
    running = None
    if call.mask is not None:
        if given or (zero and not wanted):
            raise UnsupportedError("a mask together with initial states, or with zeros for the last output")
        mask = transpose(ctx, call.mask, (1, 0))
        running = reshape(ctx, mask, (*mask.type.shape, 1))
    count = sum(_STATES[cell.class_name] for cell in cells)
    if (given and len(given) != count) or not all(isinstance(v, Value) for v in given):
        raise ImportModelError(f"{len(given)} initial states, {count} are needed")
    steps = transpose(ctx, x, (1, 0, 2))
    states: list[Value] = []
    backward = config.flag("go_backwards")
    history: Value | None = steps
    for k, cell in enumerate(cells):
        size = _STATES[cell.class_name]
        before: Sequence[Value | None] = given[len(states) : len(states) + size] or [None] * size
        assert history is not None
        direction, step = _direction(ctx, cell, history.type.shape[2])
        history, after = run_direction(
            direction, step, history, before, running=running, hold=running is not None and not zero,
            backward=backward, wanted=wanted or k + 1 < len(cells),
        )  # fmt: skip
        states += after
        if history is not None:
            (units,) = cell.config.positive("units", 1)
            history = reshape(ctx, history, (*steps.type.shape[:2], units))
    return _Result(history, states, states[-_STATES[cells[-1].class_name]])


def _direction(ctx: Context, cell: Layer, size: int) -> tuple[Direction, Cell]:
    """A cell's weights as rows of gates, in the order that the shared cells have."""
    (units,), config = cell.config.positive("units", 1), cell.config
    gates = {"SimpleRNNCell": (0,), "LSTMCell": (0, 3, 1, 2), "GRUCell": (0, 1, 2)}[cell.class_name]
    wide = units * len(gates)

    def rows(name: str, columns: int) -> Value:
        w = weight(ctx, cell, name, (columns, wide)).T.reshape(len(gates), units, columns)
        return ctx.constant(np.ascontiguousarray(w[list(gates)]).reshape(wide, columns))

    def offset(array: np.ndarray) -> Value:
        return ctx.constant(np.ascontiguousarray(array.reshape(len(gates), units)[list(gates)]).reshape(wide))

    w, r = rows("kernel", size), rows("recurrent_kernel", units)
    none = np.zeros(wide, w.type.dtype.numpy)
    after = cell.class_name == "GRUCell" and config.flag("reset_after", cell.version >= 2)
    biases = [none, none]
    if config.flag("use_bias", True):
        if after:
            biases = list(weight(ctx, cell, "bias", (2, wide)))
        else:
            biases[0] = weight(ctx, cell, "bias", (wide,))
    act: Function = partial(_function, ctx, cell, "activation")
    gate: Function = partial(_function, ctx, cell, "recurrent_activation")
    functions = {"SimpleRNNCell": [act], "LSTMCell": [gate, act, act], "GRUCell": [gate, act]}[cell.class_name]
    direction = Direction(ctx, units, w, r, offset(biases[0]), offset(biases[1]), None, functions)
    if cell.class_name == "GRUCell":
        return direction, partial(gru_cell, linear_before_reset=after)
    return direction, lstm_cell if cell.class_name == "LSTMCell" else rnn_cell


def _function(ctx: Context, cell: Layer, key: str, x: Value) -> Value:
    return apply_activation(ctx, cell, x, key)


# -- both directions --------------------------------------------------------------------------------------------------
def _both(layer: Layer, limits: Limits) -> Mapping[str, Layer]:
    forward = part_of(layer, "layer", limits)
    if layer.config.get("backward_layer") is not None:
        backward = part_of(layer, "backward_layer", limits)
    else:
        settings: dict[str, Any] = {**forward.config, "go_backwards": not forward.config.flag("go_backwards")}
        backward = Layer(
            forward.class_name, forward.name, Config(settings), custom=forward.custom, version=forward.version
        )
    for inner in (forward, backward):
        if inner.custom or inner.class_name not in (*_CELLS, "RNN"):
            raise UnsupportedError(f"the layer {inner.label!r} inside", hint=f"supported: {', '.join(_CELLS)}, RNN")
    return {"forward_layer": forward, "backward_layer": backward}


@layer("Bidirectional", parts=_both, masks="use", limits="not stateful")
def _bidirectional(ctx: Context, layer: Layer, call: Arguments) -> list[Value]:
    forward, backward = layer.parts["forward_layer"], layer.parts["backward_layer"]
    first, *more = call.many()
    given = list(flatten(call.get(1, "initial_state"))) or more
    half = len(given) // 2
    found = [
        _run(ctx, inner, Arguments((first,), {"initial_state": own}, call.mask))
        for inner, own in ((forward, given[:half]), (backward, given[half:]))
    ]
    if forward.config.flag("return_sequences"):
        outputs = [transpose(ctx, f.history, (1, 0, 2)) for f in found if f.history is not None]
    else:
        outputs = [f.last for f in found]
    states = [s for f in found for s in f.states] if forward.config.flag("return_state") else []
    return [*_merged(ctx, layer, outputs), *states]


def _merged(ctx: Context, layer: Layer, outputs: list[Value]) -> list[Value]:
    mode = layer.config.get("merge_mode", "concat")
    if mode is None:
        return outputs
    if mode == "concat":
        return [concat(ctx, outputs, outputs[0].type.rank - 1)]
    if mode not in ("sum", "ave", "mul"):
        raise ImportModelError(f"setting 'merge_mode' is {mode!r:.60}")
    y = ctx.add("mul" if mode == "mul" else "add", outputs)
    return [arith(ctx, "mul", y, 0.5) if mode == "ave" else y]

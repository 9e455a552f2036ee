"""Quantisation to 8-bit integers with power-of-two scales.

In: an optimised float graph, before fusion. Out: the same model in core operators, with integers from the first product
that is quantised to the last: ``conv`` and ``matmul`` of i8 into i32, a bias in i32, a rounding right shift
(``round_shift``), ``relu``, ``clip``, ``cast``. So the graph *is* the definition of the quantised model: it can be
printed, interpreted, and compiled for any target.

A tensor is known in up to three forms:

* *float*, as in the original;
* *narrow*: i8, with an exponent ``e`` from calibration: the number ``q`` stands for ``q * 2**-e``;
* *wide*: the i32 sums of a product, whose exponent is that of its operands together, per tensor or per channel.

Forms are made where somebody asks for them. Sums stay wide through bias, residual addition and activation, and are
narrowed once, before the next product reads them; whoever is no integer operator gets floats. A residual addition moves
its narrow operand up to the exponent of the sums, so nothing is rounded on the way::

    acc = add(conv(x, w), bias)                           i32 at e_x + e_w
    acc = relu(add(acc, shl(cast(r), e_x + e_w - e_r)))
    y = cast(clip(round_shift(acc, e_x + e_w - e_y), -128, 127))

The graph is walked twice: first to see which tensors need an exponent, then, with what calibration found, to build. So
that both walks come by the same places, *which* form a tensor takes depends on the float graph alone, its constants
included; exponents decide numbers. Where a bias or a residual would not fit beside the sums at their exponent, the sums
give up binary places (:func:`_surplus`), at best in the weights before anything is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mlc.ir.graph import Builder, Graph, Node, Value
from mlc.ir.types import f32
from mlc.ops import get
from mlc.rewrite.quantization.exponents import I8_MAX, I8_MIN, quantised, weight_exponents

_I32_MAX = 2**31 - 1
_MOST_SHIFT = 31  # in one step
_MOVES = ("reshape", "transpose", "max_pool")  # exact on any quantised tensor


@dataclass(frozen=True, eq=False)
class _Wide:
    """Sums in i32.

    Args:
        value: the sums.
        exponents: of shape ``()``, or shaped to broadcast against the value.
        bound: the greatest magnitude they can have, shaped likewise.
        terms: products that are summed up for an element.
    """

    value: Value
    exponents: np.ndarray
    bound: np.ndarray
    terms: int = 0


class Shifts:
    """One walk over the float graph, which builds the integer one.

    Args:
        graph: in floats.
        reasons: why products stay in floats; empty for those in integers. What is found on the way joins them.
        per_channel: whether each output channel of the weights has a scale.
        exponents: of every tensor that is narrowed.
    """

    def __init__(
        self, graph: Graph, reasons: Mapping[Node, str], per_channel: bool, exponents: Mapping[Value, int]
    ) -> None:
        self.graph = graph
        self.reasons = dict(reasons)
        self.per_channel = per_channel
        self.exponents = exponents
        self.builder = Builder(graph.name)
        self._floats: dict[Value, Value] = {}
        self._narrow: dict[tuple[Value, int], Value] = {}
        self._finest: dict[Value, int] = {}  # the exponent that a value was narrowed to first
        self._wide: dict[Value, _Wide] = {}
        self._sources: tuple[str, ...] = ()
        self._made_by: dict[Value, tuple[str, ...]] = {v: n.sources for n in graph.nodes for v in n.outputs}
        self._readers = graph.consumers()

    def convert(self, watched: Sequence[Value] = ()) -> Graph:
        """The model in integers; after its own results come those of ``watched``."""
        for v in self.graph.inputs:
            self._floats[v] = self.builder.input(v.name, v.type)
        for node in self.graph.nodes:
            self._sources = node.sources
            if not self._in_integers(node):
                self._in_floats(node)
            for v in node.outputs:
                # sums that several read would be stored in 32 bits for all of them
                if v in self._wide and v.type.rank > 2 and len(self._readers.get(v, ())) > 1:
                    self._narrowed(v)
                    del self._wide[v]
        results = [self._float(v) for v in (*self.graph.outputs, *watched)]
        names = (*self.graph.output_names, *(f"layer{k}" for k in range(len(watched))))
        return self.builder.finish(results, names)

    # -- forms ------------------------------------------------------------------------------------------------------
    def _is_integer(self, v: Value) -> bool:
        return v in self._wide or v in self._finest

    def _emit(self, op: str, inputs: Sequence[Value], name: str, **attrs: object) -> Value:
        (y,) = self.builder.add(get(op), inputs, attrs, names=[name], sources=self._sources)
        return y

    def _constant(self, array: np.ndarray, name: str, dtype: type = np.int32) -> Value:
        return self.builder.constant(np.asarray(array).astype(dtype), name)

    def _float(self, v: Value) -> Value:
        """``v`` in its own type."""
        if v not in self._floats:
            if v in self.graph.constants:
                self._floats[v] = self.builder.constant(self.graph.constants[v], v.name)
            else:
                before, self._sources = self._sources, self._made_by[v]
                self._floats[v] = self._restored(v)
                self._sources = before
        return self._floats[v]

    def _restored(self, v: Value) -> Value:
        # results that nothing narrowed keep all their bits where they are few
        if v in self._wide and (v.type.rank <= 2 or (v not in self._finest and v in self.graph.outputs)):
            wide = self._wide[v]
            integers, exponents = wide.value, wide.exponents
        else:
            integers = self._narrowed(v)
            exponents = np.asarray(self._finest[v])
        scale = np.exp2(-exponents.astype(np.float64))
        as_float = self._emit("cast", [integers], f"{v.name}.f32", to="f32")
        return self._emit("mul", [as_float, self._constant(scale, f"{v.name}.scale", np.float32)], v.name)

    def _narrowed(self, v: Value, most: int | None = None) -> Value:
        """``v`` in i8, at its own exponent, or at a smaller one that ``most`` allows."""
        exponent = self._finest.get(v)
        if exponent is None:
            exponent = int(self.exponents[v])
            if v in self._wide:  # a shift never goes left
                exponent = min(exponent, int(self._wide[v].exponents.min()))
            self._finest[v] = exponent
        if most is not None and most < exponent:
            return self._moved(v, most)
        if (v, exponent) not in self._narrow:
            before, self._sources = self._sources, self._made_by.get(v, ())
            self._narrow[v, exponent] = self._first_narrow(v, exponent)
            self._sources = before
        return self._narrow[v, exponent]

    def _first_narrow(self, v: Value, exponent: int) -> Value:
        name = f"{v.name}.i8"
        if v in self._wide:
            wide = self._wide[v]
            return self._shifted(wide.value, wide.exponents - exponent, name)
        scale = self._constant(np.exp2(np.float64(exponent)), f"{v.name}.scale", np.float32)
        rounded = self._emit("round", [self._emit("mul", [self._float(v), scale], f"{v.name}.scaled")], name)
        return self._saturated(rounded, float(I8_MIN), float(I8_MAX), name)

    def _moved(self, v: Value, exponent: int) -> Value:
        """``v`` in i8 at a smaller exponent than its own."""
        if (v, exponent) not in self._narrow:
            wider = self._emit("cast", [self._narrowed(v)], f"{v.name}.i32", to="i32")
            shift = np.asarray(min(self._finest[v] - exponent, _MOST_SHIFT))
            self._narrow[v, exponent] = self._shifted(wider, shift, f"{v.name}.i8")
        return self._narrow[v, exponent]

    def _shifted(self, sums: Value, by: np.ndarray, name: str) -> Value:
        return self._saturated(self._dropped(sums, by, name), I8_MIN, I8_MAX, name)

    def _dropped(self, sums: Value, by: np.ndarray, name: str) -> Value:
        """``sums`` without their last ``by`` binary places."""
        while by.any():
            step = np.minimum(by, _MOST_SHIFT)
            sums = self._emit("round_shift", [sums, self._constant(step, f"{name}.shift")], name)
            by = by - step
        return sums

    def _with_room(self, wide: _Wide, added: Callable[[np.ndarray], np.ndarray], name: str) -> _Wide:
        """``wide`` with as many binary places as leave room for numbers of the magnitude ``added`` at its exponents."""
        drop = _surplus(wide.bound, wide.exponents, added)
        if not drop.any():
            return wide
        value = self._dropped(wide.value, drop, name)
        return replace(wide, value=value, exponents=wide.exponents - drop, bound=_halved(wide.bound, drop))

    def _saturated(self, x: Value, lo: float, hi: float, name: str) -> Value:
        return self._emit("cast", [self._emit("clip", [x], name, lo=lo, hi=hi)], name, to="i8")

    # -- operators --------------------------------------------------------------------------------------------------
    def _in_floats(self, node: Node) -> None:
        inputs = [self._float(v) for v in node.inputs]
        names = [v.name for v in node.outputs]
        made = self.builder.add(node.op, inputs, node.attrs, names=names, sources=node.sources)
        self._floats.update(zip(node.outputs, made, strict=True))

    def _in_integers(self, node: Node) -> bool:
        """Converts a node; false where it has to work on floats."""
        if any(v.type.dtype is not f32 for v in (*node.inputs, *node.outputs)):
            return False
        if node.op is get("conv") or node.op is get("matmul"):
            return self._product(node)
        if node.op is get("add"):
            return self._add(node)
        if not any(self._is_integer(v) for v in node.inputs):
            return False
        if node.op is get("relu"):
            return self._relu(node)
        if node.op is get("clip"):
            return self._clip(node)
        if node.op in [get(name) for name in _MOVES]:
            return self._move(node)
        return node.op is get("concat") and self._concat(node)

    def _product(self, node: Node) -> bool:
        (x, w), (y,) = node.inputs, node.outputs
        reason = self.reasons[node]
        if not reason:
            weights = self.graph.constants[w]
            channel = 0 if node.op is get("conv") else -2 if node.attrs["transpose_b"] else -1
            axis = channel % weights.ndim if self.per_channel else None
            found = weight_exponents(weights, axis)
            integers = quantised(weights, found, axis)
            bound = _greatest_sums(integers, channel)
            if bound.max(initial=0) > _I32_MAX:
                reason = "its sums may exceed 32 bits"
        if reason:
            self.reasons[node] = reason
            return False
        data = self._narrowed(x)
        terms = integers.size // integers.shape[channel]
        along = (-1, *(1,) * (y.type.rank - 2)) if node.op is get("conv") else (-1,)  # the shape of a number a channel
        shape = along if axis is not None else ()
        biases = self._biases(y, bound.reshape(along).shape)
        drop = _surplus(
            bound.reshape(along), found.reshape(shape) + self._finest[x], lambda e: _scaled(biases, e), terms * -I8_MIN
        )
        if drop.any():  # a bias needs the places: the weights beside it can do without
            found = found - drop.reshape(found.shape)
            integers = quantised(weights, found, axis)
            bound = _greatest_sums(integers, channel)
        w8 = self.builder.constant(integers, f"{w.name}.i8")
        sums = self.builder.add(node.op, [data, w8], node.attrs, names=[f"{y.name}.i32"], sources=node.sources)[0]
        bound = bound.reshape(along) if axis is not None else bound.max(initial=0)
        self._wide[y] = _Wide(sums, found.reshape(shape) + self._finest[x], bound, terms)
        return True

    def _biases(self, y: Value, shape: tuple[int, ...]) -> np.ndarray:
        """The greatest magnitudes of constants that are added to a product, in the shape of a number a channel."""
        most = np.zeros(shape)
        for reader in self._readers.get(y, ()):
            for c in self.graph.constants.keys() & set(reader.inputs):
                if reader.op is get("add") and self._is_bias(y, c, reader.outputs[0]):
                    most = np.maximum(most, _over_others(np.abs(self.graph.constants[c]), shape))
        return most

    def _add(self, node: Node) -> bool:
        (a, b), (y,) = node.inputs, node.outputs
        if b in self.graph.constants and a in self._wide:
            return self._bias(a, b, y)
        if a in self.graph.constants and b in self._wide:
            return self._bias(b, a, y)
        if a is b or a.type.shape != b.type.shape or self.graph.constants.keys() & {a, b}:
            return False
        if not (self._is_integer(a) or self._is_integer(b)):
            return False
        if a not in self._wide and b not in self._wide:
            # nothing is rounded where the one with the finer scale gives the sums theirs
            for v in (a, b):
                self._narrowed(v)
            main, other = (a, b) if self._finest[a] >= self._finest[b] else (b, a)
        else:
            # the longer sums take in the other operand: reading it costs them the least
            main, other = (a, b) if self._terms(a) >= self._terms(b) else (b, a)
        return self._residual(main, other, y)

    def _terms(self, v: Value) -> int:
        return self._wide[v].terms if v in self._wide else -1

    def _is_bias(self, x: Value, c: Value, y: Value) -> bool:
        """Whether ``y = x + c`` can be in integers, for sums ``x`` and a constant ``c``."""
        fits = c.type.rank <= x.type.rank and y.type.shape == x.type.shape
        return fits and bool(np.isfinite(self.graph.constants[c]).all())

    def _bias(self, x: Value, c: Value, y: Value) -> bool:
        if not self._is_bias(x, c, y):
            return False
        array = self.graph.constants[c].astype(np.float64)
        most = _over_others(np.abs(array), self._wide[x].exponents.shape)
        wide = self._with_room(self._wide[x], lambda e: _scaled(most, e), f"{y.name}.i32")
        integers = self._constant(_scaled(array, wide.exponents), f"{c.name}.i32")
        total = self._emit("add", [wide.value, integers], f"{y.name}.i32")
        self._wide[y] = replace(wide, value=total, bound=wide.bound + _scaled(most, wide.exponents).astype(np.int64))
        return True

    def _residual(self, main: Value, other: Value, y: Value) -> bool:
        self._narrowed(other)
        finest = self._finest[other]

        def lifted(exponents: np.ndarray) -> np.ndarray:
            at = min(finest, int(exponents.min()))
            return np.ceil(-I8_MIN * np.exp2(at - finest)) * np.exp2((exponents - at).astype(np.float64))

        wide = self._with_room(self._widened(main), lifted, f"{y.name}.i32")
        at = min(finest, int(wide.exponents.min()))
        by = wide.exponents - at
        term = self._emit("cast", [self._narrowed(other, at)], f"{other.name}.i32", to="i32")
        if by.any():
            term = self._emit("shl", [term, self._constant(by, f"{other.name}.places")], f"{other.name}.i32")
        total = self._emit("add", [wide.value, term], f"{y.name}.i32")
        self._wide[y] = replace(wide, value=total, bound=wide.bound + lifted(wide.exponents).astype(np.int64))
        return True

    def _widened(self, v: Value) -> _Wide:
        if v in self._wide:
            return self._wide[v]
        value = self._emit("cast", [self._narrowed(v)], f"{v.name}.i32", to="i32")
        return _Wide(value, np.asarray(self._finest[v]), np.asarray(-I8_MIN))

    def _relu(self, node: Node) -> bool:
        (x,), (y,) = node.inputs, node.outputs
        if x not in self._wide:
            return self._move(node)
        wide = self._wide[x]
        self._wide[y] = replace(wide, value=self._emit("relu", [wide.value], f"{y.name}.i32"))
        return True

    def _clip(self, node: Node) -> bool:
        (x,), (y,) = node.inputs, node.outputs
        if x not in self._wide or self._wide[x].exponents.ndim:
            return False  # limits of channels would be tensors
        lo, hi = node.attrs["lo"], node.attrs["hi"]
        beyond = np.asarray(max(0.0, lo or 0.0, -(hi or 0.0)))  # how far all numbers are moved away from 0
        wide = self._with_room(self._wide[x], lambda e: _scaled(beyond, e), f"{y.name}.i32")
        limits: list[int | None] = []
        for limit in (lo, hi):
            scaled = None if limit is None else np.rint(limit * np.exp2(np.float64(wide.exponents)))
            limits.append(None if scaled is None or not abs(scaled) <= _I32_MAX else int(scaled))
        value = self._emit("clip", [wide.value], f"{y.name}.i32", lo=limits[0], hi=limits[1])
        self._wide[y] = replace(wide, value=value)
        return True

    def _move(self, node: Node) -> bool:
        """What is exact on integers keeps the exponent of its operand."""
        (x,), (y,) = node.inputs, node.outputs
        narrow = self._narrowed(x)
        made = self.builder.add(node.op, [narrow], node.attrs, names=[f"{y.name}.i8"], sources=node.sources)[0]
        self._narrow[y, self._finest[x]] = made
        self._finest[y] = self._finest[x]
        return True

    def _concat(self, node: Node) -> bool:
        (y,) = node.outputs
        if not all(self._is_integer(v) for v in node.inputs):
            return False
        limits = [int(self._wide[v].exponents.min()) for v in node.inputs if v in self._wide]
        exponent = min([int(self.exponents[y]), *limits, *(self._finest.get(v, 99) for v in node.inputs)])
        parts = [self._at(v, exponent) for v in node.inputs]
        made = self.builder.add(node.op, parts, node.attrs, names=[f"{y.name}.i8"], sources=node.sources)[0]
        self._narrow[y, exponent] = made
        self._finest[y] = exponent
        return True

    def _at(self, v: Value, exponent: int) -> Value:
        """``v`` in i8 at an exponent that is not above its own; from the sums where nothing else needs them."""
        self._finest.setdefault(v, exponent)
        return self._narrowed(v, exponent)


def _greatest_sums(integers: np.ndarray, channel: int) -> np.ndarray:
    """The greatest magnitude that a product of weights with any bytes can have, by output channel."""
    others = tuple(d for d in range(integers.ndim) if d != channel % integers.ndim)
    return np.abs(integers.astype(np.int64)).sum(axis=others) * -I8_MIN


def _scaled(numbers: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    """Numbers as integers at exponents."""
    return np.rint(numbers * np.exp2(exponents.astype(np.float64)))


def _halved(bound: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The greatest magnitude of what is left of integers of magnitude ``bound``, without their last binary places."""
    return np.ceil(bound * np.exp2(-places.astype(np.float64))).astype(np.int64)


def _surplus(
    bound: np.ndarray, exponents: np.ndarray, added: Callable[[np.ndarray], np.ndarray], rounding: int = 0
) -> np.ndarray:
    """Binary places that integers have too many to be added to in 32 bits, in the shape of their exponents.

    Args:
        bound: the greatest magnitude of the integers.
        exponents: theirs, of one shape with the bound, or one for all.
        added: the magnitude of what is added to them, at the exponents that it is given.
        rounding: what the bound may be off by once a place is gone.
    """
    places = np.zeros_like(exponents)
    while True:
        beside = np.where(places, rounding, 0)
        over = _halved(bound, places) + beside + added(exponents - places) > _I32_MAX
        if not over.any():
            return places
        places = places + _over_others(over, exponents.shape)


def _over_others(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The maximum over the axes along which a broadcast array of ``shape`` would be constant, in ``shape``."""
    array = np.broadcast_to(array, np.broadcast_shapes(array.shape, shape))
    lead = array.ndim - len(shape)
    axes = (*range(lead), *(lead + d for d, extent in enumerate(shape) if extent == 1))
    return array.max(axis=axes, initial=0).reshape(shape)

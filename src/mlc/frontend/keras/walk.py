"""The walk over a model: every call of every layer, once what it needs is there, to core operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import cast
from mlc.frontend.common.problems import UNKNOWN, Problems, located
from mlc.frontend.keras import converters as _converters  # noqa: F401, fills the tables
from mlc.frontend.keras.model import Layer, ModelDef, Ref, every_layer, flatten
from mlc.frontend.keras.registry import Arguments, Masked, compute_dtype, find_kind
from mlc.frontend.limits import Limits
from mlc.ir.graph import Builder, Value

_Node = tuple[str, int]  # a layer and which of its calls


class Walk:
    """Converts models into one graph.

    Args:
        builder: the graph that grows.
        limits: budgets.
        problems: told of all that is not supported.
    """

    def __init__(self, builder: Builder, limits: Limits, problems: Problems) -> None:
        self.ctx = Context(builder, limits)
        self.problems = problems
        self._masks: dict[Value, Value] = {}
        self._taken: set[Value] = set()  # tensors whose masks a layer has taken away
        self._named: set[Value] = set()  # results that have the name of the layer that made them

    def note_unknown(self, model: ModelDef) -> None:
        """Tell of every layer that there is no converter for."""
        for layer in every_layer(model):
            if find_kind(layer) is None and layer.class_name != "InputLayer":
                self.problems.add(_refusal(layer), layer.name, layer.label, noun="layer")

    def run(self, model: ModelDef, given: Sequence[Any], prefix: str = "") -> list[Any]:
        """The outputs of a model, flat.

        Args:
            model: what to run; its layers have their weights.
            given: its inputs, flat.
            prefix: goes before names of layers.
        """
        return self._chain(model, given, prefix) if model.sequential else self._graph(model, given, prefix)

    def _chain(self, model: ModelDef, given: Sequence[Any], prefix: str) -> list[Any]:
        if len(given) != 1:
            raise ImportModelError(f"model {model.name!r}: called on {len(given)} tensors, it takes one")
        results = list(given)
        for layer in model.layers:
            if layer.class_name != "InputLayer":
                results = self._call(layer, (results[0] if len(results) == 1 else results,), {}, prefix)
        return results

    def _graph(self, model: ModelDef, given: Sequence[Any], prefix: str) -> list[Any]:
        layers = {layer.name: layer for layer in model.layers}
        ends = list(flatten(model.inputs))
        if len(given) != len(ends):
            raise ImportModelError(f"model {model.name!r}: called on {len(given)} tensors, it takes {len(ends)}")
        made: dict[_Node, list[Any]] = {}
        for ref, value in zip(ends, given, strict=True):
            made[ref.layer, ref.call] = [value]
        for name, call in _in_order(model, set(made)):
            layer = layers[name]
            args = _filled(layer.calls[call].args, made, name)
            kwargs = _filled(dict(layer.calls[call].kwargs), made, name)
            made[name, call] = self._call(layer, tuple(args), kwargs, prefix)
        return [_tensor(made, ref, f"model {model.name!r}") for ref in flatten(model.outputs)]

    def _call(self, layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any], prefix: str) -> list[Any]:
        """One call of a layer: its results, or unknown ones where it or what comes before it is refused."""
        tensors = [v for v in flatten([list(args), kwargs]) if isinstance(v, Value) or v is UNKNOWN]
        if isinstance(layer, ModelDef):
            return self.run(layer, _order(layer, args[0] if args else kwargs), f"{prefix}{layer.name}/")
        if find_kind(layer) is None or any(v is UNKNOWN for v in tensors):
            return [UNKNOWN]
        self.ctx.begin(f"{prefix}{layer.name}")
        try:
            with located("layer", lambda: f"layer {prefix + layer.name!r} ({layer.label})", "settings"):
                return self._labelled(self._convert(layer, args, kwargs, prefix), f"{prefix}{layer.name}")
        except UnsupportedError as error:
            self.problems.add(error, f"{prefix}{layer.name}", layer.label, noun="layer")
            return [UNKNOWN]

    def _labelled(self, results: list[Any], name: str) -> list[Any]:
        """Results of a layer; a single one that nothing before it made is called like the layer."""
        builder = self.ctx.builder
        if len(results) == 1 and isinstance(value := results[0], Value) and value not in self._named:
            self._named.add(value)
            if value not in builder.constants and value not in builder.inputs:
                self.ctx.call(value, builder.unique(name))
        return results

    def _convert(self, layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any], prefix: str) -> list[Any]:
        kind = find_kind(layer)
        assert kind is not None
        if kind.masks == "take":
            self._take([v for v in flatten([list(args), kwargs]) if isinstance(v, Value) and v in self._masks])
        if not layer.operation:
            dtype = compute_dtype(layer)
            if layer.config.get("autocast", True) is not False:
                args, kwargs = self._autocast(list(args), dtype), self._autocast(kwargs, dtype)
        mask = self._mask(args, kwargs)
        if kwargs.get("mask") is not None and not isinstance(kwargs["mask"], Value):
            raise UnsupportedError("a mask that is given as an argument")

        def apply(inner: Layer, call: Arguments) -> list[Value]:
            if isinstance(inner, ModelDef):
                found = self.run(inner, list(flatten(list(call.args))), f"{prefix}{layer.name}/")
            else:
                name = self.ctx.name
                self.ctx.begin(f"{name}/{inner.name}", self.ctx.source)
                if call.mask is not None:
                    self._masks[call.many()[0]] = call.mask
                found = self._convert(inner, call.args, dict(call.kwargs), f"{prefix}{layer.name}/")
                self.ctx.begin(name, self.ctx.source)
            if any(v is UNKNOWN for v in found):
                raise UnsupportedError(f"the layer {inner.name!r} inside")
            return found

        if mask is not None and kind.masks == "refuse":
            raise UnsupportedError("it reads a mask", hint="leave out the mask (mask_zero, Masking)")
        read = mask if kind.masks in ("use", "read") else None
        call = Arguments(tuple(args), kwargs, read, self._masks if kind.masks in ("own", "take") else {}, apply)
        made = kind.convert(self.ctx, layer, call)
        results = list(flatten(made)) if isinstance(made, (list, tuple)) else [made]
        self._masks.update({v.value: v.mask for v in results if isinstance(v, Masked)})
        results = [v.value if isinstance(v, Masked) else v for v in results]
        if mask is not None and kind.masks in ("keep", "use"):
            for v in results:
                if v.type.shape[: mask.type.rank] == mask.type.shape:
                    self._masks.setdefault(v, mask)
        return results

    def _take(self, masked: Sequence[Value]) -> None:
        """Note whose masks a layer takes away: Keras deletes them, so a second one finds none, in an order of its own.

        Raises:
            UnsupportedError: this is a second one.
        """
        if not self._taken.isdisjoint(masked):
            raise UnsupportedError(
                "a tensor whose mask another MultiHeadAttention takes away",
                hint="give each its own: Masking, Embedding",
            )
        self._taken.update(masked)

    def _mask(self, args: Any, kwargs: dict[str, Any]) -> Value | None:
        """The mask of a call: as given, or that of its first tensor that has one."""
        explicit = kwargs.get("mask")
        if isinstance(explicit, Value):
            return explicit
        masks = [self._masks[v] for v in flatten(list(args)) if isinstance(v, Value) and v in self._masks]
        return masks[0] if masks else None

    def _autocast(self, value: Any, dtype: Any) -> Any:
        if isinstance(value, Value):
            if not value.type.dtype.is_float or value.type.dtype is dtype:
                return value
            made = cast(self.ctx, value, dtype)
            if value in self._masks:
                self._masks[made] = self._masks[value]
            return made
        if isinstance(value, (list, tuple)):
            return [self._autocast(v, dtype) for v in value]
        if isinstance(value, dict):
            return {k: self._autocast(v, dtype) for k, v in value.items()}
        return value


def _refusal(layer: Layer) -> UnsupportedError:
    if layer.custom:
        return UnsupportedError("a class of the user's own, whose code is not in the file and would not be run")
    if layer.class_name == "Lambda":
        return UnsupportedError(
            "a Lambda layer holds code, which is never run", hint="write it with layers or operations of keras.ops"
        )
    return UnsupportedError("there is no converter for it", hint="mlc ops --frontend keras lists those that there are")


def _in_order(model: ModelDef, ready: set[_Node]) -> list[_Node]:
    """The calls that the outputs need, each after those that it needs.

    Raises:
        ImportModelError: a call needs one that does not exist, or needs itself.
    """
    layers = {layer.name: layer for layer in model.layers}
    needs: dict[_Node, list[_Node]] = {}
    order: list[_Node] = []
    done = set(ready)
    stack: list[tuple[_Node, bool]] = [((r.layer, r.call), False) for r in flatten(model.outputs)]
    open_nodes: set[_Node] = set()
    while stack:
        node, finished = stack.pop()
        if finished:
            open_nodes.discard(node)
            if node not in done:
                done.add(node)
                order.append(node)
            continue
        if node in done:
            continue
        if node in open_nodes:
            raise ImportModelError(f"layer {node[0]!r} needs its own result")
        name, call = node
        if name not in layers or call >= len(layers[name].calls):
            raise ImportModelError(f"model {model.name!r}: there is no call {call} of a layer {name!r}")
        if node not in needs:
            inner = layers[name].calls[call]
            refs = [v for v in flatten([list(inner.args), dict(inner.kwargs)]) if isinstance(v, Ref)]
            needs[node] = [(r.layer, r.call) for r in refs]
        open_nodes.add(node)
        stack.append((node, True))
        for other in needs[node]:
            if other in open_nodes and other not in done:
                raise ImportModelError(f"layer {other[0]!r} needs its own result")
            stack.append((other, False))
    return order


def _filled(value: Any, made: dict[_Node, list[Any]], where: str) -> Any:
    """Arguments with tensors in place of their names."""
    if isinstance(value, Ref):
        return _tensor(made, value, f"layer {where!r}")
    if isinstance(value, (list, tuple)):
        return [_filled(v, made, where) for v in value]
    if isinstance(value, dict):
        return {k: _filled(v, made, where) for k, v in value.items()}
    return value


def _tensor(made: dict[_Node, list[Any]], ref: Ref, where: str) -> Any:
    found = made.get((ref.layer, ref.call), [])
    if found and found[0] is UNKNOWN:
        return UNKNOWN  # however many results it would have
    if ref.tensor >= len(found):
        raise ImportModelError(f"{where} takes result {ref.tensor} of layer {ref.layer!r}, which has {len(found)}")
    return found[ref.tensor]


def _order(model: ModelDef, given: Any) -> list[Any]:
    """The inputs of a model inside, flat and in its order, whether they are given by name or by position."""
    if isinstance(given, dict) and not isinstance(model.inputs, dict) and not model.sequential:
        names = [ref.layer for ref in flatten(model.inputs)]
        if set(names) <= set(given):
            return [given[name] for name in names]
    return list(flatten(given))

"""The description of a model, from JSON to layers and their calls: both spellings, that of Keras 2 and that of Keras 3.

Nothing is looked up by the names of classes or modules but our own table of layers; what is not in it is data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.keras.config import Config
from mlc.frontend.keras.weights import Weights
from mlc.frontend.limits import Limits

MODELS = ("Functional", "Model", "Sequential")
_OURS = ("keras", "tf_keras", "tensorflow.keras", "tensorflow.python.keras", "builtins")


@dataclass(frozen=True)
class Ref:
    """A tensor of a model: the ``tensor``-th result of the ``call``-th call of a layer."""

    layer: str
    call: int
    tensor: int


@dataclass(frozen=True)
class Call:
    """One use of a layer: arguments, nested lists and dictionaries with :class:`Ref` where a tensor stands."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass
class Layer:
    """A layer, an operation (of ``keras.ops``), or a model used as a layer.

    Args:
        class_name: as in the table of converters.
        name: its own, unique in its model.
        config: settings.
        operation: whether it is an operation without weights.
        custom: the class that it is in truth, where that is none of Keras's.
        calls: its uses in the model around it.
        weights: its variables, once they were found.
        parts: layers inside of it, by the attribute that holds them.
        version: major version of the Keras that described it.
    """

    class_name: str
    name: str
    config: Config
    operation: bool = False
    custom: str = ""
    calls: list[Call] = field(default_factory=list)
    weights: Weights = field(default_factory=Weights)
    parts: dict[str, Layer] = field(default_factory=dict)
    version: int = 3

    @property
    def trainable(self) -> bool:
        return bool(self.config.get("trainable", True))

    @property
    def label(self) -> str:
        """What it is, for messages."""
        return self.custom or ("keras.ops." if self.operation else "") + self.class_name


@dataclass
class ModelDef(Layer):
    """A model: layers in the order of the file, and what goes in and out (nested lists and dictionaries)."""

    layers: list[Layer] = field(default_factory=list)
    inputs: Any = None
    outputs: Any = None

    @property
    def sequential(self) -> bool:
        return self.class_name == "Sequential"


def read_model(config: Mapping[str, Any], version: int, limits: Limits) -> ModelDef:
    """The model that a configuration describes.

    Args:
        config: parsed JSON.
        version: major version of the Keras that wrote it.
        limits: budgets.
    Raises:
        ImportModelError: it describes none, or one beyond the limits.
        UnsupportedError: it is a class of the user's own.
    """
    found = _Reader(version, limits).layer(config, "the model", 0)
    if not isinstance(found, ModelDef):
        raise UnsupportedError(
            f"the model is of the class {found.label!r}, whose code is not in the file",
            hint="Sequential and functional models can be read",
        )
    return found


def part_of(layer: Layer, key: str, limits: Limits) -> Layer:
    """The layer that a setting describes.

    Raises:
        ImportModelError: it describes none.
    """
    return _Reader(layer.version, limits).layer(layer.config.get(key), key, 1)


class _Reader:
    def __init__(self, version: int, limits: Limits) -> None:
        self._version, self._limits, self._count = version, limits, 0

    def layer(self, entry: Any, where: str, depth: int) -> Layer:
        """One entry of a list of layers."""
        self._limits.check("depth", depth, f"models inside of each other at {where!r:.80}")
        self._count += 1
        self._limits.check("nodes", self._count, "layers and their calls")
        if not isinstance(entry, dict) or not isinstance(entry.get("class_name"), str):
            raise ImportModelError(f"{where!r:.80} describes no layer")
        config = entry.get("config")
        if isinstance(config, list) and entry["class_name"] == "Sequential":
            config = {"name": entry.get("name", "sequential"), "layers": config}  # before Keras 2.2.3
        if not isinstance(config, dict):
            raise ImportModelError(f"layer {entry.get('name')!r:.80} has no settings")
        name = config.get("name") or entry.get("name") or entry["class_name"].lower()
        if not isinstance(name, str):
            raise ImportModelError(f"layer of class {entry['class_name']!r:.80} has a name that is no text")
        self._limits.check("name_length", len(name), f"name {name[:40]!r}...")
        class_name, custom = _class_of(entry)
        settings = Config(config)
        if class_name in MODELS and not custom and "layers" in config:
            kind = "Sequential" if class_name == "Sequential" else "Functional"
            made: Layer = self._model(ModelDef(kind, name, settings, version=self._version), depth)
        else:
            made = Layer(class_name, name, settings, _is_operation(entry), custom, version=self._version)
        nodes = entry.get("inbound_nodes") or []
        if not isinstance(nodes, list):
            raise ImportModelError(f"layer {name!r}: its calls are no list")
        self._count += len(nodes)
        made.calls = [self._call(node, name) for node in nodes]
        return made

    def _model(self, model: ModelDef, depth: int) -> ModelDef:
        entries = model.config["layers"]
        if not isinstance(entries, list):
            raise ImportModelError(f"model {model.name!r}: its layers are no list")
        model.layers = [self.layer(entry, model.name, depth + 1) for entry in entries]
        names = [layer.name for layer in model.layers]
        if len(set(names)) < len(names):
            raise ImportModelError(f"model {model.name!r}: two layers have one name")
        if not model.sequential:
            model.inputs = _ends(model.config.get("input_layers"), model.name)
            model.outputs = _ends(model.config.get("output_layers"), model.name)
            _count_from_zero(model, any(_is_old(entry) for entry in entries))
        return model

    def _call(self, node: Any, name: str) -> Call:
        if isinstance(node, dict):
            args, kwargs = self._value(node.get("args", []), 0), self._value(node.get("kwargs", {}), 0)
            if not isinstance(args, list) or not isinstance(kwargs, dict):
                raise ImportModelError(f"layer {name!r}: a call without arguments")
            return Call(tuple(args), kwargs)
        # Keras 2: a list of [layer, call, tensor, keyword arguments], or a single one of them
        if isinstance(node, list) and node and isinstance(node[0], str):
            node = [node]
        if not isinstance(node, list) or not all(isinstance(item, list) and len(item) in (3, 4) for item in node):
            raise ImportModelError(f"layer {name!r}: a call that cannot be read")
        refs = [_old_value(item[:3]) for item in node]
        kwargs = {}
        for item in node:
            kwargs.update({k: _old_value(v) for k, v in (item[3] if len(item) == 4 else {}).items()})
        return Call((refs[0] if len(refs) == 1 else refs,), kwargs)

    def _value(self, value: Any, depth: int) -> Any:
        """An argument: tensors become :class:`Ref`, wrappers of Python values go."""
        self._limits.check("depth", depth, "arguments inside of each other")
        if isinstance(value, list):
            return [self._value(v, depth + 1) for v in value]
        if not isinstance(value, dict):
            return value
        kind, config = value.get("class_name"), value.get("config")
        if kind == "__keras_tensor__" and isinstance(config, dict):
            return _ref(config.get("keras_history"))
        if kind == "__tuple__":
            return [self._value(v, depth + 1) for v in value.get("items", [])]
        if kind == "__slice__" and isinstance(config, dict):
            return slice(*(self._value(config.get(k), depth + 1) for k in ("start", "stop", "step")))
        if kind == "__ellipsis__":
            return Ellipsis
        if kind is not None and "config" in value:
            return value  # arrays, element types, and what is refused by whoever meets it
        return {str(k): self._value(v, depth + 1) for k, v in value.items()}


def _class_of(entry: Mapping[str, Any]) -> tuple[str, str]:
    """The name in our table, and the full name where the class is the user's own."""
    class_name, module, registered = entry["class_name"], entry.get("module"), entry.get("registered_name")
    if isinstance(registered, str) and ">" in registered:
        return class_name, registered
    if ">" in class_name:
        return class_name, class_name
    if isinstance(module, str) and module.split(".")[0] not in _OURS and not module.startswith(_OURS):
        return class_name, f"{module}.{class_name}"
    if module is None and "module" in entry:
        return class_name, f"{registered or class_name} (a class of the user's own)"
    return class_name, ""


def _is_operation(entry: Mapping[str, Any]) -> bool:
    """Whether an entry is an operation: its settings have nothing of a layer's."""
    module = entry.get("module")
    if isinstance(module, str) and module.startswith("keras.src.ops"):
        return True
    own = entry["config"]
    inside = isinstance(entry.get("inbound_nodes"), list) and any(isinstance(n, dict) for n in entry["inbound_nodes"])
    return "module" not in entry and inside and "trainable" not in own


def _is_old(entry: Any) -> bool:
    """Whether the calls of a layer are spelt as Keras 2 does."""
    nodes = entry.get("inbound_nodes") if isinstance(entry, dict) else None
    return isinstance(nodes, list) and any(isinstance(node, list) for node in nodes)


def _count_from_zero(model: ModelDef, old: bool) -> None:
    """Calls of models inside are counted from 1 in places, since such a model counts its own making as a call.

    Keras 2 does so wherever it names a tensor of a model that begins with an input layer, Keras 3 only where it lists
    the outputs, and only of functional models.
    """
    shifted = {
        layer.name
        for layer in model.layers
        if isinstance(layer, ModelDef)
        and (not layer.sequential or (old and layer.layers and layer.layers[0].class_name == "InputLayer"))
    }
    if not shifted:
        return

    def moved(value: Any) -> Any:
        if isinstance(value, Ref):
            return Ref(value.layer, max(value.call - 1, 0), value.tensor) if value.layer in shifted else value
        if isinstance(value, (list, tuple)):
            return [moved(v) for v in value]
        if isinstance(value, dict):
            return {k: moved(v) for k, v in value.items()}
        return value

    model.outputs = moved(model.outputs)
    if old:
        for layer in model.layers:
            layer.calls = [Call(tuple(moved(call.args)), moved(dict(call.kwargs))) for call in layer.calls]


def _ref(history: Any) -> Ref:
    if isinstance(history, list) and len(history) >= 3 and isinstance(history[0], str):
        call, tensor = history[1], history[2]
        if type(call) is int and type(tensor) is int and call >= 0 and tensor >= 0:
            return Ref(history[0], call, tensor)
    raise ImportModelError(f"{history!r:.80} names no tensor")


def _old_value(value: Any) -> Any:
    """An argument as Keras 2 writes it: a tensor is ``[layer, call, tensor]``."""
    if isinstance(value, list):
        if len(value) >= 3 and value[0] == "_CONSTANT_VALUE":
            return value[2]
        if len(value) >= 3 and isinstance(value[0], str) and all(type(n) is int for n in value[1:3]):
            return _ref(value)
        return [_old_value(v) for v in value]
    return value


def _ends(value: Any, name: str) -> Any:
    """Inputs or outputs of a model: one tensor, or lists and dictionaries of them."""
    if isinstance(value, list) and len(value) == 3 and isinstance(value[0], str):
        return _ref(value)
    if isinstance(value, list) and value:
        return [_ends(v, name) for v in value]
    if isinstance(value, dict) and value.get("class_name") == "__tuple__":
        return [_ends(v, name) for v in value.get("items", [])]
    if isinstance(value, dict) and value:
        return {str(k): _ends(v, name) for k, v in value.items()}
    raise ImportModelError(f"model {name!r}: its inputs or outputs cannot be read")


def flatten(value: Any) -> Iterator[Any]:
    """The leaves of nested lists and dictionaries, keys in order as Keras sorts them."""
    if isinstance(value, (list, tuple)):
        for v in value:
            yield from flatten(v)
    elif isinstance(value, dict):
        for key in sorted(value):
            yield from flatten(value[key])
    elif value is not None:
        yield value


def every_layer(model: ModelDef) -> Iterator[Layer]:
    """All layers, those inside of models and of other layers included, without the models themselves."""
    stack: list[Layer] = [*reversed(model.layers)]
    while stack:
        layer = stack.pop()
        if isinstance(layer, ModelDef):
            stack += reversed(layer.layers)
        else:
            yield layer
            stack += reversed(layer.parts.values())

"""Finds the weights of every layer: by the path of attributes in ``.keras`` files, by position in ``.h5`` files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.problems import Problems
from mlc.frontend.keras.archive import KerasFile
from mlc.frontend.keras.hdf5 import Dataset, Group, names_attribute
from mlc.frontend.keras.model import Layer, ModelDef
from mlc.frontend.keras.registry import find_kind
from mlc.frontend.keras.weights import Variable
from mlc.frontend.limits import Limits


def attach_weights(model: ModelDef, file: KerasFile) -> None:
    """Give each layer of a model its weights, unread.

    Args:
        model: as described, with its parts; its layers get ``weights``.
        file: where they lie.
    Raises:
        ImportModelError: weights are missing, or more than the layers have.
    """
    if file.legacy:
        _attach_lists(model, file.weights)
    else:
        _attach_tree(model, file.weights)


def make_parts(model: ModelDef, limits: Limits, problems: Problems) -> None:
    """Make the layers inside of layers, from their settings.

    Args:
        model: as described; its layers get ``parts``.
        limits: budgets.
        problems: told of layers whose settings are not supported.
    Raises:
        ImportModelError: a setting makes no sense, or layers nest beyond the limit ``depth``.
    """
    stack: list[tuple[Layer, int]] = [(model, 0)]
    while stack:
        layer, depth = stack.pop()
        limits.check("depth", depth, f"layers inside of each other at {layer.name!r:.80}")
        if layer.name in ("", ".", ".."):
            raise ImportModelError(f"layer name {layer.name!r}")
        if isinstance(layer, ModelDef):
            stack += [(inner, depth + 1) for inner in reversed(layer.layers)]
            continue
        kind = find_kind(layer)
        if kind is None:
            continue
        try:
            layer.parts = dict(kind.parts(layer, limits))
            _variables(layer)
        except UnsupportedError as error:
            problems.add(error, layer.name, layer.label, noun="layer")
            continue
        except ImportModelError as error:
            raise ImportModelError(f"layer {layer.name!r}: {error.message}", hint=error.hint) from error
        stack += [(inner, depth + 1) for inner in layer.parts.values()]


def _variables(layer: Layer) -> list[Variable]:
    kind = find_kind(layer)
    return [] if kind is None or isinstance(layer, ModelDef) else list(kind.variables(layer.config))


# -- .keras: a tree of groups ---------------------------------------------------------------------------------------
def _attach_tree(model: ModelDef, root: Group) -> None:
    if not root.has("layers") and root.has("_layer_checkpoint_dependencies"):
        raise UnsupportedError(
            "the weights are stored as TensorFlow 2.12 to 2.15 did",
            hint="load it with that version and save it as .h5: model.save('model.h5')",
        )
    stack: list[tuple[Layer, Group, str]] = [(model, root, "")]
    while stack:
        layer, group, path = stack.pop()
        if isinstance(layer, ModelDef):
            prefix = f"{path}/layers" if path else "layers"
            stack += [(inner, group, f"{prefix}/{name}") for inner, name in _places(layer)]
            continue
        if find_kind(layer) is None:
            continue
        wanted = _variables_or_none(layer)
        if wanted:
            stored = group.group(f"{path}/vars")
            layer.weights.stored = _matched(layer, wanted, [stored.dataset(n) for n in _numbered(stored)])
        stack += [(inner, group, f"{path}/{attribute}") for attribute, inner in layer.parts.items()]


def _variables_or_none(layer: Layer) -> list[Variable]:
    try:
        return _variables(layer)
    except UnsupportedError:
        return []  # reported already


def _numbered(group: Group) -> list[str]:
    return sorted((n for n in group.names() if n.isdecimal()), key=int)


def _places(model: ModelDef) -> Iterator[tuple[Layer, str]]:
    """Layers with the names of their groups: their classes in snake case, numbered where they repeat."""
    used: dict[str, int] = {}
    layers = [layer for layer in model.layers if not layer.operation]
    if model.sequential and layers and layers[0].class_name == "InputLayer":
        layers = layers[1:]
    for layer in layers:
        name = snake_case(layer.class_name)
        count = used[name] = used.get(name, -1) + 1
        yield layer, f"{name}_{count}" if count else name


def snake_case(name: str) -> str:
    """The name of a class as Keras spells it in paths.

    >>> snake_case("BatchNormalization"), snake_case("PReLU"), snake_case("Conv2D")
    ('batch_normalization', 'p_re_lu', 'conv2d')
    """
    name = re.sub(r"\W+", "", name)
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()


# -- .h5: a list for each layer ---------------------------------------------------------------------------------------
@dataclass
class _Slot:
    """A place in such a list."""

    layer: Layer
    variable: Variable
    trained: bool


def _attach_lists(model: ModelDef, root: Group) -> None:
    listed = set(names_attribute(root, "layer_names"))
    for layer in model.layers:
        slots = list(_slots(layer))
        if not slots or _has_unknown(layer):
            continue
        if layer.name not in listed:
            raise ImportModelError(f"the file has no weights for layer {layer.name!r}")
        group = root.group(layer.name)
        stored = [group.dataset(name) for name in names_attribute(group, "weight_names")]
        ordered = [s for s in slots if s.trained] + [s for s in slots if not s.trained]
        if len(stored) != len(ordered):
            raise ImportModelError(
                f"layer {layer.name!r}: the file has {len(stored)} weights for it, it needs {len(ordered)}"
            )
        for slot, dataset in zip(ordered, stored, strict=True):
            slot.layer.weights.stored[slot.variable.name] = dataset


def _slots(layer: Layer) -> Iterator[_Slot]:
    """Variables of a layer and of those inside of it, in their order."""
    stack: list[tuple[Layer, bool]] = [(layer, True)]
    while stack:
        at, trained = stack.pop()
        trained = trained and at.trainable
        for variable in _variables_or_none(at):
            yield _Slot(at, variable, trained and variable.trained)
        inside = at.layers if isinstance(at, ModelDef) else list(at.parts.values())
        stack += [(inner, trained) for inner in reversed(inside)]


def _has_unknown(layer: Layer) -> bool:
    """Whether there is a layer inside that is refused, so that nobody knows how many weights it has."""
    stack = [layer]
    while stack:
        at = stack.pop()
        if isinstance(at, ModelDef):
            stack += at.layers
        elif find_kind(at) is None and not at.operation and at.class_name != "InputLayer":
            return True
    return False


def _matched(layer: Layer, wanted: list[Variable], stored: list[Dataset]) -> dict[str, Dataset]:
    if len(wanted) != len(stored):
        raise ImportModelError(
            f"layer {layer.name!r}: the file has {len(stored)} weights for it, it needs {len(wanted)}"
        )
    # those that training changes come first
    ordered = [v for v in wanted if v.trained] + [v for v in wanted if not v.trained]
    return {variable.name: dataset for variable, dataset in zip(ordered, stored, strict=True)}

"""What is in a Keras file: layers, weights, inputs, read off without converting anything."""

from __future__ import annotations

import os
from collections import Counter

from mlc.frontend.common.importing import naming, read_file
from mlc.frontend.common.problems import Problems
from mlc.frontend.keras.archive import KerasFile, read_file_parts
from mlc.frontend.keras.hdf5 import Dataset, Group, names_attribute
from mlc.frontend.keras.importer import declared_inputs, major_version
from mlc.frontend.keras.model import every_layer, flatten, read_model
from mlc.frontend.limits import Limits
from mlc.frontend.survey import Survey, by_count


def survey_keras(path: str | os.PathLike[str], limits: Limits) -> Survey:
    """Survey a file.

    Raises:
        ImportModelError: it is no Keras model, is damaged, or is beyond a limit.
        UnsupportedError: the model is of a class of the user's own.
    """
    with naming(os.fspath(path)):
        file = read_file_parts(read_file(path, limits), limits)
        model = read_model(file.config, major_version(file.version), limits)
        inputs = declared_inputs(model, Problems())
        stored = _stored(file, limits)
        ends = [model.layers[-1].name] if model.sequential else [ref.layer for ref in flatten(model.outputs)]
    return Survey(
        format="keras",
        name=model.name,
        producer=f"Keras {file.version}".strip(),
        inputs=tuple((d.name, str(d)) for d in inputs),
        outputs=tuple((name, "") for name in ends),
        operators=by_count(Counter(layer.label for layer in every_layer(model) if layer.class_name != "InputLayer")),
        parameters=sum(d.size for d in stored),
        parameter_bytes=sum(d.nbytes for d in stored),
        versions={"keras": major_version(file.version)},
    )


def _stored(file: KerasFile, limits: Limits) -> list[Dataset]:
    """The weights of layers, those of optimizers left out."""
    if file.legacy:
        groups = [file.weights.group(name) for name in names_attribute(file.weights, "layer_names")]
        return [group.dataset(name) for group in groups for name in names_attribute(group, "weight_names")]
    found: list[Dataset] = []
    stack: list[tuple[Group, int]] = [(file.weights, 0)]
    while stack:
        group, depth = stack.pop()
        limits.check("depth", depth, f"groups inside of each other at {group.path!r:.80}")
        for name in group.names():
            if group is file.weights and name not in ("layers", "_layer_checkpoint_dependencies"):
                continue
            if name == "seed_generator":
                continue
            if group.path.endswith("/vars"):
                found.append(group.dataset(name))
            elif group.is_group(name):
                stack.append((group.group(name), depth + 1))
    return found

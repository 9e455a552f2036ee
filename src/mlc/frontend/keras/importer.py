"""``import_keras``: from a file, bytes or a live model to a graph."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.base import ImportedModel, ModelSource
from mlc.frontend.common.importing import (
    check_constant_names,
    finish,
    fixed_input,
    naming,
    read_file,
    tensor_info,
)
from mlc.frontend.common.problems import UNKNOWN, Problems
from mlc.frontend.common.shapes import Declared, Dim, OpenShapesError, check_constant_input, resolve_shapes
from mlc.frontend.keras.archive import KerasFile, read_file_parts
from mlc.frontend.keras.attach import attach_weights, make_parts
from mlc.frontend.keras.model import Layer, ModelDef, Ref, flatten, read_model
from mlc.frontend.keras.walk import Walk
from mlc.frontend.limits import DEFAULT_LIMITS, Limits
from mlc.ir.graph import Builder
from mlc.ir.types import dtype_of

BATCH = "batch"
"""Name of the first dimension of every input, where the model leaves it open; it is 1 unless it is given."""


def import_keras(
    source: str | os.PathLike[str] | bytes,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    constants: Mapping[str, npt.ArrayLike] | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> ImportedModel:
    """Import a Keras model, ``.keras`` or ``.h5``.

    Args:
        source: path of the file, or its bytes.
        shapes: shapes of inputs by name, needed where the model leaves dimensions open, save for the first.
        dims: ``batch``, the first dimension of all inputs that leave it open; 1 unless given.
        constants: values of inputs by name; such an input becomes a constant and is no longer an input of the graph.
        limits: budgets.
    Raises:
        ImportModelError: the file is no Keras model, is damaged, contradicts itself, or is beyond a limit.
        UnsupportedModelError: it uses what is not supported; lists everything.
        UsageError: an unknown name or a contradiction in the arguments, or dimensions that are left open.
        MissingDependencyError: h5py is not installed.
    """
    label = "" if isinstance(source, bytes) else os.fspath(source)
    with naming(label):
        if isinstance(source, bytes):
            limits.check("file_bytes", len(source), "the model")
        file = read_file_parts(source if isinstance(source, bytes) else read_file(source, limits), limits)
        model = read_model(file.config, major_version(file.version), limits)
        return _import(file, model, label, shapes or {}, dims or {}, constants or {}, limits)


def major_version(version: str) -> int:
    """1, 2 or 3, by the text that a file has; 2 where it has none."""
    head = version.split(".")[0]
    return int(head) if head in ("1", "2", "3") else 2


def _import(
    file: KerasFile,
    model: ModelDef,
    label: str,
    shapes: Mapping[str, Sequence[int]],
    dims: Mapping[str, int],
    constants: Mapping[str, npt.ArrayLike],
    limits: Limits,
) -> ImportedModel:
    builder, problems = Builder(model.name), Problems()
    walk = Walk(builder, limits, problems)
    make_parts(model, limits, problems)
    walk.note_unknown(model)
    try:
        attach_weights(model, file)
        declared = declared_inputs(model, problems)
    except ImportModelError as error:
        problems.check(besides=error)
        raise
    names = [d.name for d in declared]
    limits.check("arguments", len(names), "inputs of the model")
    check_constant_names(names, shapes, constants)
    fixed = {d.name: check_constant_input(d, constants[d.name]) for d in declared if d.name in constants}
    given = {**shapes, **{name: array.shape for name, array in fixed.items()}}
    try:
        types = resolve_shapes(declared, given, _with_batch(declared, given, dims), limits)
    except OpenShapesError as error:
        problems.check(besides=error)
        raise
    values = [
        builder.constant(fixed[d.name], d.name) if d.name in fixed else builder.input(d.name, types[d.name])
        for d in declared
    ]
    outputs = walk.run(model, values)
    problems.check()
    known = [v for v in outputs if v is not UNKNOWN]
    output_names = _output_names(model)
    graph = finish(builder, known, output_names)
    inputs = zip(declared, values, strict=True)
    info = ModelSource(
        format="keras",
        path=label,
        name=model.name,
        producer=f"Keras {file.version}".strip(),
        sha256=file.sha256,
        inputs=tuple(tensor_info(d.name, v) for d, v in inputs if d.name not in fixed),
        outputs=tuple(tensor_info(n, v) for n, v in zip(graph.output_names, known, strict=True)),
        opsets={"keras": major_version(file.version)},
        constants=tuple(fixed_input(name, array) for name, array in fixed.items()),
    )
    return ImportedModel(graph, info)


def _with_batch(
    declared: Sequence[Declared], given: Mapping[str, object], dims: Mapping[str, int]
) -> Mapping[str, int]:
    """The open dimensions that are known; a batch that nothing else tells is 1."""
    open_batch = [d for d in declared if d.dims and d.dims[0] == BATCH]
    if BATCH in dims or not open_batch or any(d.name in given for d in open_batch):
        return dims
    return {**dims, BATCH: 1}


def declared_inputs(model: ModelDef, problems: Problems) -> list[Declared]:
    """The inputs of a model in its own order, names unique.

    Raises:
        ImportModelError: it says nothing about one, or names no layer.
    """
    if model.sequential:
        if not model.layers:
            raise ImportModelError("the model has no layers")
        return [_declared_first(model, problems)]
    layers = {layer.name: layer for layer in model.layers}
    found = []
    for ref in flatten(model.inputs):
        if not isinstance(ref, Ref) or ref.layer not in layers or layers[ref.layer].class_name != "InputLayer":
            raise ImportModelError(f"input {getattr(ref, 'layer', ref)!r:.80} is no input layer")
        found.append(_declared(layers[ref.layer], ref.layer, problems))
    return found


def _declared_first(model: ModelDef, problems: Problems) -> Declared:
    """The input of a sequential model: of its input layer, or as its first layer or the model itself says."""
    first: Layer = model.layers[0]
    if first.class_name == "InputLayer":
        return _declared(first, first.name, problems)
    for source in (first.config, model.config):
        shape = source.get("batch_input_shape") or source.get("batch_shape") or source.get("build_input_shape")
        if shape is not None:
            dtype = first.config.get("dtype") if isinstance(first.config.get("dtype"), str) else "float32"
            name = f"{first.name}_input"
            return _typed(name, shape, "int32" if first.class_name == "Embedding" else dtype)
    raise ImportModelError(
        f"model {model.name!r}: the shape of its input is not known",
        hint="give it an Input layer, or call it once, before it is saved",
    )


def _declared(layer: Layer, name: str, problems: Problems) -> Declared:
    config = layer.config
    for key in ("sparse", "ragged"):
        if config.get(key):
            problems.add(UnsupportedError(f"a {key} tensor"), name, "InputLayer", noun="input")
    shape = config.get("batch_shape") or config.get("batch_input_shape")
    return _typed(name, shape, config.get("dtype") or "float32")


def _typed(name: str, shape: Any, dtype: Any) -> Declared:
    if isinstance(dtype, dict):
        dtype = dtype["config"].get("name") if isinstance(dtype.get("config"), dict) else None
    if not isinstance(shape, list) or any(n is not None and type(n) is not int for n in shape):
        raise ImportModelError(f"input {name!r}: its shape is {shape!r:.60}")
    if not isinstance(dtype, str):
        raise ImportModelError(f"input {name!r}: its element type is {dtype!r:.60}")
    named: list[Dim] = [BATCH if k == 0 and n is None else n for k, n in enumerate(shape)]
    return Declared(name, dtype_of(dtype.removeprefix("mixed_")), tuple(named))


def _output_names(model: ModelDef) -> list[str]:
    """Names of the layers that make the outputs, numbered where one makes several."""
    if model.sequential:
        return [model.layers[-1].name]
    names: list[str] = []
    for ref in flatten(model.outputs):
        name, k = ref.layer, 1
        while name in names:
            name, k = f"{ref.layer}_{k}", k + 1
        names.append(name)
    return names

"""``import_onnx``: from a file or bytes to a graph."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

import numpy.typing as npt
import onnx

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.base import CustomOperator, ImportedModel, ModelSource
from mlc.frontend.common.importing import check_constant_names, finish, fixed_input, naming, tensor_info
from mlc.frontend.common.problems import UNKNOWN, Problems
from mlc.frontend.common.shapes import Declared, OpenShapesError, check_constant_input, resolve_shapes
from mlc.frontend.limits import DEFAULT_LIMITS, Limits
from mlc.frontend.onnx.external import ExternalData
from mlc.frontend.onnx.reader import read_model
from mlc.frontend.onnx.scope import Known, Scope
from mlc.frontend.onnx.shapes import declared_type
from mlc.frontend.onnx.tensors import element_type
from mlc.frontend.onnx.validate import check_model
from mlc.frontend.onnx.walk import ModelWalk
from mlc.ir.graph import Builder, Graph, Value


def import_onnx(
    source: str | os.PathLike[str] | bytes,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    constants: Mapping[str, npt.ArrayLike] | None = None,
    limits: Limits = DEFAULT_LIMITS,
    operators: Sequence[CustomOperator] = (),
) -> ImportedModel:
    """Import an ONNX model.

    Args:
        source: path of the model, or its bytes (then without external data).
        shapes: shapes of inputs by name, needed where the model leaves dimensions open.
        dims: values of symbolic dimensions, for all inputs at once.
        constants: values of inputs by name; such an input becomes a constant and is no longer an input of the graph.
            Arrays must be of its element type; plain numbers take it.
        limits: budgets.
        operators: of the user's own, for nodes of custom domains.
    Raises:
        ImportModelError: the file is no ONNX model, is damaged, contradicts itself, or is beyond a limit.
        UnsupportedModelError: it uses what is not supported; lists everything.
        UnsupportedError: its format or operator set is newer than what is known.
        UsageError: an unknown name or a contradiction in the arguments, or dimensions that are left open.
    """
    label = "" if isinstance(source, bytes) else os.fspath(source)
    with naming(label):
        file = read_model(source, limits)
        opsets = check_model(file.proto, limits)
        walk = ModelWalk(file.proto, opsets, ExternalData(file.folder, limits), limits, operators)
        try:
            inputs = _inputs(walk, shapes or {}, dims or {}, constants or {})
        except OpenShapesError as error:
            walk.note_missing_operators()
            walk.problems.check(besides=error)
            raise
        scope = walk.run(inputs)
        walk.problems.check()
        fixed = tuple(
            fixed_input(name, walk.builder.constants[v])
            for name in constants or ()
            if isinstance(v := inputs[name], Value)
        )
        seed = walk.ctx.run_seed
        graph = _finish(file.proto.graph, walk.builder, scope, seed)
    proto = file.proto
    info = ModelSource(
        format="onnx",
        path=label,
        name=proto.graph.name,
        producer=f"{proto.producer_name} {proto.producer_version}".strip(),
        sha256=file.sha256,
        inputs=tuple(tensor_info(v.name, v) for v in graph.inputs if v is not seed),
        outputs=tuple(tensor_info(n, v) for n, v in zip(graph.output_names, graph.outputs, strict=True)),
        opsets={domain or "ai.onnx": version for domain, version in opsets.items()},
        metadata={entry.key: entry.value for entry in proto.metadata_props},
        constants=fixed,
    )
    return ImportedModel(graph, info)


def _inputs(
    walk: ModelWalk,
    shapes: Mapping[str, Sequence[int]],
    dims: Mapping[str, int],
    constants: Mapping[str, npt.ArrayLike],
) -> dict[str, Known]:
    """What the names of the model's inputs stand for; an input with an initializer is a constant."""
    graph = walk.model.graph
    stored = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    infos = [v for v in graph.input if v.name not in stored]
    check_constant_names([v.name for v in infos], shapes, constants)
    declared, inputs = _declared(infos, walk.problems)
    values = {d.name: check_constant_input(d, constants[d.name]) for d in declared if d.name in constants}
    given = {**shapes, **{name: array.shape for name, array in values.items()}}
    if inputs:
        # inputs that are no tensors have no shape to give; they are reported as such in the end
        given = {name: shape for name, shape in given.items() if name not in inputs}
    types = resolve_shapes(declared, given, dims, walk.limits)
    for d in declared:
        if d.name in values:
            inputs[d.name] = walk.builder.constant(values[d.name], d.name)
        else:
            inputs[d.name] = walk.builder.input(d.name, types[d.name])
    return inputs


def _declared(infos: Iterable[onnx.ValueInfoProto], problems: Problems) -> tuple[list[Declared], dict[str, Known]]:
    """Inputs that are tensors of a supported type, and the others as unknown values."""
    declared: list[Declared] = []
    unknown: dict[str, Known] = {}
    for info in infos:
        try:
            declared.append(declared_type(info))
        except UnsupportedError as error:
            problems.add(error, info.name, noun="input")
            unknown[info.name] = UNKNOWN
    return declared, unknown


def _finish(proto: onnx.GraphProto, builder: Builder, scope: Scope, seed: Value | None) -> Graph:
    """The graph of what was built, without the nodes and constants that nothing uses, nor a ``seed`` that nothing uses.

    Raises:
        ImportModelError: an output has another element type than the model declares.
    """
    outputs: list[Value] = []
    for info in proto.output:
        value = scope[info.name]
        if not isinstance(value, Value):
            raise ImportModelError(f"output {info.name!r} is never made")
        where = f"output {info.name!r}"
        elem_type = info.type.tensor_type.elem_type
        declared = element_type(elem_type, where) if elem_type else value.type.dtype
        if declared is not value.type.dtype:
            raise ImportModelError(f"{where} is declared {declared}, its nodes make {value.type.dtype}")
        outputs.append(value)
    return finish(builder, outputs, [info.name for info in proto.output], seed)

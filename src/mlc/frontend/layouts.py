"""Inputs whose axes the caller has in another order than the model, ``mlc compile --input-layout x:NCHW``.

A layout names the axes by letters, ``N`` for the batch and ``C`` for channels; the model's own follows from its format
unless it is said: ``NHWC->NCHW``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from mlc.errors import UsageError
from mlc.frontend.base import ImportedModel, TensorInfo
from mlc.ir.graph import Builder, Graph, Node, Value
from mlc.ir.types import TensorType
from mlc.ops import get

_FORM = re.compile(r"(?:([A-Za-z]+)->)?([A-Za-z]+)")
_SPACE = {3: "W", 4: "HW", 5: "DHW"}  # by rank
_LAST = ("keras", "tflite")  # formats whose channels are the last axis; in others they are the second


def with_layouts(model: ImportedModel, layouts: Mapping[str, str]) -> ImportedModel:
    """The model with inputs whose axes are in another order; what it computes, it computes on their transposes.

    Args:
        model: as imported.
        layouts: ``WANTED`` or ``OWN->WANTED`` by name of the input.
    Raises:
        UsageError: an unknown input, one that is a state, or a layout that is not one of its axes.
    """
    inputs = {v.name: v for v in model.graph.inputs if any(v.name == info.name for info in model.source.inputs)}
    wanted: dict[Value, tuple[str, str]] = {}
    for name, text in layouts.items():
        if name not in inputs:
            raise UsageError(f"no input {name!r} to give a layout", hint=f"inputs: {', '.join(inputs) or 'none'}")
        if any(name == state.name for state in model.source.states):
            raise UsageError(f"input {name!r} is a state, which has the layout of the output that it comes from")
        if name in model.source.layouts:
            raise UsageError(f"input {name!r} was given the layout {model.source.layouts[name]} when it was imported")
        wanted[inputs[name]] = _parse(name, text, inputs[name].type.rank, model.source.format)
    graph = _transposed(model.graph, wanted)
    shapes = {v.name: v.type.shape for v in graph.inputs}
    infos = tuple(TensorInfo(i.name, shapes[i.name], i.dtype) for i in model.source.inputs)
    said = {v.name: f"{own}->{given}" for v, (own, given) in wanted.items()}
    return ImportedModel(graph, replace(model.source, inputs=infos, layouts={**model.source.layouts, **said}))


def _parse(name: str, text: str, rank: int, format: str) -> tuple[str, str]:
    """The model's own order of axes, and the wanted one."""
    form = "expected NAME:NCHW, or 'NAME:NHWC->NCHW' with the model's own layout before the arrow"
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"input {name!r}: {text!r} is no layout", hint=form)
    own, wanted = (match[1] or _usual(rank, format)).upper(), match[2].upper()
    if not own:
        raise UsageError(f"input {name!r} has {rank} axes, whose layout is not known", hint=form)
    if len(own) != rank or len(set(own)) != rank:
        raise UsageError(f"input {name!r} has {rank} axes, {own} does not name each once", hint=form)
    if sorted(own) != sorted(wanted):
        raise UsageError(f"input {name!r}: its axes are {own}, {wanted} is no order of them", hint=form)
    return own, wanted


def _usual(rank: int, format: str) -> str:
    space = _SPACE.get(rank, "")
    return space and (f"N{space}C" if format in _LAST else f"NC{space}")


def _transposed(graph: Graph, layouts: Mapping[Value, tuple[str, str]]) -> Graph:
    """The graph over inputs in the wanted layouts."""
    names = Builder()
    for v in (*graph.inputs, *graph.constants, *(v for node in graph.nodes for v in node.outputs)):
        names.unique(v.name)
    op = get("transpose")
    given, known, nodes = {}, {}, []
    for v, (own, wanted) in layouts.items():
        shape = tuple(v.type.shape[own.index(axis)] for axis in wanted)
        given[v] = Value(v.name, TensorType(shape, v.type.dtype))
        known[v] = Value(names.unique(f"{v.name}_{own}"), v.type)
        perm = tuple(wanted.index(axis) for axis in own)
        nodes.append(Node(op, (given[v],), {"perm": perm}, (known[v],)))
    nodes += [replace(n, inputs=tuple(known.get(v, v) for v in n.inputs)) for n in graph.nodes]
    return replace(
        graph,
        inputs=tuple(given.get(v, v) for v in graph.inputs),
        outputs=tuple(known.get(v, v) for v in graph.outputs),
        nodes=tuple(nodes),
    )

"""Makes a failing model small: nodes are taken away as long as it still fails, their results becoming inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import onnx

from tests.e2e.random_models.builder import RandomModel


def reduced(model: RandomModel, fails: Callable[[RandomModel], bool]) -> RandomModel:
    """The smallest model found that fails like ``model``.

    Args:
        model: fails.
        fails: whether a model does.
    """
    for name in model.outputs:
        if len(model.outputs) > 1 and fails(candidate := _with_outputs(model, [name])):
            model = candidate
            break
    shrunk = True
    while shrunk:
        shrunk = False
        for candidate in _smaller(model):
            if fails(candidate):
                model, shrunk = candidate, True
                break
    return model


def _smaller(model: RandomModel) -> Sequence[RandomModel]:
    """Large cuts first: one node alone, all from one node on, all up to one, all but one."""
    nodes = model.nodes
    if len(nodes) == 1:
        return []
    cuts = [[n] for n in nodes]
    for size in (len(nodes) // 2, len(nodes) // 4):
        cuts += [list(nodes[k : k + size]) for k in range(0, len(nodes), max(1, size)) if size > 1]
    cuts += [[n for n in nodes if n is not gone] for gone in nodes]
    return [_only(model, kept) for kept in cuts]


def _only(model: RandomModel, nodes: Sequence[onnx.NodeProto]) -> RandomModel:
    """A part of the model; what it reads and does not make becomes an input."""
    made = {o for n in nodes for o in n.output if o}
    read = {i for n in nodes for i in n.input if i}
    tensors = {}
    for name, t in model.tensors.items():
        if name in made:
            tensors[name] = t
        elif name in read:
            tensors[name] = replace(t, origin="input", error=0.0) if t.origin == "node" else t
    kept = [name for name in model.outputs if name in made]
    outputs = [*kept, *sorted(made - read - set(kept))]
    return RandomModel(tuple(nodes), tensors, tuple(outputs))


def _with_outputs(model: RandomModel, outputs: Sequence[str]) -> RandomModel:
    """Only some outputs, and only the nodes that they need."""
    needed, nodes = set(outputs), []
    for node in reversed(model.nodes):
        if needed & set(node.output):
            nodes.insert(0, node)
            needed |= set(node.input)
    names = needed | {o for n in nodes for o in n.output}
    return RandomModel(tuple(nodes), {k: t for k, t in model.tensors.items() if k in names}, tuple(outputs))

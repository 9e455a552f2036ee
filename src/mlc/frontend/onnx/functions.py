"""Functions of a model: looked up by name, and measured before any is expanded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx

from mlc.errors import ImportModelError
from mlc.frontend.limits import Limits
from mlc.frontend.onnx.order import subgraphs
from mlc.frontend.onnx.validate import normal_domain

Key = tuple[str, str, str]  # domain, name, overload


class FunctionTable:
    """The functions that a model brings along.

    A file of a few lines can call functions that call functions, two calls each, thirty deep: a billion nodes. So the
    size of everything expanded is computed first, in one pass over the call graph.

    Args:
        model: structurally checked.
        limits: ``nodes`` caps the expanded model, ``depth`` the nesting of calls.
    Raises:
        ImportModelError: two functions of one name, a function that calls itself, or a limit.
    """

    def __init__(self, model: onnx.ModelProto, limits: Limits) -> None:
        self.table: dict[Key, onnx.FunctionProto] = {}
        for function in model.functions:
            key = (normal_domain(function.domain), function.name, function.overload)
            if key in self.table:
                raise ImportModelError(f"function {function.name!r} is defined twice")
            self.table[key] = function
        sizes = self._sizes(limits)
        total = sum(1 + sizes.get(key, 0) for key in self._calls(model.graph.node))
        limits.check("nodes", total, "nodes in the model with functions expanded")

    def find(self, node: onnx.NodeProto) -> onnx.FunctionProto | None:
        """The function that a node calls, if it is one of the model's own."""
        return self.table.get((normal_domain(node.domain), node.op_type, node.overload)) if self.table else None

    def _calls(self, nodes: Iterable[onnx.NodeProto]) -> Iterator[Key]:
        """What each node calls, those in subgraphs included."""
        stack = [*nodes]
        while stack:
            node = stack.pop()
            yield normal_domain(node.domain), node.op_type, node.overload
            for graph in subgraphs(node):
                stack += graph.node

    def _sizes(self, limits: Limits) -> dict[Key, int]:
        """Nodes of each function with all its calls expanded."""
        calls = {key: [*self._calls(function.node)] for key, function in self.table.items()}
        sizes: dict[Key, int] = {}
        depths: dict[Key, int] = {}
        for start in self.table:
            # depth first with an explicit stack; `active` is the chain of calls from `start`
            stack = [(start, False)]
            active: set[Key] = set()
            while stack:
                key, done = stack.pop()
                inner = [c for c in calls[key] if c in self.table]
                if done:
                    active.discard(key)
                    sizes[key] = sum(1 + sizes.get(c, 0) for c in calls[key])
                    depths[key] = 1 + max((depths[c] for c in inner), default=0)
                    limits.check("depth", depths[key], f"function {key[1]!r}: nesting of calls")
                    continue
                if key in sizes:
                    continue
                active.add(key)
                stack.append((key, True))
                for c in dict.fromkeys(inner):
                    if c in active:
                        raise ImportModelError(f"function {key[1]!r} calls itself (by way of {c[1]!r})")
                    if c not in sizes:
                        stack.append((c, False))
        return sizes

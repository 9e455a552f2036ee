"""Names while a model is walked: which value each stands for, and the bodies that are being walked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from onnx import AttributeProto

from mlc.errors import ImportModelError
from mlc.frontend.common.names import shortened
from mlc.frontend.common.problems import Unknown
from mlc.frontend.onnx.order import Step, node_name
from mlc.ir.graph import Value

Known = Value | Unknown | None  # None: an optional operand that the call of a function left out


@dataclass
class Scope:
    """Names of one body; a subgraph sees those of the bodies around it."""

    outer: Scope | None = None
    values: dict[str, Known] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Known:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        raise ImportModelError(f"tensor {name!r} is used, but nothing makes it")


@dataclass
class Frame:
    """A body that is being walked: the main graph, a branch, one round of a loop, or a function.

    Args:
        steps: what remains to be done.
        scope: its names.
        opsets: operator-set versions that hold in it.
        prefix: put before names of values and nodes; empty for the main graph.
        source: the node of the model that everything in the body belongs to; empty when its nodes stand for themselves.
        given: attributes of the call, in a function; ``None`` elsewhere.
        caller: the frame and step that this body belongs to; ``None`` for the main graph.
        finish: called when all is done, with the frame already gone.
        depth: how many bodies are around it.
    """

    steps: Iterator[Step]
    scope: Scope
    opsets: Mapping[str, int]
    prefix: str = ""
    source: str = ""
    given: Mapping[str, AttributeProto] | None = None
    caller: tuple[Frame, Step] | None = None
    finish: Callable[[], None] | None = None
    depth: int = 0

    def name_of(self, step: Step) -> str:
        """Name of a node of this body, unique enough for messages."""
        name = node_name(step.node, step.position)
        return shortened(self.prefix + name) if self.prefix else name

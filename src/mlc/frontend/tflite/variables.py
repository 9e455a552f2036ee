"""Variables, which a graph reads and assigns: VAR_HANDLE, READ_VARIABLE, ASSIGN_VARIABLE, and CALL_ONCE before them.

Graphs have no memory, so a variable that is read before it is assigned becomes an input, and what it is assigned last
an output, to be given to the next run. One that only the initialisation assigns is a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.context import check_type
from mlc.frontend.limits import Limits
from mlc.frontend.tflite.model import OperatorDef, SubgraphDef, TensorDef
from mlc.frontend.tflite.types import element_type
from mlc.ir.graph import Builder, Value
from mlc.ir.types import TensorType

# with what is not covered, in words
OPERATORS = {
    "VAR_HANDLE": "variables become inputs and outputs",
    "READ_VARIABLE": "",
    "ASSIGN_VARIABLE": "",
    "CALL_ONCE": "a graph that assigns constants to variables",
}

Store = Callable[[TensorDef], Value]  # a stored tensor of any graph, as a constant


@dataclass
class Variables:
    """The variables of one import.

    Args:
        graphs: of the file; the first is the model.
        builder: of the graph that grows.
        limits: budgets.
    """

    graphs: Sequence[SubgraphDef]
    builder: Builder
    limits: Limits
    _handles: dict[int, str] = field(default_factory=dict)
    _initial: dict[str, Value] = field(default_factory=dict)
    _before: dict[str, Value] = field(default_factory=dict)
    _now: dict[str, Value] = field(default_factory=dict)

    def convert(self, operator: OperatorDef, assigned: Value | None, store: Store) -> list[Value]:
        """One of ``OPERATORS``, with its results but for handles.

        Args:
            operator: in the main graph.
            assigned: its second operand, where it has one.
            store: for constants of other graphs.

        Raises:
            ImportModelError: an operand is no handle, or a variable changes its type.
            UnsupportedError: the initialisation does more than assigning constants.
        """
        match operator.name:
            case "VAR_HANDLE":
                _need(operator, 0, 1)
                self._handles[operator.outputs[0]] = _name(operator)
            case "CALL_ONCE":
                self._initialise(int(operator.options.get("init_subgraph_index", 0)), store)
            case "READ_VARIABLE":
                _need(operator, 1, 1)
                return [self._read(self._handle(operator), self.graphs[0].tensors[operator.outputs[0]])]
            case "ASSIGN_VARIABLE":
                _need(operator, 2, 0)
                if assigned is None:
                    raise ImportModelError("assigns nothing")
                self._assign(self._handle(operator), assigned)
        return []

    def states(self) -> list[tuple[str, Value]]:
        """Names of outputs, and what variables that are inputs hold after a run."""
        return [(f"{name}.next", self._now[name]) for name in self._before]

    def initial(self) -> list[tuple[Value, Value | None]]:
        """Variables that are inputs, with what the initialisation assigns to them."""
        return [(value, self._initial.get(name)) for name, value in self._before.items()]

    def _handle(self, operator: OperatorDef) -> str:
        if operator.inputs[0] not in self._handles:
            raise ImportModelError("the first input is no handle of a variable")
        return self._handles[operator.inputs[0]]

    def _read(self, name: str, result: TensorDef) -> Value:
        if name in self._now:
            return self._now[name]
        if name in self._initial and not self._assigned(name):
            return self._initial[name]
        type = TensorType(result.shape, element_type(result.type, result.where))
        check_type(type, self.limits, f"variable {name!r}")
        self._before[name] = self._now[name] = self.builder.input(name, type)
        return self._now[name]

    def _assign(self, name: str, value: Value) -> None:
        before = self._before.get(name)
        if before is not None and before.type != value.type:
            raise ImportModelError(f"variable {name!r} is {before.type}, and is assigned {value.type}")
        self._now[name] = value

    def _assigned(self, name: str) -> bool:
        """Whether the model itself assigns a variable, anywhere."""
        main = self.graphs[0]
        handles = {o.outputs[0] for o in main.operators if o.name == "VAR_HANDLE" and o.outputs and _name(o) == name}
        return any(o.name == "ASSIGN_VARIABLE" and o.inputs and o.inputs[0] in handles for o in main.operators)

    def _initialise(self, index: int, store: Store) -> None:
        if not 0 < index < len(self.graphs):
            raise ImportModelError(f"there is no graph {index} to call, the file has {len(self.graphs)}")
        graph = self.graphs[index]
        handles: dict[int, str] = {}
        for operator in graph.operators:
            if operator.name == "VAR_HANDLE":
                _need(operator, 0, 1)
                handles[operator.outputs[0]] = _name(operator)
            elif operator.name == "ASSIGN_VARIABLE":
                _need(operator, 2, 0)
                if operator.inputs[0] not in handles or operator.inputs[1] < 0:
                    raise ImportModelError(f"graph {index}: the first input of ASSIGN_VARIABLE is no handle")
                self._initial[handles[operator.inputs[0]]] = store(graph.tensors[operator.inputs[1]])
            else:
                raise UnsupportedError(f"{operator.name} in the graph that initialises variables")


def _need(operator: OperatorDef, inputs: int, outputs: int) -> None:
    if len(operator.inputs) != inputs or len(operator.outputs) != outputs:
        raise ImportModelError(
            f"{operator.name} has {len(operator.inputs)} inputs and {len(operator.outputs)} outputs, "
            f"{inputs} and {outputs} are needed"
        )


def _name(operator: OperatorDef) -> str:
    """What variables are told apart by."""
    parts = (operator.options.get("container"), operator.options.get("shared_name"))
    return "/".join(p for p in parts if p) or "variable"

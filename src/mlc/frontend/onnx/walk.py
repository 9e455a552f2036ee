"""The walk over a model: every node becomes core operators, in one pass with an explicit stack.

Functions, branches and loops are expanded where they are called, by pushing a :class:`Frame`. Whatever is not supported
is noted and its results are marked unknown, so that one report names everything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.base import CustomOperator
from mlc.frontend.common.context import Context
from mlc.frontend.common.names import shortened
from mlc.frontend.common.problems import UNKNOWN, Problems, Unknown, located
from mlc.frontend.limits import Limits
from mlc.frontend.onnx import converters as _converters  # noqa: F401, fills the table
from mlc.frontend.onnx.attributes import AttributeReader, resolve_references
from mlc.frontend.onnx.control import CONTROL_FLOW, Control
from mlc.frontend.onnx.custom import CustomOperators
from mlc.frontend.onnx.external import ExternalData
from mlc.frontend.onnx.functions import FunctionTable
from mlc.frontend.onnx.order import Step, plan, subgraphs
from mlc.frontend.onnx.registry import CONVERTERS, Converter, OnnxNode
from mlc.frontend.onnx.schema import Schema, find_schema, first_version
from mlc.frontend.onnx.scope import Frame, Known, Scope
from mlc.frontend.onnx.tensors import decode_sparse, decode_tensor
from mlc.frontend.onnx.validate import normal_domain, opset_of, read_opsets
from mlc.ir.graph import Builder, Value

# Loops inside of each other that are tried as recurrences; each takes a few frames of Python's stack.
_MOST_ATTEMPTS = 16


class ModelWalk:
    """The state of one import.

    Args:
        model: structurally checked.
        opsets: versions of operator sets by domain.
        external: reader of data beside the model.
        limits: budgets.
        operators: of the user's own.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        opsets: dict[str, int],
        external: ExternalData,
        limits: Limits,
        operators: Sequence[CustomOperator] = (),
    ) -> None:
        self.model = model
        self.opsets = opsets
        self.external = external
        self.limits = limits
        self.functions = FunctionTable(model, limits)
        self.custom = CustomOperators(operators)
        self.builder = Builder(model.graph.name or "main")
        self.ctx = Context(self.builder, limits)
        self.attributes = AttributeReader(external, limits, self.ctx.note_stored)
        self.problems = Problems()
        self._stack: list[Frame] = []
        self._walked = 0
        self._attempts = 0  # those that are being made, one inside of the other
        self._plans: dict[tuple[int, tuple[str, ...]], tuple[Any, list[Step]]] = {}
        self._stores: dict[int, dict[str, Known]] = {}
        self._named: set[Value] = set()  # values that carry their final name

    def run(self, inputs: Mapping[str, Known]) -> Scope:
        """Walk the main graph.

        Args:
            inputs: what the names of its inputs stand for.
        Returns:
            the names of the main graph.
        Raises:
            ImportModelError: the model contradicts itself or is beyond a limit.
        """
        scope = Scope(values=dict(inputs))
        self._named.update(v for v in inputs.values() if isinstance(v, Value))
        graph = self.model.graph
        self._push_graph(graph, Frame(iter(()), scope, self.opsets))
        # the tensors' own names are kept free for them: what converters make on the way is named around them
        for name in {name for node in graph.node for name in node.output if name}:
            self.builder.unique(name)
        with np.errstate(all="ignore"):
            while self._stack:
                self._advance(self._stack[-1])
        return scope

    def note_missing_operators(self) -> None:
        """Note the operators that nothing here can import, whatever the shapes: for when the inputs' are not known.

        Branches are left out, since a condition may turn out to be known.
        """
        stack = [Frame(iter(self._plan(self.model.graph)), Scope(), self.opsets)]
        seen: set[int] = set()
        while stack:
            frame = stack[-1]
            step = next(frame.steps, None)
            if step is None:
                stack.pop()
                continue
            prefix = shortened(f"{frame.name_of(step)}/")
            node, opsets = step.node, frame.opsets
            own = self.functions.find(node)
            if own is not None and id(own) not in seen:
                seen.add(id(own))
                inner = read_opsets(own.opset_import, "the function") or opsets
                stack.append(Frame(iter(self._plan(own)), Scope(), inner, prefix))
            elif own is None:
                try:
                    self._find(node, {a.name: a for a in node.attribute}, opsets)
                except UnsupportedError as error:
                    self.problems.add(error, frame.name_of(step), _label(node, opsets))
                except ImportModelError:
                    pass  # the walk itself says where, as soon as there are shapes
                if node.op_type != "If":
                    stack += [Frame(iter(self._plan(g)), Scope(), opsets, prefix) for g in subgraphs(node)]

    def _advance(self, frame: Frame) -> None:
        step = next(frame.steps, None)
        if step is not None:
            self._guard(frame, step, lambda: self._step(frame, step))
            return
        self._stack.pop()
        if frame.finish is not None and frame.caller is not None:
            self._guard(*frame.caller, frame.finish)

    # -- what control flow uses as well (:class:`mlc.frontend.onnx.control.Walk`)

    def bind(self, frame: Frame, name: str, value: Known) -> None:
        if not name:
            return
        frame.scope.values[name] = value
        if isinstance(value, Value) and value not in self._named:
            if frame.prefix:
                value.name = self.builder.unique(shortened(frame.prefix + name))
            else:
                value.name = name
                self._named.add(value)

    def enter_graph(
        self,
        frame: Frame,
        step: Step,
        graph: onnx.GraphProto,
        label: str,
        given: Sequence[Known],
        finish: Callable[[list[Known]], None],
    ) -> None:
        if len(graph.input) != len(given):
            raise ImportModelError(f"subgraph {label!r} has {len(graph.input)} inputs, {len(given)} expected")
        scope = Scope(frame.scope, {v.name: value for v, value in zip(graph.input, given, strict=True)})
        inner = Frame(
            iter(()),
            scope,
            frame.opsets,
            prefix=shortened(f"{frame.name_of(step)}/{label}/"),
            source=frame.source,
            given=frame.given,
            caller=(frame, step),
            finish=lambda: finish([scope[v.name] for v in graph.output]),
            depth=frame.depth + 1,
        )
        self._push_graph(graph, inner)

    def attempt(
        self, frame: Frame, step: Step, graph: onnx.GraphProto, label: str, given: Sequence[Known]
    ) -> list[Known] | None:
        if self._attempts == _MOST_ATTEMPTS:
            return None
        found: list[list[Known]] = []
        depth, problems = len(self._stack), self.problems
        self.problems, self._attempts = Problems(), self._attempts + 1
        try:
            self.enter_graph(frame, step, graph, label, given, found.append)
            while len(self._stack) > depth:
                self._advance(self._stack[-1])
            return found[0] if found and not self.problems else None
        except ImportModelError:
            return None
        finally:
            del self._stack[depth:]
            self.problems, self._attempts = problems, self._attempts - 1

    def later(self, frame: Frame, step: Step, action: Callable[[], None]) -> None:
        self._stack.append(Frame(iter(()), frame.scope, frame.opsets, caller=(frame, step), finish=action))

    def count(self) -> None:
        self._walked += 1
        self.limits.check("nodes", self._walked, "nodes so far, with functions and loops expanded")

    # -- bodies

    def _push(self, frame: Frame, body: onnx.GraphProto | onnx.FunctionProto, outputs: Sequence[str]) -> list[Step]:
        self.limits.check("depth", frame.depth, "nesting of subgraphs and calls")
        steps = self._plan(body, outputs)
        frame.steps = iter(steps)
        self._stack.append(frame)
        return steps

    def _plan(self, body: onnx.GraphProto | onnx.FunctionProto, outputs: Sequence[str] | None = None) -> list[Step]:
        """The steps that some outputs of a body need; all of them unless given."""
        if outputs is None:
            outputs = [v if isinstance(v, str) else v.name for v in body.output]
        key = (id(body), tuple(outputs))
        if key not in self._plans:
            # the message is kept beside its plan: as long as it lives, its identity is its own
            self._plans[key] = body, plan(body.node, outputs)
        return self._plans[key][1]

    def _push_graph(self, graph: onnx.GraphProto, frame: Frame) -> None:
        outputs = [v.name for v in graph.output]
        steps = self._push(frame, graph, outputs)
        if id(graph) not in self._stores:
            wanted = frozenset(outputs).union(*(s.reads for s in steps))
            self._stores[id(graph)] = self._store(graph, frame.prefix, wanted)
        frame.scope.values.update(self._stores[id(graph)])

    def _store(self, graph: onnx.GraphProto, prefix: str, wanted: Collection[str]) -> dict[str, Known]:
        """Constants that are stored in a graph, only those that are wanted."""
        values: dict[str, Known] = {}
        stored = [(t.name, t) for t in graph.initializer] + [(t.values.name, t) for t in graph.sparse_initializer]
        for name, proto in stored:
            if name not in wanted:
                continue
            full = shortened(prefix + name) if prefix else name
            try:
                decode = decode_tensor if isinstance(proto, onnx.TensorProto) else decode_sparse
                array = decode(proto, f"initializer {full!r}", self.external, self.limits)
            except UnsupportedError as error:
                self.problems.add(error, full, noun="initializer")
                values[name] = UNKNOWN
                continue
            value = self.builder.constant(array, full)
            self.ctx.note_stored(array)
            self._named.add(value)
            values[name] = value
        return values

    # -- nodes

    def _guard(self, frame: Frame, step: Step, action: Callable[[], None]) -> None:
        """Do something for a node: what is not supported is noted, other errors learn where they are."""
        try:
            with located("node", lambda: _place(frame, step), "attributes"):
                action()
        except UnsupportedError as error:
            self.problems.add(error, frame.name_of(step), _label(step.node, frame.opsets))
            self._give_up(frame, step)

    def _give_up(self, frame: Frame, step: Step) -> None:
        frame.scope.values.update(dict.fromkeys(filter(None, step.outputs), UNKNOWN))

    def _step(self, frame: Frame, step: Step) -> None:
        self.count()
        node = step.node
        attributes = resolve_references(node, frame.given)
        inputs = [frame.scope[n] if n else None for n in node.input]
        own = self.functions.find(node)
        if own is not None:
            self._call(frame, step, attributes, own, inputs, frame.source)
            return
        schema, control, converter = self._find(node, attributes, frame.opsets)
        opset = opset_of(node.domain, frame.opsets)
        if control is not None:
            control(self, frame, step, inputs, self.attributes.read(attributes))
        elif not _known(inputs):
            self._give_up(frame, step)
        elif converter is not None:
            self._convert(frame, step, attributes, opset, schema, converter, inputs)
        else:
            assert schema is not None
            self._expand(frame, step, attributes, opset, schema, inputs)

    def _find(
        self, node: onnx.NodeProto, attributes: Mapping[str, AttributeProto], opsets: Mapping[str, int]
    ) -> tuple[Schema | None, Control | None, Converter | None]:
        """What is known of an operator: without control flow or a converter it is defined by others.

        Raises:
            ImportModelError: the node breaks the operator's rules.
            UnsupportedError: nothing here can import it.
        """
        domain = normal_domain(node.domain)
        opset = opset_of(domain, opsets)
        schema = find_schema(domain, node.op_type, opset)
        if schema is not None:
            schema.check_node(node, attributes)
        control = CONTROL_FLOW.get(node.op_type) if not domain else None
        converter = self.custom.find(domain, node.op_type) or CONVERTERS.find(domain, node.op_type)
        usable = converter if converter is not None and converter.since <= opset else None
        if control is None and usable is None and not (schema is not None and schema.is_function):
            raise _missing(domain, node.op_type, opset, converter)
        return schema, control, usable

    def _convert(
        self,
        frame: Frame,
        step: Step,
        attributes: Mapping[str, AttributeProto],
        opset: int,
        schema: Schema | None,
        converter: Converter,
        inputs: Sequence[Known],
    ) -> None:
        values = [v for v in inputs if not isinstance(v, Unknown)]
        if schema is not None:
            schema.check_types(values)
            # a converter may look at any formal input: those left out at the end are there as None
            values += [None] * (len(schema.inputs) - len(values))
        attrs = self.attributes.read(attributes)
        node = step.node
        domain = normal_domain(node.domain)
        view = OnnxNode(frame.name_of(step), node.op_type, domain, opset, attrs, step.outputs)
        self.ctx.begin(view.name, frame.source)
        try:
            outputs = converter.convert(self.ctx, view, values)
        except AttributeError as error:
            # without a definition of the operator nobody has checked that its operands are all there
            if schema is None and None in values:
                raise ImportModelError("an input is missing") from error
            raise
        for k, wanted in enumerate(step.outputs):
            if wanted and (k >= len(outputs) or outputs[k] is None):
                formal = schema.outputs[min(k, len(schema.outputs) - 1)] if schema is not None else str(k)
                raise UnsupportedError(f"output {formal!r} is not supported")
        for wanted, value in zip(step.outputs, outputs, strict=False):
            self.bind(frame, wanted, value)

    def _expand(
        self,
        frame: Frame,
        step: Step,
        attributes: Mapping[str, AttributeProto],
        opset: int,
        schema: Schema,
        inputs: Sequence[Known],
    ) -> None:
        """Replace an operator by its definition in other operators."""
        values = [v for v in inputs if not isinstance(v, Unknown)]
        schema.check_types(values)
        function = schema.function(step.node, attributes, opset, [None if v is None else v.type for v in values])
        if function is None:
            raise UnsupportedError("there is no converter, and no definition in other operators for these operands")
        # definitions import the versions that they are written for; some leave out the standard operators
        function.opset_import.extend(
            onnx.helper.make_opsetid(d, v)
            for d, v in frame.opsets.items()
            if d not in {normal_domain(o.domain) for o in function.opset_import}
        )
        given = {**schema.defaults(), **attributes}
        self._call(frame, step, given, function, inputs, frame.source or frame.name_of(step))

    def _call(
        self,
        frame: Frame,
        step: Step,
        attributes: Mapping[str, AttributeProto],
        function: onnx.FunctionProto,
        inputs: Sequence[Known],
        source: str,
    ) -> None:
        """Walk the body of a function next."""
        if len(inputs) > len(function.input) or len(step.outputs) > len(function.output):
            raise ImportModelError(
                f"{len(inputs)} inputs and {len(step.outputs)} outputs, the function has "
                f"{len(function.input)} and {len(function.output)}"
            )
        given = {**{a.name: a for a in function.attribute_proto}, **attributes}
        padded = [*inputs, *[None] * (len(function.input) - len(inputs))]
        scope = Scope(values=dict(zip(function.input, padded, strict=True)))
        pairs = [(actual, formal) for actual, formal in zip(step.outputs, function.output, strict=False) if actual]

        def finish() -> None:
            for actual, formal in pairs:
                self.bind(frame, actual, scope[formal])

        inner = Frame(
            iter(()),
            scope,
            read_opsets(function.opset_import, "the function") or frame.opsets,
            prefix=shortened(f"{frame.name_of(step)}/"),
            source=source,
            given=given,
            caller=(frame, step),
            finish=finish,
            depth=frame.depth + 1,
        )
        self._push(inner, function, [formal for _, formal in pairs])


def _known(inputs: Iterable[Known]) -> bool:
    return not any(isinstance(v, Unknown) for v in inputs)


def _place(frame: Frame, step: Step) -> str:
    return f"node {frame.name_of(step)!r} ({step.node.op_type})"


def _label(node: onnx.NodeProto, opsets: Mapping[str, int]) -> str:
    """``Resize (ai.onnx 13)``: an operator as the report names it."""
    domain = normal_domain(node.domain)
    version = opsets.get(domain)
    return f"{node.op_type} ({domain or 'ai.onnx'}{'' if version is None else f' {version}'})"


def _missing(domain: str, op_type: str, opset: int, converter: Converter | None) -> UnsupportedError:
    first = first_version(domain, op_type)
    if first is not None and first > opset:
        return UnsupportedError(f"exists since operator set {first} only")
    if converter is not None:
        return UnsupportedError(
            f"defined before operator set {converter.since}, the oldest understood",
            hint=f"export the model for operator set {converter.since} or newer",
        )
    if first is None and not domain:
        return UnsupportedError("ONNX has no operator of this name")
    hint = "`mlc ops` lists what is supported, with limits"
    if first is None:
        hint = "an operator of your own is defined in a file: --operators FILE.py"
    return UnsupportedError("there is no converter for it", hint=hint)

"""``import_tflite``: from a file or bytes to a graph."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.base import FixedInput, ImportedModel, ModelSource
from mlc.frontend.common.context import Context
from mlc.frontend.common.importing import check_constant_names, finish, fixed_input, naming, tensor_info
from mlc.frontend.common.names import shortened
from mlc.frontend.common.problems import UNKNOWN, Problems, Unknown, located
from mlc.frontend.common.shapes import Declared, check_constant_input, resolve_shapes
from mlc.frontend.limits import DEFAULT_LIMITS, Limits
from mlc.frontend.tflite import converters as _converters  # noqa: F401, fills the table
from mlc.frontend.tflite.model import ModelDef, OperatorDef, SubgraphDef, TensorDef, read_model
from mlc.frontend.tflite.registry import CONVERTERS, Converter, Operator
from mlc.frontend.tflite.sparse import densified
from mlc.frontend.tflite.types import decode, element_type
from mlc.frontend.tflite.variables import OPERATORS as OF_VARIABLES
from mlc.frontend.tflite.variables import Variables
from mlc.ir.graph import Builder, Value
from mlc.ir.types import i8

Known = Value | Unknown

# What runs other graphs of the file, and what to do about it.
_CONTROL = ("WHILE", "IF", "CALL", "STABLEHLO_WHILE", "STABLEHLO_COMPOSITE", "STABLEHLO_REDUCE")
_WITHOUT_CONTROL = (
    "convert without control flow (recurrent layers of Keras with unroll=True), or import the model's Keras or ONNX"
    " file, whose recurrences, loops and branches are followed"
)
_OF_BUILTINS = "convert with supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS], or import the model's Keras or ONNX file"


def import_tflite(
    source: str | os.PathLike[str] | bytes,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    constants: Mapping[str, npt.ArrayLike] | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> ImportedModel:
    """Import a TFLite model: its first graph.

    Tensors keep the file's names, made unique by a number where they repeat. Dimensions that may vary take the extents
    the file was made with (mostly 1), unless ``shapes`` gives others. Variables that are read before they are assigned
    are inputs, and what they hold afterwards outputs; tensors in which layers keep state begin at zero in every run.

    Args:
        source: path of the model, or its bytes.
        shapes: shapes of inputs by name, where they may vary.
        dims: none: the format has no symbolic dimensions.
        constants: values of inputs by name; such an input becomes a constant and is no longer an input of the graph.
        limits: budgets.
    Raises:
        ImportModelError: the file is no TFLite model, is damaged, contradicts itself, or is beyond a limit.
        UnsupportedModelError: it uses what is not supported; lists everything.
        UsageError: an unknown name or a contradiction in the arguments.
    """
    label = "" if isinstance(source, bytes) else os.fspath(source)
    with naming(label):
        model = read_model(source, limits)
        walk = _Walk(model, limits)
        walk.open_inputs(shapes or {}, dims or {}, constants or {})
        walk.run()
        walk.problems.check()
        names, outputs = walk.outputs()
        states = walk.states()
        graph = finish(walk.builder, outputs, names)
    info = ModelSource(
        format="tflite",
        path=label,
        name=walk.builder.name,
        producer=model.description,
        sha256=model.sha256,
        inputs=tuple(tensor_info(v.name, v) for v in graph.inputs),
        outputs=tuple(tensor_info(n, v) for n, v in zip(graph.output_names, graph.outputs, strict=True)),
        opsets={"tflite": model.version},
        constants=tuple(fixed_input(name, walk.fixed[name]) for name in constants or ()),
        states=states,
    )
    return ImportedModel(graph, info)


class _Walk:
    """The state of one import: every operator becomes core operators, in the order of the file."""

    def __init__(self, model: ModelDef, limits: Limits) -> None:
        self.limits = limits
        self.subgraph: SubgraphDef = model.subgraphs[0]
        self.builder = Builder(shortened(self.subgraph.name or "main"))
        self.ctx = Context(self.builder, limits)
        self.problems = Problems()
        self.fixed: dict[str, np.ndarray] = {}
        self.variables = Variables(model.subgraphs, self.builder, limits)
        self._values: dict[int, Known] = {}
        self._names = self._unique_names()

    def _unique_names(self) -> list[str]:
        """The tensors' names, those of inputs and outputs first to be as the file has them."""
        tensors, chosen = self.subgraph.tensors, Builder()
        order = dict.fromkeys([*self.subgraph.inputs, *self.subgraph.outputs, *range(len(tensors))])
        names = {k: chosen.unique(tensors[k].name) for k in order}
        return [names[k] for k in range(len(tensors))]

    def open_inputs(
        self, shapes: Mapping[str, Sequence[int]], dims: Mapping[str, int], constants: Mapping[str, npt.ArrayLike]
    ) -> None:
        """Inputs of the graph, and those that are fixed as constants."""
        tensors = [self.subgraph.tensors[k] for k in dict.fromkeys(self.subgraph.inputs)]
        names = [self._names[t.index] for t in tensors]
        check_constant_names(names, shapes, constants)
        declared = []
        for tensor, name in zip(tensors, names, strict=True):
            try:
                dtype = element_type(tensor.type, f"input {name!r}")
            except UnsupportedError as error:
                self.problems.add(error, name, noun="input")
                self._values[tensor.index] = UNKNOWN
                continue
            signature = tensor.signature or tensor.shape
            # what may vary is what the file was made with, unless something else is given
            may_vary = name in shapes or name in constants
            extents = (None if n < 0 and may_vary else m for n, m in zip(signature, tensor.shape, strict=True))
            declared.append((tensor, Declared(name, dtype, tuple(extents))))
        for _, d in declared:
            if d.name in constants:
                self.fixed[d.name] = check_constant_input(d, constants[d.name])
        given = {**shapes, **{name: array.shape for name, array in self.fixed.items()}}
        types = resolve_shapes([d for _, d in declared], given, dims, self.limits)
        for tensor, d in declared:
            if d.name in self.fixed:
                self._values[tensor.index] = self.builder.constant(self.fixed[d.name], d.name)
            else:
                self._values[tensor.index] = self.builder.input(d.name, types[d.name])

    def run(self) -> None:
        """Convert every operator.

        Raises:
            ImportModelError: the model contradicts itself or is beyond a limit.
        """
        # the tensors' own names are kept free for them: what converters make on the way is named around them
        for name in self._names:
            self.builder.unique(name)
        with np.errstate(all="ignore"):
            for operator in self.subgraph.operators:
                place = f"operator {operator.position} ({operator.name})"
                try:
                    with located("operator", place.__str__, "options"):
                        self._convert(operator)
                except UnsupportedError as error:
                    self.problems.add(error, self._label(operator), operator.name, noun="operator")
                    self._values.update(dict.fromkeys(operator.outputs, UNKNOWN))

    def outputs(self) -> tuple[list[str], list[Value]]:
        """Names and values of the graph's outputs.

        Raises:
            ImportModelError: nothing makes one.
        """
        names: list[str] = []
        values: list[Value] = []
        for index in self.subgraph.outputs:
            value = self._value(index)
            assert isinstance(value, Value)  # otherwise there is a problem to report
            name = self._names[index]
            names.append(name if name not in names else self.builder.unique(name))
            values.append(value)
        for name, value in self.variables.states():
            names.append(name if name not in names else self.builder.unique(name))
            values.append(value)
        return names, values

    def states(self) -> tuple[FixedInput, ...]:
        """The variables that are inputs, with what they hold before the first run.

        Raises:
            ImportModelError: the initialisation assigns something of another type.
        """
        found = []
        for variable, value in self.variables.initial():
            type = variable.type
            if value is not None and value.type != type:
                raise ImportModelError(f"variable {variable.name!r} is {type}, and is initialised with {value.type}")
            array = None if value is None else self.ctx.const(value)
            data = b"" if array is None or not array.any() else array.tobytes()
            found.append(FixedInput(variable.name, type.shape, type.dtype.name, data))
        return tuple(found)

    def _label(self, operator: OperatorDef) -> str:
        return self._names[operator.outputs[0]] if operator.outputs else str(operator.position)

    def _convert(self, operator: OperatorDef) -> None:
        if operator.name in OF_VARIABLES and not operator.custom:
            self._convert_variable(operator)
            return
        converter = self._find(operator)
        inputs = [None if k < 0 else self._value(k) for k in operator.inputs]
        if any(isinstance(v, Unknown) for v in inputs):
            self._values.update(dict.fromkeys(operator.outputs, UNKNOWN))
            return
        tensors = self.subgraph.tensors
        view = Operator(
            operator.name,
            operator.options,
            tuple(v for v in inputs if not isinstance(v, Unknown)),
            tuple(None if k < 0 else tensors[k] for k in operator.inputs),
            tuple(tensors[k] for k in operator.outputs),
            tuple(tensors[k] for k in operator.intermediates),
        )
        self.ctx.begin(shortened(self._label(operator)))
        outputs = converter.convert(self.ctx, view)
        if len(outputs) < len(operator.outputs):
            raise ImportModelError(f"{len(operator.outputs)} outputs, the operator has {len(outputs)}")
        for index, value in zip(operator.outputs, outputs, strict=False):
            self._bind(index, value)

    def _convert_variable(self, operator: OperatorDef) -> None:
        self.ctx.begin(shortened(self._label(operator)))
        assigned = self._value(operator.inputs[1]) if len(operator.inputs) == 2 and operator.inputs[1] >= 0 else None
        if isinstance(assigned, Unknown):
            return
        found = self.variables.convert(operator, assigned, self._initial)
        for index, value in zip(operator.outputs, found, strict=False):
            self._bind(index, value)

    def _initial(self, tensor: TensorDef) -> Value:
        """A tensor of the graph that initialises variables."""
        value = self._stored(tensor, self.builder.unique(tensor.name))
        if isinstance(value, Unknown):
            raise UnsupportedError(f"{tensor.where} of the graph that initialises variables")
        return value

    def _find(self, operator: OperatorDef) -> Converter:
        found = CONVERTERS.find(operator.name, operator.custom)
        if found is not None:
            return found
        hint = "`mlc ops --frontend tflite` lists what is supported, with limits"
        if operator.custom:
            flex = operator.name.startswith("Flex")
            kind = "an operator of TensorFlow itself" if flex else "a custom operator"
            raise UnsupportedError(f"is {kind}, whose code is not in the file", hint=_OF_BUILTINS if flex else hint)
        hlo = operator.name.startswith("STABLEHLO_")  # which converters write if asked to
        if operator.name in _CONTROL:
            raise UnsupportedError("is control flow, which is not followed", hint=_WITHOUT_CONTROL)
        raise UnsupportedError("there is no converter for it", hint=_OF_BUILTINS if hlo else hint)

    def _bind(self, index: int, value: Value) -> None:
        tensor = self.subgraph.tensors[index]
        declared = element_type(tensor.type, tensor.where)
        if declared is not value.type.dtype:
            raise ImportModelError(f"{tensor.where} is declared {declared}, the operator makes {value.type.dtype}")
        if index in self._values:
            raise ImportModelError(f"{tensor.where} is made twice")
        self._values[index] = value
        if value in self.builder.constants or value in self.builder.inputs:
            return
        if not any(value is v for k, v in self._values.items() if k != index):
            self.ctx.call(value, self._names[index])

    def _value(self, index: int) -> Known:
        """What a tensor holds: what an operator made, or what is stored.

        Raises:
            ImportModelError: nothing makes it, or what is stored does not fit its type.
        """
        if index not in self._values:
            self._values[index] = self._stored(self.subgraph.tensors[index], self._names[index])
        return self._values[index]

    def _stored(self, tensor: TensorDef, name: str) -> Known:
        try:
            dtype = element_type(tensor.type, tensor.where)
        except UnsupportedError as error:
            self.problems.add(error, tensor.name, noun="tensor")
            return UNKNOWN
        if tensor.variable:
            self.ctx.check_constant(tensor.shape, dtype.itemsize)
            # the number 0, as runtimes clear what keeps its value
            zero = tensor.quantization.zero[0] if tensor.quantization is not None and dtype is i8 else 0
            array = np.full(tensor.shape, zero, dtype.numpy)
        elif tensor.sparsity is not None:
            self.ctx.check_constant(tensor.shape, dtype.itemsize)
            array = densified(tensor.type, tensor.shape, tensor.data, tensor.sparsity, tensor.where)
        elif tensor.stored or 0 in tensor.shape:
            array = decode(tensor.type, tensor.shape, tensor.data, tensor.where)
        else:
            raise ImportModelError(f"{tensor.where} is used, but nothing makes it")
        self.ctx.note_stored(array)
        value = self.builder.constant(array)
        value.name = name
        return value

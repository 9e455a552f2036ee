"""What ONNX itself says about an operator: arity, attributes, element types, and its definition in other operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, defs, helper

from mlc.errors import ImportModelError
from mlc.frontend.onnx.attributes import attribute_type
from mlc.frontend.onnx.tensors import ELEMENT_TYPES, element_type_name
from mlc.ir.graph import Value
from mlc.ir.types import DType, TensorType

NEWEST_OPSET = defs.onnx_opset_version()
STANDARD_DOMAINS = {"", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training"}


def type_string(dtype: DType) -> str:
    """``tensor(float)`` for f32: how the operator definitions spell types."""
    number, _ = ELEMENT_TYPES[dtype.name]
    return f"tensor({element_type_name(number)})"


@dataclass(frozen=True)
class Formal:
    """A formal input of an operator.

    Args:
        name: as in the definition.
        optional: may be left out.
        variadic: stands for this and all further inputs.
        homogeneous: whether all inputs that a variadic one stands for have one type.
        types: allowed types, as :func:`type_string` spells them.
        variable: name of the type variable; inputs that share it have one type.
    """

    name: str
    optional: bool
    variadic: bool
    homogeneous: bool
    types: frozenset[str]
    variable: str


@dataclass(frozen=True)
class Schema:
    """The definition of one version of an operator; see :func:`find_schema`."""

    raw: Any
    inputs: tuple[Formal, ...]
    outputs: tuple[str, ...]

    @property
    def since(self) -> int:
        """First opset with this definition."""
        return int(self.raw.since_version)

    @property
    def deprecated(self) -> bool:
        return bool(self.raw.deprecated)

    @property
    def is_function(self) -> bool:
        """Whether ONNX defines the operator by others."""
        return bool(self.raw.has_function or self.raw.has_context_dependent_function)

    def formal(self, k: int) -> Formal | None:
        """The formal input for operand ``k``."""
        if k < len(self.inputs):
            return self.inputs[k]
        return self.inputs[-1] if self.inputs and self.inputs[-1].variadic else None

    def check_node(self, node: onnx.NodeProto, attributes: Mapping[str, AttributeProto]) -> None:
        """Check arity and attributes.

        Args:
            node: the call.
            attributes: of the call by name, references resolved.
        Raises:
            ImportModelError: the first fault.
        """
        count = len(node.input)
        if count > self.raw.max_input or count < self.raw.min_input:
            raise ImportModelError(f"{count} inputs, {_range(self.raw.min_input, self.raw.max_input)} expected")
        if len(node.output) > self.raw.max_output or len(node.output) < self.raw.min_output:
            raise ImportModelError(
                f"{len(node.output)} outputs, {_range(self.raw.min_output, self.raw.max_output)} expected"
            )
        for k, name in enumerate(node.input):
            formal = self.formal(k)
            if not name and formal is not None and not formal.optional and not formal.variadic:
                raise ImportModelError(f"input {formal.name!r} is missing")
        for name, attr in attributes.items():
            known = self.raw.attributes.get(name)
            if known is None:
                raise ImportModelError(
                    f"has no attribute {name!r} in opset version {self.since}",
                    hint=f"known: {', '.join(sorted(self.raw.attributes)) or 'none'}",
                )
            if attribute_type(attr) != known.type.value:
                got, want = AttributeProto.AttributeType.Name(attribute_type(attr)), known.type.name
                raise ImportModelError(f"attribute {name!r} is of type {got}, not {want}")
        missing = [a for a, spec in self.raw.attributes.items() if spec.required and a not in attributes]
        if missing:
            raise ImportModelError(f"attribute {missing[0]!r} is missing")

    def check_types(self, values: Sequence[Value | None]) -> None:
        """Check the element types of the operands.

        Raises:
            ImportModelError: a type that the operator does not take, or two where it needs one.
        """
        bound: dict[str, tuple[DType, str]] = {}
        for k, value in enumerate(values):
            formal = self.formal(k)
            if formal is None:
                continue
            if value is None:
                # left out by the call of a function around this node
                if not formal.optional and not formal.variadic:
                    raise ImportModelError(f"input {formal.name!r} is missing")
                continue
            dtype = value.type.dtype
            if type_string(dtype) not in formal.types:
                raise ImportModelError(f"input {formal.name!r} cannot be {dtype} in opset version {self.since}")
            if formal.variadic and not formal.homogeneous:
                continue
            other, name = bound.setdefault(formal.variable, (dtype, formal.name))
            if other is not dtype:
                raise ImportModelError(f"inputs {name!r} and {formal.name!r} are {other} and {dtype}")

    def function(
        self,
        node: onnx.NodeProto,
        attributes: Mapping[str, AttributeProto],
        opset: int,
        types: Sequence[TensorType | None],
    ) -> onnx.FunctionProto | None:
        """The definition in other operators, ``None`` when there is none for these operands.

        Args:
            node: the call.
            attributes: of the call by name, references resolved; some definitions depend on them.
            opset: version that the model imports.
            types: of its operands, ``None`` where one is left out.
        """
        if self.raw.has_function:
            version = _pick(self.raw.function_opset_versions, opset)
            return _parse(self.raw.get_function_with_opset_version(version))
        if self.raw.has_context_dependent_function:
            version = _pick(self.raw.context_dependent_function_opset_versions, opset)
            protos = [_type_proto(t) for t in types]
            call = onnx.NodeProto(
                op_type=node.op_type, domain=node.domain, name=node.name, input=node.input, output=node.output
            )
            for name, attr in attributes.items():
                call.attribute.add().CopyFrom(attr)
                call.attribute[-1].name = name
            data = self.raw.get_context_dependent_function_with_opset_version(
                version, call.SerializeToString(), [p.SerializeToString() for p in protos]
            )
            return _parse(data)
        return None

    def defaults(self) -> dict[str, AttributeProto]:
        """Attributes with a default value, by name."""
        return {name: spec.default_value for name, spec in self.raw.attributes.items() if spec.default_value.type}


@lru_cache(maxsize=4096)
def find_schema(domain: str, op_type: str, opset: int) -> Schema | None:
    """The definition of an operator in a version of its domain, if it is one of ONNX's own."""
    if domain not in STANDARD_DOMAINS:
        return None
    try:
        raw = defs.get_schema(op_type, opset, domain)
    except defs.SchemaError:
        return None
    option = defs.OpSchema.FormalParameterOption
    inputs = tuple(
        Formal(
            f.name,
            f.option == option.Optional,
            f.option == option.Variadic,
            f.is_homogeneous,
            frozenset(f.types),
            f.type_str,
        )
        for f in raw.inputs
    )
    return Schema(raw, inputs, tuple(f.name for f in raw.outputs))


def first_version(domain: str, op_type: str) -> int | None:
    """The first opset of its domain that has an operator of this name; ``None`` for an unknown one."""
    return _first_versions().get((domain, op_type))


@lru_cache(maxsize=1)
def _first_versions() -> Mapping[tuple[str, str], int]:
    first: dict[tuple[str, str], int] = {}
    for s in defs.get_all_schemas_with_history():
        key = (s.domain, s.name)
        first[key] = min(first.get(key, s.since_version), s.since_version)
    return first


def _pick(versions: Sequence[int], opset: int) -> int:
    """The newest definition not newer than the model; else the oldest, which is read under its own opset."""
    older = [v for v in versions if v <= opset]
    return max(older) if older else min(versions)


def _parse(data: bytes) -> onnx.FunctionProto | None:
    function = onnx.FunctionProto()
    try:
        function.ParseFromString(data)
    except DecodeError:
        return None
    return function if function.node else None


def _type_proto(type: TensorType | None) -> onnx.TypeProto:
    if type is None:
        return onnx.TypeProto()
    return helper.make_tensor_type_proto(ELEMENT_TYPES[type.dtype.name][0], type.shape)


def _range(low: int, high: int) -> str:
    if low == high:
        return str(low)
    return f"{low} or more" if high >= 1 << 30 else f"{low} to {high}"

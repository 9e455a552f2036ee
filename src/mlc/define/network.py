"""Networks written in Python: tensors that operators of the table and of the user's own are applied to.

>>> import numpy as np
>>> net = Network("tiny")
>>> x = net.input("x", (4, 8))
>>> w = net.parameter("w", np.ones((8, 3), np.float32))
>>> net.output("y", (x @ w).apply("relu"))
>>> print(net.graph())
@graph tiny(%x: f32[4,8]) -> (f32[4,3]):
  %w: const f32[8,3]
  %matmul: f32[4,3] = matmul(%x, %w)
  %y: f32[4,3] = relu(%matmul)
  return %y
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mlc.define.operator import OwnOperator
from mlc.errors import UsageError, VerifyError
from mlc.ir.graph import Attrs, Builder, Graph, Operator, Value
from mlc.ir.types import DType, TensorType, dtype_of, f32
from mlc.ops import get

Number = float | int


class Tensor:
    """A value of a network, with the arithmetic of numpy (broadcasting included) appended as it is written.

    Args:
        network: that it belongs to.
        value: in its graph.
    """

    __array_ufunc__ = None  # numpy leaves arithmetic with arrays to us

    def __init__(self, network: Network, value: Value) -> None:
        self.network = network
        self.value = value

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.type.shape

    @property
    def dtype(self) -> DType:
        return self.value.type.dtype

    def __repr__(self) -> str:
        return f"<tensor {self.value.name}: {self.value.type}>"

    def apply(self, name: str, *others: Tensor | Number, **attrs: Any) -> Tensor:
        """An operator of the table (``mlc ops --core``) with one result, on this tensor and others."""
        network = _innermost([self, *(t for t in others if isinstance(t, Tensor))])
        (result,) = network.apply(name, self, *others, **attrs)
        return result

    def take(self, op: OwnOperator, operands: Sequence[Any], attrs: Mapping[str, Any]) -> Tensor | tuple[Tensor, ...]:
        """An operator of the user's own on tensors of a network; of the innermost one, where some are around it.

        Raises:
            UsageError: an operand is no tensor, or the operator does not take them.
        """
        tensors = [t for t in operands if isinstance(t, Tensor)]
        if len(tensors) != len(operands):
            other = next(t for t in operands if not isinstance(t, Tensor))
            raise UsageError(f"{op.where}: is given {other!r} among tensors", hint="attributes are given by name")
        network = _innermost(tensors)
        found = op.add(network.builder, [network.own(t) for t in tensors], attrs)
        results = tuple(Tensor(network, v) for v in found)
        return results if len(results) > 1 else results[0]

    def __add__(self, other: Tensor | Number) -> Tensor:
        return self.apply("add", other)

    def __sub__(self, other: Tensor | Number) -> Tensor:
        return self.apply("sub", other)

    def __mul__(self, other: Tensor | Number) -> Tensor:
        return self.apply("mul", other)

    def __truediv__(self, other: Tensor | Number) -> Tensor:
        return self.apply("div", other)

    def __matmul__(self, other: Tensor) -> Tensor:
        return self.apply("matmul", other)

    def __neg__(self) -> Tensor:
        return self.apply("neg")

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: Number) -> Tensor:
        return self.network.number(other, self.dtype).apply("sub", self)

    def __rtruediv__(self, other: Number) -> Tensor:
        return self.network.number(other, self.dtype).apply("div", self)

    def __getitem__(self, index: Any) -> Tensor:
        """Integers and slices, an axis each; axes that are left out stay whole."""
        parts = index if isinstance(index, tuple) else (index,)
        if len(parts) > len(self.shape):
            raise UsageError(f"{self!r} has {len(self.shape)} axes, indexed with {len(parts)}")
        whole = [*parts, *[slice(None)] * (len(self.shape) - len(parts))]
        begin, end, step, shape = [], [], [], []
        for n, part in zip(self.shape, whole, strict=True):
            if isinstance(part, slice):
                first, last, stride = part.indices(n)
                shape.append(len(range(first, last, stride)))
            else:
                first, stride = int(part) % n, 1
                last = first + 1
            begin.append(first)
            end.append(last)
            step.append(stride)
        taken = self.apply("slice", begin=tuple(begin), end=tuple(end), step=tuple(step))
        return taken if len(shape) == len(taken.shape) else taken.reshape(*shape)

    def reshape(self, *shape: int) -> Tensor:
        """The same elements in another shape; one extent may be -1."""
        known = int(np.prod([n for n in shape if n >= 0], dtype=np.int64))
        return self.apply("reshape", shape=tuple(self.value.type.size // known if n < 0 else n for n in shape))

    def transpose(self, *perm: int) -> Tensor:
        """Axes in another order."""
        return self.apply("transpose", perm=perm)

    def sum(self, *axes: int, keepdims: bool = False) -> Tensor:
        """The sum over some axes."""
        return self._reduced("reduce_sum", axes, keepdims)

    def mean(self, *axes: int, keepdims: bool = False) -> Tensor:
        """The mean over some axes."""
        return self._reduced("reduce_mean", axes, keepdims)

    def max(self, *axes: int, keepdims: bool = False) -> Tensor:
        """The greatest element along some axes."""
        return self._reduced("reduce_max", axes, keepdims)

    def _reduced(self, name: str, axes: tuple[int, ...], keepdims: bool) -> Tensor:
        rank = len(self.shape)
        return self.apply(name, axes=tuple(a % rank for a in axes) or tuple(range(rank)), keepdims=keepdims)


class Network:
    """A graph that grows as its tensors are computed with.

    Args:
        name: for printing, and of the package.
        seed: of what parameters begin as, where helpers draw them.
    """

    def __init__(self, name: str = "main", seed: int = 0) -> None:
        self.builder = Builder(name)
        self.random = np.random.default_rng(seed)
        self.parameters: list[str] = []
        self._outputs: dict[str, Value] = {}
        self._numbers: dict[tuple[float, DType], Tensor] = {}

    def input(self, name: str, shape: Sequence[int], dtype: DType | str = f32) -> Tensor:
        """What the caller gives."""
        return Tensor(self, self.builder.input(name, TensorType(tuple(shape), dtype_of(dtype))))

    def parameter(self, name: str, array: npt.ArrayLike) -> Tensor:
        """What is learned, with what it begins as; in float32."""
        found = self._stored(name, np.asarray(array, np.float32))
        self.parameters.append(found.value.name)
        return found

    def constant(self, name: str, array: npt.ArrayLike) -> Tensor:
        """What stays as it is; float64 becomes float32."""
        given = np.asarray(array)
        return self._stored(name, given.astype(np.float32) if given.dtype == np.float64 else given)

    def number(self, value: Number, dtype: DType = f32) -> Tensor:
        """A number, as a tensor without axes."""
        key = float(value), dtype
        if key not in self._numbers:
            self._numbers[key] = self._stored("number", np.array(value, dtype.numpy))
        return self._numbers[key]

    def _stored(self, name: str, array: np.ndarray) -> Tensor:
        return Tensor(self, self.builder.constant(np.ascontiguousarray(array), name))

    def output(self, name: str, tensor: Tensor) -> None:
        """Declares a result; what computes it is named so.

        Raises:
            UsageError: another result has the name.
        """
        if name in self._outputs:
            raise UsageError(f"two outputs of {self.builder.name} are called {name!r}")
        value = self.own(tensor)
        made = any(value in node.outputs for node in self.builder.nodes)
        if made and value not in self._outputs.values() and value.name != name:
            value.name = self.builder.unique(name)
        self._outputs[name] = value

    def own(self, tensor: Tensor) -> Value:
        """The value of a tensor in this network.

        Raises:
            UsageError: it belongs to another one.
        """
        if tensor.network is not self:
            raise UsageError(f"{tensor!r} belongs to the network {tensor.network.builder.name}, not to this one")
        return tensor.value

    def apply(self, name: str | Operator, *operands: Tensor | Number, **attrs: Any) -> tuple[Tensor, ...]:
        """An operator of the table, by its name, on tensors; numbers take the element type of the first tensor.

        Raises:
            UnsupportedError: there is no such operator.
            UsageError: it takes other operands or attributes.
        """
        op = get(name) if isinstance(name, str) else name
        dtype = next((t.dtype for t in operands if isinstance(t, Tensor)), f32)
        tensors = [t if isinstance(t, Tensor) else self.number(t, dtype) for t in operands]
        return self._added(op, [self.own(t) for t in tensors], attrs)

    def _added(self, op: Operator, values: Sequence[Value], attrs: Attrs) -> tuple[Tensor, ...]:
        try:
            found = self.builder.add(op, values, attrs)
        except VerifyError as error:
            types = ", ".join(str(v.type) for v in values)
            raise UsageError(f"{op.name}({types}): {error.message}") from error
        return tuple(Tensor(self, v) for v in found)

    def scan(
        self,
        step: Callable[..., tuple[Sequence[Tensor], Sequence[Tensor]]],
        carried: Sequence[Tensor],
        scanned: Sequence[Tensor] = (),
        *,
        rounds: int = 0,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """A recurrence: ``step`` round after round.

        Args:
            step: takes what is carried and a row of each scanned tensor, gives what is carried on and the rows of this
                round. It is called once; tensors of this network that it reads are the same in every round.
            carried: what the first round is given.
            scanned: tensors whose first axis counts the rounds.
            rounds: how many, where nothing is scanned.
        Returns:
            what the last round carries, and the rows of all rounds, stacked.
        """
        body = _Body(self)
        inside = [Tensor(body, body.builder.input(f"carried{k}", t.value.type)) for k, t in enumerate(carried)]
        rows = [
            Tensor(body, body.builder.input(f"row{k}", TensorType(t.shape[1:], t.dtype))) for k, t in enumerate(scanned)
        ]
        states, given = step(*inside, *rows)
        results = [body.result(t) for t in (*states, *given)]
        attrs = {
            "body": body.builder.finish(results),
            "rounds": scanned[0].shape[0] if scanned else rounds,
            "carried": len(carried),
            "scanned": len(scanned),
            "backwards": (False,) * (len(scanned) + len(given)),
        }
        operands = [*(self.own(t) for t in (*carried, *scanned)), *body.captured]
        found = self._added(get("scan"), operands, attrs)
        return list(found[: len(carried)]), list(found[len(carried) :])

    def graph(self) -> Graph:
        """What was built.

        Raises:
            UsageError: nothing was declared as a result.
        """
        if not self._outputs:
            raise UsageError(
                f"the network {self.builder.name} has no outputs", hint='network.output("name", tensor) declares one'
            )
        return self.builder.finish(list(self._outputs.values()), list(self._outputs))


class _Body(Network):
    """One round of a recurrence; tensors of the network around it become operands.

    Args:
        around: the network that the recurrence belongs to.
    """

    def __init__(self, around: Network) -> None:
        super().__init__("round")
        self.around = around
        self.captured: dict[Value, Value] = {}

    def own(self, tensor: Tensor) -> Value:
        if tensor.network is self:
            return tensor.value
        outer = self.around.own(tensor)
        if outer not in self.captured:
            self.captured[outer] = self.builder.input(outer.name, outer.type)
        return self.captured[outer]

    def number(self, value: Number, dtype: DType = f32) -> Tensor:
        return self.around.number(value, dtype)

    def _stored(self, name: str, array: np.ndarray) -> Tensor:
        return self.around._stored(name, array)

    def result(self, tensor: Tensor) -> Value:
        """A value that only stands for this result: results of a round are all different, and none is an input."""
        value = self.own(tensor)
        (made,) = self.builder.add(get("identity"), [value])
        return made


def _innermost(tensors: Sequence[Tensor]) -> Network:
    """The network that can read all of some tensors: a body reads those of what is around it."""
    return max((t.network for t in tensors), key=_depth)


def _depth(network: Network) -> int:
    return 1 + _depth(network.around) if isinstance(network, _Body) else 0


__all__ = ["Network", "Tensor"]

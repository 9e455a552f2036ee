"""Tensor intrinsics: what an instruction of an accelerator does to small tensors, stated as a tensor expression."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from mlc.errors import ScheduleError
from mlc.ir import te


class Kind(StrEnum):
    """What one use of an intrinsic does to its output.

    ``body``: the output becomes what the behaviour says; ``reset``: it becomes the identity of the behaviour's
    reduction; ``update``: the behaviour's terms are folded into what it holds.
    """

    BODY = "body"
    RESET = "reset"
    UPDATE = "update"


@dataclass(frozen=True)
class Operand:
    """Where an operand of an intrinsic has to lie.

    Args:
        scope: memory of its buffer; any where empty.
        align: what the offset of its first element within the buffer is a multiple of, in elements; of what threads
            do together, the first thread's, and so is how far apart elements are that are no neighbours.
        dense: whether its elements are neighbours, row-major; otherwise any constant strides will do.
        neighbours: whether those along its last axis are, even so.
        lanes: of what the threads of a warp do together: how far from the first thread's operand that of another one
            lies, by its number and the operand's strides. The threads read each other's.
    """

    scope: str = ""
    align: int = 1
    dense: bool = True
    neighbours: bool = False
    lanes: Callable[[int, tuple[int, ...]], int] | None = None


@dataclass(frozen=True, eq=False)
class TensorIntrinsic:
    """An operation on small tensors that a target carries out as one.

    ``y[b, j] = sum(x[b, k] * w[j, k] for k)`` over placeholders ``x[1, 16]`` and ``w[16, 16]`` declares a product of a
    vector and a matrix; every loop nest that computes the same (see ``Stage.tensorize``) can become this intrinsic.

    Args:
        name: of the statements that stand for it (``Evaluate.name``).
        behaviour: one output of one compute, over placeholders.
        operands: where the output and the placeholders lie; those left out may lie anywhere, densely.
        kinds: what the target has instructions for. A whole reduction without ``BODY`` is a reset and an update.

    Raises:
        ScheduleError: the behaviour or the kinds make no sense.
    """

    name: str
    behaviour: te.Tensor
    operands: Mapping[te.Tensor, Operand]
    kinds: tuple[Kind, ...]

    def __post_init__(self) -> None:
        op = self.behaviour.op
        if op is None or len(op.bodies) != 1 or any(t.op is not None for t in op.inputs):
            raise ScheduleError(f"intrinsic {self.name}: its behaviour is one output of one compute over placeholders")
        strange = [t.name for t in self.operands if t is not self.behaviour and t not in op.inputs]
        if strange:
            raise ScheduleError(f"intrinsic {self.name}: {', '.join(strange)} is no operand of its behaviour")
        kinds = set(self.kinds)
        if op.combiner is None and kinds != {Kind.BODY}:
            raise ScheduleError(f"intrinsic {self.name} reduces nothing, so its only kind is body")
        if op.combiner is not None and Kind.BODY not in kinds and kinds != {Kind.RESET, Kind.UPDATE}:
            raise ScheduleError(f"intrinsic {self.name} needs the kind body, or both reset and update")

    def __str__(self) -> str:
        return self.name

    @cached_property
    def op(self) -> te.Compute:
        """The compute that says what the intrinsic does."""
        assert self.behaviour.op is not None
        return self.behaviour.op

    @cached_property
    def inputs(self) -> tuple[te.Tensor, ...]:
        """Placeholders in order of appearance in the behaviour, the order of operands of a statement."""
        return tuple(self.op.inputs)

    @property
    def collective(self) -> bool:
        """Whether the threads of a warp do it together."""
        return any(o.lanes is not None for o in self.operands.values())

    def operand(self, t: te.Tensor) -> Operand:
        """Where the output or a placeholder has to lie."""
        return self.operands.get(t, Operand())

"""One candidate in the process that runs it: given inputs in the layouts that it wants, and its results compared."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlc.errors import DeviceError
from mlc.harness.compare import compare, tolerance_for
from mlc.ir.graph import Node
from mlc.ir.layout import Layout
from mlc.ops import get
from mlc.records.measurement import Failure
from mlc.rewrite.group import body_of, is_group
from mlc.targets.bench import Program, Stand, StrayWriteError
from mlc.tuning.measure.cases import Case, margins_are_zero, physical

_CANARIES = (0xFF, 0x5A)  # what results hold before a run; as floats: NaN, and 1.5e16
_KEPT = 256 << 20  # bytes of packed inputs to keep


class CandidateError(Exception):
    """A candidate misbehaved.

    Args:
        failure: how.
        message: in words.
    """

    def __init__(self, failure: Failure, message: str) -> None:
        super().__init__(message)
        self.failure = failure


class Packed:
    """Inputs in the layouts that candidates want, kept for the next ones."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self.cases = cases
        self._arrays: dict[tuple[int, int, Layout | None], np.ndarray] = {}
        self._bytes = 0

    def get(self, number: int, position: int, layout: Layout | None, constant: bool) -> np.ndarray:
        """Input ``position`` of a set, as it lies in memory. Padding of constants is zero."""
        key = (0 if constant else number, position, layout)
        found = self._arrays.get(key)
        if found is None:
            array = self.cases[number].inputs[position]
            if constant:
                found = np.ascontiguousarray(array) if layout is None else layout.pack(array)
            else:
                found = physical(array, layout)
            if self._bytes + found.nbytes > _KEPT:
                self._arrays.clear()
                self._bytes = 0
            self._arrays[key] = found
            self._bytes += found.nbytes
        return found


class Candidate:
    """A candidate that is loaded on a bench.

    Args:
        stand: the bench.
        program: the candidate.
        node: what it computes, with the layouts of its inputs and results.
        constant: which inputs are constants.

    Attributes:
        seconds: that the last run took.
    Raises:
        MlcError: the program cannot be loaded.
    """

    seconds = 0.0

    def __init__(self, stand: Stand, program: Program, node: Node, constant: Sequence[bool]) -> None:
        self.node = node
        self._constant = constant
        self._loaded = stand.load(program, node, constant)
        self.sample = self._loaded.sample
        self.cold_sample = self._loaded.cold_sample
        self.close = self._loaded.close

    def run(self, packed: Packed, number: int) -> None:
        """Runs once on a set of inputs.

        Raises:
            CandidateError: it wrote where it must not, or says that it failed.
        """
        inputs = [packed.get(number, k, v.type.layout, self._constant[k]) for k, v in enumerate(self.node.inputs)]
        try:
            self.seconds = self._loaded.run(inputs, _CANARIES[number % len(_CANARIES)])
        except StrayWriteError as error:
            raise CandidateError(Failure.WRONG_MEMORY, error.message) from error
        except DeviceError as error:
            raise CandidateError(Failure.RUN_CRASH, error.message) from error

    def check_memory(self) -> None:
        """Looks at what is not its results.

        Raises:
            CandidateError: something was written there.
        """
        try:
            self._loaded.check()
        except StrayWriteError as error:
            raise CandidateError(Failure.WRONG_MEMORY, error.message) from error

    def results(self) -> list[np.ndarray]:
        """The results as they are now, logical.

        Raises:
            CandidateError: margins are not zero.
        """
        found = []
        for array, v in zip(self._loaded.results(), self.node.outputs, strict=True):
            if not margins_are_zero(array, v.type.layout):
                raise CandidateError(Failure.WRONG_OUTPUT, f"{v.name}: its margin is not zero")
            found.append(array if v.type.layout is None else v.type.layout.unpack(array))
        return found

    def check_results(self, case: Case) -> None:
        """Compares every element.

        Raises:
            CandidateError: one is wrong.
        """
        for v, got, expected in zip(self.node.outputs, self.results(), case.results, strict=True):
            difference(v.name, got, expected, rounded=rounds_floats(self.node))


def rounds_floats(node: Node) -> bool:
    """Whether integers among a group's results may be sums of floats that were rounded.

    A product and a sum are one operation on most processors, rounded once; products alone are exact everywhere.
    """
    inner = body_of(node).nodes if is_group(node) else ()
    return any(n.op in (get("add"), get("sub")) and n.outputs[0].type.dtype.is_float for n in inner)


def difference(name: str, got: np.ndarray, expected: np.ndarray, *, rounded: bool = False) -> None:
    """Compares two arrays.

    Args:
        name: of what they are.
        got: a candidate's.
        expected: of the same type and shape.
        rounded: whether integers were floats: these may be the next one where a product and a sum are rounded once.
    Raises:
        CandidateError: they differ by more than their element type excuses.
    """
    step = 1.0 if rounded and expected.dtype.kind in "iu" else None
    tolerance = tolerance_for(expected.dtype, absolute=step)
    if expected.dtype == np.float32 and expected.size:
        # one pass over the elements says yes to what is right; everything else, NaN included, gets a closer look
        with np.errstate(invalid="ignore", over="ignore"):
            worst = np.abs(got - expected).max()
        if worst <= tolerance.limit(float(np.abs(expected).max())):
            return
    found = compare(name, got, expected, tolerance)
    if not found.ok:
        raise CandidateError(Failure.WRONG_OUTPUT, f"{name}: {found.summary()}")

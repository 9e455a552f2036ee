"""Running one case and judging it, by the rules of onnx's own runner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import onnx

from mlc.errors import MlcError
from mlc.frontend.common.problems import UnsupportedModelError

from .cases import Case
from .engines import Engine


@dataclass(frozen=True)
class Result:
    """How a case ended.

    Args:
        name: of the case.
        kind: folder of onnx's suite.
        operator: what it tests.
        reason: empty when it passed.
        constants: inputs that had to be given at compile time.
    """

    name: str
    kind: str
    operator: str
    reason: str
    constants: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.reason

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def run_case(case: Case, engine: Engine) -> Result:
    """Run a case; whatever goes wrong is its reason."""
    constants: tuple[str, ...] = ()
    try:
        outcome = engine(case.model, case.inputs)
        constants = outcome.constants
        reason = mismatch(case.outputs, outcome.outputs, case.rtol, case.atol)
    except UnsupportedModelError as error:
        # without the nodes' names, so that equal reasons read the same
        first, *others = [f"{p.what or p.noun}: {p.reason}" for p in error.problems]
        reason = f"unsupported: {first}" + (f"; and {len(others)} more" if others else "")
    except MlcError as error:
        reason = f"{type(error).__name__}: {error.message.splitlines()[0]}"
    except Exception as error:  # the point of the suite is to find these, and to go on
        reason = f"crash: {type(error).__name__}: {error}".splitlines()[0]
    return Result(case.name, case.kind, operator_of(case), reason[:300], constants)


def operator_of(case: Case) -> str:
    """The operator that a case tests, as far as that can be told from its model."""
    graph = onnx.load_from_string(case.model).graph
    if len(graph.node) == 1:
        return str(graph.node[0].op_type)
    return case.kind if case.kind != "node" else case.name.removeprefix("test_").partition("_")[0] + " (expanded)"


def mismatch(expected: Sequence[Any], got: Sequence[np.ndarray], rtol: float, atol: float) -> str:
    """What is wrong with the outputs, in words; empty when nothing is."""
    if len(expected) != len(got):
        return f"gives {len(got)} outputs, not {len(expected)}"
    for k, (want, have) in enumerate(zip(expected, got, strict=True)):
        if not isinstance(want, np.ndarray):
            return f"output {k}: a {type(want).__name__} is expected, no tensor"
        if have.shape != want.shape:
            return f"output {k}: has shape {have.shape}, not {want.shape}"
        if have.dtype != want.dtype:
            return f"output {k}: is {have.dtype}, not {want.dtype}"
        tolerance = rtol
        if want.dtype.name == "bfloat16":
            # two units in the last place, as onnx's runner allows; numpy cannot compare bfloat16 itself
            tolerance = max(rtol, 2**-6)
            have, want = have.astype(np.float32), want.astype(np.float32)
        if not np.allclose(have, want, rtol=tolerance, atol=atol, equal_nan=True):
            return f"output {k}: {_difference(have, want, tolerance, atol)}"
    return ""


def _difference(have: np.ndarray, want: np.ndarray, rtol: float, atol: float) -> str:
    close = np.isclose(have, want, rtol=rtol, atol=atol, equal_nan=True)
    first = tuple(int(i) for i in np.argwhere(~close)[0])
    return f"{int((~close).sum())} of {close.size} values differ, first at {first}: {have[first]} for {want[first]}"

"""More groups of the templates that have few configurations of one group, so that each makes hundreds of kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlc.ir.graph import Builder, Value
from tests.unit.targets.gpu.groups import CASES, Make, attention, lstm, put, x

Found = Callable[[Builder], Sequence[Value]]


def turned(rows: int, columns: int) -> Found:
    """A transposition in which tiles have room."""
    return lambda b: [put(b, "transpose", [x(b, 2, rows, columns)], perm=(0, 2, 1))]


def spread(*shape: int) -> Found:
    """A sum with a row."""
    return lambda b: [put(b, "add", [x(b, *shape), x(b, shape[-1], name="w")])]


def step(rows: int, terms: int) -> Found:
    """A step of an LSTM whose terms many numbers of threads share alike."""
    return lambda b: lstm(b, rows, terms, 33)


def folded(*shape: int, axis: int) -> Found:
    """Sums along one axis."""
    return lambda b: [put(b, "reduce_sum", [x(b, *shape)], axes=(axis,), keepdims=False)]


def normed(rows: int, columns: int) -> Found:
    """Rows that are folded and gone over again."""
    return lambda b: [put(b, "softmax", [x(b, rows, columns)], axis=-1)]


def attended(rows: int, keys: int, depth: int) -> Found:
    """Attention without a mask, of three heads."""
    return lambda b: attention(b, 3, rows, keys, depth, depth + 1, mask=False)


MANY: dict[str, Make] = {f"transpose_{m}_{n}": turned(m, n) for m in (9, 33, 70) for n in (16, 40, 41, 67, 72, 96)}
MANY |= {f"add_{m}_{n}": spread(m, n) for m in (1, 3, 7, 50) for n in (8, 24, 40, 72, 130, 264, 520, 1032)}
MANY |= {f"gates_{m}_{k}": step(m, k) for m in (1, 2, 3, 5) for k in (60, 72, 129)}
MANY |= {f"sums_{m}_{n}": folded(m, n, axis=1) for m in (3, 17, 40, 70) for n in (67, 130, 300)}
MANY |= {f"sums_across_{m}_{n}": folded(m, n, axis=0) for m in (20, 67, 97, 130) for n in (9, 40)}
MANY |= {f"softmax_{m}_{n}": normed(m, n) for m in (3, 17) for n in (33, 130, 300)}
MANY |= {f"attention_{m}_{n}": attended(m, n, k) for m, n, k in ((3, 17, 8), (9, 12, 5), (17, 33, 16), (33, 40, 9))}
GROUPS: dict[str, Make] = CASES | MANY

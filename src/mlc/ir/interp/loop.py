"""Reference interpreter of the loop AST: one statement at a time, every index checked.

Loops over a grid of threads are run as :mod:`mlc.ir.interp.threads` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mlc.errors import VerifyError
from mlc.ir import loop
from mlc.ir.expr import Expr, Select
from mlc.ir.index import Linear, Var
from mlc.ir.interp.intrinsic import applied
from mlc.ir.interp.te import Array, Evaluator, inside
from mlc.ir.interp.threads import fresh, run_grid
from mlc.ir.intrinsic import Kind, TensorIntrinsic
from mlc.ir.unwind import Steps


def run_function(fn: loop.Function, arrays: Sequence[np.ndarray]) -> None:
    """Run a kernel on its parameters, in place.

    Args:
        fn: the kernel.
        arrays: one array a parameter, of the buffer's physical shape.
    Raises:
        VerifyError: an index out of bounds, a mistyped parameter, threads that race or miss one another at a barrier.
    """
    if len(arrays) != len(fn.params):
        raise VerifyError(f"{fn.name} takes {len(fn.params)} buffers, given {len(arrays)}")
    memory: dict[int, np.ndarray] = {}
    for b, a in zip(fn.params, arrays, strict=True):
        if tuple(a.shape) != b.shape or a.dtype != b.dtype.numpy:
            raise VerifyError(f"{fn.name}: {b!r} given {a.dtype}{a.shape}")
        memory[id(b)] = a
    with np.errstate(all="ignore"):
        _Machine(memory).run(fn.body, {})


class _Machine:
    def __init__(self, memory: dict[int, np.ndarray]) -> None:
        self.memory = memory

    def run(self, s: loop.Stmt, env: dict[Var, int]) -> None:
        match s:
            case loop.For() if s.kind is loop.ForKind.THREAD:
                run_grid(self.memory, s, env)
            case loop.For():
                for k in range(s.extent):
                    env[s.var] = k
                    self.run(s.body, env)
            case loop.ForRange():
                begin, end = int(self.value(s.begin, env)), int(self.value(s.end, env))
                for k in range(begin, end):
                    env[s.var] = k
                    self.run(s.body, env)
            case loop.Seq():
                for c in s.stmts:
                    self.run(c, env)
            case loop.If():
                if bool(self.value(s.cond, env)):
                    self.run(s.then, env)
                elif s.orelse is not None:
                    self.run(s.orelse, env)
            case loop.Allocate():
                self.memory[id(s.buffer)] = fresh(s.buffer)
                self.run(s.body, env)
            case loop.Store():
                self.store(s, env)
            case loop.Evaluate():
                if s.intrinsic is not None:
                    self.intrinsic(s, s.intrinsic, env)
            case loop.Prefetch() | loop.Barrier() | loop.Commit() | loop.Wait():
                pass  # a thread that is alone meets nobody
            case loop.Shuffle():
                raise VerifyError(f"a thread that is alone has nobody to exchange with:\n{s!r}")
            case _:
                raise VerifyError(f"no meaning for {type(s).__name__}")

    def value(self, e: Expr, env: dict[Var, int]) -> np.ndarray:
        return np.asarray(_Scalar(env, self.memory, None).eval(e))

    def store(self, s: loop.Store, env: dict[Var, int]) -> None:
        scope: dict[Var, Any] = dict(env)
        if s.lane is not None:
            scope[s.lane] = np.arange(s.lane.hi + 1)
        ev = _Scalar(scope, self.memory, None)
        value = ev.eval(s.value)
        array = self.memory[id(s.buffer)]
        index: tuple[Any, ...] = tuple(
            _checked(ev.index(ix), n, s, s.buffer, ix) for ix, n in zip(s.indices, array.shape, strict=True)
        )
        array[index] = value

    def intrinsic(self, s: loop.Evaluate, what: TensorIntrinsic, env: dict[Var, int]) -> None:
        """What the intrinsic's behaviour says, on the tensors that its operands are."""
        kind, out, *ins = s.args
        into, where = self.memory[id(out.buffer)], self.places(out, what.behaviour.shape, s, env)
        values = {}
        if kind != Kind.RESET:
            for t, a in zip(what.inputs, ins, strict=True):
                values[id(t)] = self.memory[id(a.buffer)][self.places(a, t.shape, s, env)]
        into[where] = applied(what.op, kind, into[where], values)

    def places(
        self, a: loop.Access, shape: tuple[int, ...], s: loop.Evaluate, env: dict[Var, int]
    ) -> tuple[np.ndarray, ...]:
        """Indices into its buffer of the small tensor that an operand of an intrinsic is."""
        array = self.memory[id(a.buffer)]
        ev = _Scalar(env, self.memory, None)
        at = [int(_checked(ev.index(ix), n, s, a.buffer, ix)) for ix, n in zip(a.indices, array.shape, strict=True)]
        flat = np.full(shape, sum(i * step for i, step in zip(at, a.buffer.strides(), strict=True)))
        for d, (n, step) in enumerate(zip(shape, a.strides, strict=True)):
            flat += (np.arange(n) * step).reshape([-1 if k == d else 1 for k in range(len(shape))])
        if flat.max() >= array.size:
            raise VerifyError(f"an operand of {shape} elements at {a!r} leaves {a.buffer!r} in\n{s!r}")
        return np.unravel_index(flat, array.shape)


class _Scalar(Evaluator):
    """The grid evaluator with a scalar ``select`` that looks only at the chosen side."""

    def select(self, e: Select, guarded: bool) -> Steps[tuple[Expr, bool], Array]:
        cond = np.asarray((yield e.cond, guarded))
        if cond.ndim == 0:
            return (yield (e.a if bool(cond) else e.b), guarded)
        return (yield from super().select(e, guarded))


def _checked(i: Any, n: int, s: loop.Stmt, buffer: loop.Buffer, ix: Linear) -> Any:
    if not inside(i, n):
        what = "store" if type(s) is loop.Store else "operand"
        raise VerifyError(f"{what} outside {buffer!r}: {ix} is {i} in\n{s!r}")
    return i

"""Random graphs of every fusion kind, for properties that must hold whatever the graph."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from mlc.ir.graph import Graph, Value
from mlc.ops import get
from tests.unit.rewrite.helpers import Net

# sorting is a routine, which is interpreted slowly
KINDS = ("unary", "view", "binary", "reduction", "product", "unary", "view", "binary", "binary", "reduction", "sort")
UNARY = ("relu", "neg", "abs", "identity", "exp", "sigmoid", "tanh")
BINARY = ("add", "sub", "mul", "max", "min")


def _unary(data: st.DataObject, n: Net, x: Value) -> Value:
    # bounded before it grows, so that no result overflows
    y = n.clip(x, lo=-2.0, hi=2.0)
    return getattr(n, data.draw(st.sampled_from(UNARY)))(y)


def _binary(data: st.DataObject, n: Net, x: Value, pool: list[Value]) -> Value:
    fits = [v for v in pool if v.type.shape == x.type.shape]
    others: list[Callable[[], Value]] = [
        lambda: data.draw(st.sampled_from(fits)),
        lambda: n.c(data.draw(st.sampled_from([0.0, 1.0, 2.0, 0.5, -1.5]))),
        lambda: n.w(*x.type.shape[-1:], seed=data.draw(st.integers(0, 3))),
        lambda: n.broadcast_to(n.w(1, seed=data.draw(st.integers(0, 3))), shape=x.type.shape),
    ]
    y = data.draw(st.sampled_from(others))()
    pair = (x, y) if data.draw(st.booleans()) else (y, x)
    return getattr(n, data.draw(st.sampled_from(BINARY)))(*pair)


def _view(data: st.DataObject, n: Net, x: Value) -> Value:
    shape = x.type.shape
    kind = data.draw(st.sampled_from(["transpose", "rows", "split", "flat", "slice", "concat", "pad"]))
    if kind == "transpose":
        return n.transpose(x, perm=tuple(data.draw(st.permutations(range(len(shape))))))
    if kind == "flat":
        return n.reshape(x, shape=(x.type.size,))
    if kind == "rows":
        return n.reshape(x, shape=(x.type.size // shape[-1], shape[-1]))
    if kind == "split":
        return n.reshape(x, shape=(*shape[:-1], 1, shape[-1]))
    axis = data.draw(st.integers(0, len(shape) - 1))
    if kind == "slice":
        begin = data.draw(st.integers(0, shape[axis] - 1))
        ranges = [(begin, n_, 1) if d == axis else (0, n_, 1) for d, n_ in enumerate(shape)]
        begins, ends, steps = zip(*ranges, strict=True)
        return n.slice(x, begin=begins, end=ends, step=steps)
    if kind == "concat" and x.type.size < 100:
        return n.concat(x, n.relu(x), axis=axis)
    return n.pad(x, pads=tuple(int(d == axis) for d in range(2 * len(shape))))


def _reduction(data: st.DataObject, n: Net, x: Value) -> Value:
    axis = data.draw(st.integers(0, x.type.rank - 1))
    kind = data.draw(st.sampled_from(["softmax", "reduce_mean", "reduce_max", "layer_norm"]))
    if kind == "softmax":
        return n.softmax(x, axis=axis)
    if kind == "layer_norm":
        last = x.type.shape[-1:]
        return n.layer_norm(x, n.w(*last, seed=5), n.w(*last, seed=6), epsilon=0.5)
    return getattr(n, kind)(n.clip(x, lo=-3.0, hi=3.0), axes=(axis,), keepdims=data.draw(st.booleans()))


def _product(data: st.DataObject, n: Net, x: Value) -> Value:
    if x.type.rank < 2:
        x = n.reshape(x, shape=(1, x.type.size))
    k = x.type.shape[-1]
    return n.matmul(n.clip(x, lo=-2.0, hi=2.0), n.w(k, data.draw(st.integers(1, 4)), seed=k))


def random_graph(data: st.DataObject, most: int = 12, batch: int = 2) -> Graph:
    """A graph of up to about ``most`` steps over one or two inputs; values of all sizes, read once or more.

    Args:
        batch: first extent of the first input.
    """
    n = Net()
    pool = [n.x(batch, 3, 4), n.x(3, 4, name="y")]
    for _ in range(data.draw(st.integers(1, most))):
        x = data.draw(st.sampled_from(pool[-4:]))
        kind = data.draw(st.sampled_from(KINDS))
        if kind == "unary":
            new = _unary(data, n, x)
        elif kind == "binary":
            new = _binary(data, n, x, pool)
        elif kind == "view":
            new = _view(data, n, x)
        elif kind == "reduction" and x.type.rank:
            new = _reduction(data, n, x)
        elif kind == "product":
            new = _product(data, n, x)
        elif x.type.rank:
            k = min(2, x.type.shape[-1])
            new = n.builder.add(get("top_k"), [x], {"k": k, "axis": x.type.rank - 1})[0]
        else:
            new = n.neg(x)
        if new.type.rank == 0:
            new = n.reshape(new, shape=(1,))
        if new.type.size <= 400:
            pool.append(new)
    outputs = [pool[-1], *data.draw(st.lists(st.sampled_from(pool), max_size=2))]
    return n(*outputs)

"""Python-like text of the three languages."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlc.ir import loop
from mlc.ir.expr import Binary, Call, Cast, Const, Expr, IndexValue, Load, Select, Within
from mlc.ir.graph import Graph, Node, Value
from mlc.ir.index import Linear, Var, linear_text, terms_text, with_const
from mlc.ir.te import Compute
from mlc.ir.text import printed

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "mod": "%", "and": "&", "or": "|", "xor": "^",
    "shl": "<<", "shr": ">>", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip


def const_text(e: Const) -> str:
    """A literal: booleans as words, floats so that they read back exactly."""
    if e.dtype.kind == "b":
        return str(bool(e.value))
    return repr(e.value)


def expr_text(e: Expr, lane: Var | None = None) -> str:
    """One line of text; indices along ``lane`` print as slices."""
    out: list[str] = []
    stack: list[Expr | str] = [e]  # what is still to be written, the next at the end
    while stack:
        top = stack.pop()
        if isinstance(top, str):
            out.append(top)
        elif isinstance(top, Load):
            out.append(f"{top.source.name}[{indices_text(top.indices, lane)}]")
        elif isinstance(top, Binary):
            word = _INFIX.get(top.op)
            if word is None:
                out.append(f"{top.op}(")
                stack += (")", top.b, ", ", top.a)
                continue
            if word == "&" and top.dtype.kind == "b":
                word = "and"
            _push(stack, top.b)
            stack.append(f" {word} ")
            _push(stack, top.a)
        elif isinstance(top, Cast):
            out.append(f"{top.dtype.name}(")
            stack += (")", top.a)
        elif isinstance(top, (Call, Select)):
            name, args = (top.fn, top.args) if isinstance(top, Call) else ("select", (top.cond, top.a, top.b))
            out.append(f"{name}(")
            stack.append(")")
            for k in range(len(args) - 1, 0, -1):
                stack += (args[k], ", ")
            stack += args[:1]
        else:
            out.append(_leaf_text(top))
    return "".join(out)


def _push(stack: list[Expr | str], e: Expr) -> None:
    """An operand of an infix operator is the next to be written, in parentheses where it needs them."""
    if type(e) is Within or (type(e) is Binary and e.op in _INFIX):
        stack += (")", e, "(")
    else:
        stack.append(e)


def _leaf_text(e: Expr) -> str:
    """The text of what has neither operands nor a tensor."""
    if isinstance(e, Const):
        return const_text(e)
    if isinstance(e, IndexValue):
        return f"{e.dtype}({linear_text(e.index)})"
    if isinstance(e, Within):
        lo, hi, text = e.lo, e.hi, linear_text(e.index)
        least, most = e.index.bounds()
        if least >= lo:
            return f"{text} < {hi}"
        return f"{lo} <= {text}" if most < hi else f"{lo} <= {text} < {hi}"
    raise TypeError(f"no text for {type(e).__name__}")


def indices_text(indices: tuple[Linear, ...], lane: Var | None = None) -> str:
    """Comma-separated indices; a unit stride along ``lane`` prints as ``a:b``."""
    out = []
    for ix in indices:
        if not ix.terms:  # most are of registers
            out.append(str(ix.const))
        elif lane is not None and ix.terms.get(lane) == 1:
            terms = terms_text(ix.without(lane)) if len(ix.terms) > 1 else ""
            out.append(f"{with_const(terms, ix.const)}:{with_const(terms, ix.const + lane.hi + 1)}")
        else:
            out.append(linear_text(ix))
    return ", ".join(out)


def compute_text(op: Compute) -> str:
    """``name[i, j] = sum(a[i, k] * b[k, j] for k in range(8))`` with the ranges of the axes."""
    ranges = ", ".join(f"{a.name}:{a.hi + 1}" for a in op.axes)
    bodies = [expr_text(b) for b in op.bodies]
    if op.combiner is not None:
        over = ", ".join(a.name for a in op.reduce_axes)
        sizes = ", ".join(str(a.hi + 1) for a in op.reduce_axes)
        text = f"{op.combiner.name}({', '.join(bodies)} for {over} in ({sizes}))"
    else:
        text = ", ".join(bodies)
    tag = f"  # {op.tag}" if op.tag else ""
    names = ", ".join(t.name for t in op.outputs) or op.name
    return f"{names}[{ranges}] = {text}{tag}"


def buffer_text(b: loop.Buffer) -> str:
    where = "" if b.scope == "global" else f" in {b.scope}"
    return f"{b.name}: {b.dtype}[{','.join(map(str, b.shape))}]{where}"


def stmt_text(s: loop.Stmt, indent: int = 0) -> str:
    """Python-like lines of a statement."""
    lines: list[str] = []
    _stmt(s, indent, lines)
    return "\n".join(lines)


def _stmt(s: loop.Stmt, depth: int, lines: list[str]) -> None:
    pad = "  " * depth
    if isinstance(s, loop.For):
        tag = {"serial": "range"}.get(str(s.kind), str(s.kind))
        extra = f', "{s.thread}"' if s.thread else ""
        lines.append(f"{pad}for {s.var.name} in {tag}({s.extent}{extra}):")
        _stmt(s.body, depth + 1, lines)
    elif isinstance(s, loop.ForRange):
        lines.append(f"{pad}for {s.var.name} in range({expr_text(s.begin)}, {expr_text(s.end)}):")
        _stmt(s.body, depth + 1, lines)
    elif isinstance(s, loop.Seq):
        if not s.stmts:
            lines.append(f"{pad}pass")
        for c in s.stmts:
            _stmt(c, depth, lines)
    elif isinstance(s, loop.Store):
        lane = s.lane
        target = f"{s.buffer.name}[{indices_text(s.indices, lane)}]"
        value = expr_text(s.value, lane)
        notes = [f"{lane.name} in {lane.hi + 1} lanes"] if lane is not None else []
        notes += ["asynchronous"] if s.asynchronous else []
        note = f"  # {', '.join(notes)}" if notes else ""
        lines.append(f"{pad}{target} = {value}{note}")
    elif isinstance(s, loop.If):
        lines.append(f"{pad}if {expr_text(s.cond)}:")
        _stmt(s.then, depth + 1, lines)
        if s.orelse is not None:
            lines.append(f"{pad}else:")
            _stmt(s.orelse, depth + 1, lines)
    elif isinstance(s, loop.Allocate):
        lines.append(f"{pad}{buffer_text(s.buffer)}")
        _stmt(s.body, depth, lines)
    elif isinstance(s, loop.Evaluate):
        lines.append(f"{pad}{s.name}({', '.join(map(str, s.args))})")
    elif isinstance(s, loop.Prefetch):
        lines.append(f"{pad}prefetch({s.buffer.name}[{indices_text(s.indices, None)}], level={s.level})")
    elif isinstance(s, loop.Shuffle):
        target, source = (f"{b.name}[{indices_text(ix)}]" for b, ix in ((s.buffer, s.indices), (s.source, s.at)))
        lines.append(f"{pad}{target} = shuffle({source}, flip={s.flip})")
    elif isinstance(s, loop.Barrier):
        lines.append(f"{pad}barrier({s.scope!r})")
    elif isinstance(s, loop.Commit):
        lines.append(f"{pad}commit()")
    elif isinstance(s, loop.Wait):
        lines.append(f"{pad}wait({s.groups})")
    else:
        raise TypeError(f"no text for {type(s).__name__}")


def function_text(f: loop.Function) -> str:
    """A kernel as a Python-like ``def``; its outputs follow ``->``."""
    n = len(f.params) - f.outputs
    ins = ", ".join(buffer_text(b) for b in f.params[:n])
    outs = ", ".join(buffer_text(b) for b in f.params[n:])
    return f"def {f.name}({ins}) -> {outs}:\n{stmt_text(f.body, 1)}\n"


def attr_text(value: Any) -> str:
    """An attribute of a node; arrays are shortened, graphs named."""
    if isinstance(value, np.ndarray):
        return f"array<{value.dtype}{list(value.shape)}>"
    if isinstance(value, str):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(map(attr_text, value)) + ")"
    return str(value)


def node_text(n: Node) -> str:
    """``a, b = op(x, y, key=value)``."""
    attrs = [
        f"{k}={attr_text(v)}"
        for k, v in n.attrs.items()
        if not isinstance(v, Graph) and not (k in n.op.attrs and n.op.attrs[k] is not ... and _equal(v, n.op.attrs[k]))
    ]
    args = [value_ref(v) for v in n.inputs] + attrs
    outs = ", ".join(f"{value_ref(v)}: {v.type}" for v in n.outputs)
    return f"{outs} = {n.op.name}({', '.join(args)})"


def _equal(a: Any, b: Any) -> bool:
    return type(a) is type(b) and not isinstance(a, np.ndarray) and a == b


def value_ref(v: Value) -> str:
    """A value's name as an identifier-like word; odd names are quoted."""
    name = v.name
    return f"%{name}" if name and all(c.isalnum() or c in "_./:-" for c in name) else f"%{name!r}"


def _plain(name: str) -> str:
    """A name of the model's as it may stand in a comment: on one line, without terminal codes."""
    return name if name.isprintable() else repr(name)


def graph_text(g: Graph, indent: int = 0) -> str:
    """The graph as a Python-like function, fused groups with their bodies."""
    pad = "  " * indent
    ins = ", ".join(f"{value_ref(v)}: {v.type}" for v in g.inputs)
    outs = ", ".join(str(v.type) for v in g.outputs)
    lines = [f"{pad}@graph {g.name}({ins}) -> ({outs}):"]
    for v, array in g.constants.items():
        shown = f" = {array.reshape(-1)[0].item()!r}" if array.size == 1 else ""
        lines.append(f"{pad}  {value_ref(v)}: const {v.type}{shown}")
    for n in g.nodes:
        source = f"  # {', '.join(map(_plain, n.sources))}" if n.sources else ""
        lines.append(f"{pad}  {node_text(n)}{source}")
        for attr in n.attrs.values():
            if isinstance(attr, Graph):
                lines.append(graph_text(attr, indent + 2))
    lines.append(f"{pad}  return {', '.join(value_ref(v) for v in g.outputs)}")
    return "\n".join(lines)


printed.register(Expr, expr_text)
printed.register(Compute, compute_text)
printed.register(loop.Stmt, stmt_text)
printed.register(loop.Function, function_text)
printed.register(Node, node_text)
printed.register(Graph, graph_text)

"""The functions of a model's steps: kernels on places in memory, copies, joins, and loops over steps of their own."""

from __future__ import annotations

from collections.abc import Sequence

from mlc.targets.base import CallSpec, JoinSpec, LoopSpec, RowSpec, Step
from mlc.targets.llvm.clock import ADD_TIME

ARGS = "ptr noundef %inputs, ptr noundef %outputs, ptr noundef %params, ptr noundef %workspace, ptr noundef %pool"
PASS = "ptr %inputs, ptr %outputs, ptr %params, ptr %workspace, ptr %pool"


def step_function(name: str, step: Step) -> str:
    """LLVM IR of the internal function ``@name``, with what belongs to it; names of that begin with ``name.``.

    It takes what ``mlc_run`` takes.
    """
    if isinstance(step, LoopSpec):
        return _loop(name, step)
    return _call(name, step) if isinstance(step, CallSpec) else _join(name, step)


def table_of(name: str, functions: Sequence[str]) -> str:
    """The addresses of functions, in order, as ``@name``."""
    entries = ", ".join(f"ptr @{f}" for f in functions)
    return f"@{name} = internal constant [{len(functions)} x ptr] [{entries}]\n"


_SPACES = ("input", "output", "param", "workspace")


def _join(name: str, step: JoinSpec) -> str:
    """A walk over a table of the operands: space, position or offset, bytes of a row."""
    entries = ", ".join(
        f"[3 x i64] [i64 {_SPACES.index(space)}, i64 {at}, i64 {nbytes}]" for (space, at), nbytes in step.parts
    )
    count, total = len(step.parts), sum(nbytes for _, nbytes in step.parts)
    table, (lines, y) = f"@{name}.parts", _address("y", step.result)
    result = "\n".join(lines)
    return f"""\
{table} = internal constant [{count} x [3 x i64]] [{entries}]

define internal void @{name}({ARGS}) #0 {{
entry:
{result}
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %tail ]
  %begin = phi i64 [ 0, %entry ], [ %end, %tail ]
  %more = icmp ult i64 %i, {count if step.rows and total else 0}
  br i1 %more, label %part, label %done
part:
  %p0 = getelementptr inbounds [{count} x [3 x i64]], ptr {table}, i64 0, i64 %i, i64 0
  %p1 = getelementptr inbounds i64, ptr %p0, i64 1
  %p2 = getelementptr inbounds i64, ptr %p0, i64 2
  %space = load i64, ptr %p0, align 8
  %at = load i64, ptr %p1, align 8
  %bytes = load i64, ptr %p2, align 8
  %end = add i64 %begin, %bytes
  %outside = icmp ult i64 %space, 2
  br i1 %outside, label %given, label %own
given:
  %is.input = icmp eq i64 %space, 0
  %table = select i1 %is.input, ptr %inputs, ptr %outputs
  %slot = getelementptr inbounds ptr, ptr %table, i64 %at
  %x.given = load ptr, ptr %slot, align 8
  br label %rows
own:
  %is.param = icmp eq i64 %space, 2
  %base = select i1 %is.param, ptr %params, ptr %workspace
  %x.own = getelementptr inbounds i8, ptr %base, i64 %at
  br label %rows
rows:
  %x = phi ptr [ %x.given, %given ], [ %x.own, %own ]
  br label %row
row:
  %r = phi i64 [ 0, %rows ], [ %r.next, %row ]
  %from.at = mul i64 %r, %bytes
  %from = getelementptr inbounds i8, ptr %x, i64 %from.at
  %row.at = mul i64 %r, {total}
  %to.at = add i64 %row.at, %begin
  %to = getelementptr inbounds i8, ptr {y}, i64 %to.at
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %bytes, i1 false)
  %r.next = add i64 %r, 1
  %again = icmp ult i64 %r.next, {step.rows}
  br i1 %again, label %row, label %tail
tail:
  %next = add i64 %i, 1
  br label %head
done:
  ret void
}}
"""


def _address(name: str, place: tuple[str, int]) -> tuple[list[str], str]:
    """Instructions that find a place in memory, and the pointer that they give."""
    space, where = place
    if space in ("input", "output"):
        return [
            f"  %q{name} = getelementptr inbounds ptr, ptr %{space}s, i64 {where}",
            f"  %a{name} = load ptr, ptr %q{name}, align 8",
        ], f"%a{name}"
    base = "params" if space == "param" else "workspace"
    return [f"  %a{name} = getelementptr inbounds i8, ptr %{base}, i64 {where}"], f"%a{name}"


def _call(name: str, step: CallSpec) -> str:
    lines = [f"define internal void @{name}({ARGS}) #0 {{"]
    names = []
    for a, place in enumerate(step.args):
        found, name = _address(str(a), place)
        lines += found
        names.append(f"ptr {name}")
    if step.kernel:
        lines.append(f"  %scratch = getelementptr inbounds i8, ptr %workspace, i64 {step.scratch}")
        lines.append(f"  call void @{step.kernel}({', '.join([*names, 'ptr %scratch', 'ptr %pool'])})")
    elif step.nbytes:
        lines.append(f"  call void @llvm.memmove.p0.p0.i64({names[1]}, {names[0]}, i64 {step.nbytes}, i1 false)")
    return "\n".join([*lines, "  ret void", "}", ""])


def timed_loop(name: str, step: LoopSpec) -> str:
    """LLVM IR of the internal function ``@name.timed``, which belongs to the function ``@name`` of a loop.

    It does the same, and adds the nanoseconds of the loop's step ``i`` to ``ns[i]``, its last argument.
    """
    return _rounds(name, step, timed=True)


def _loop(name: str, step: LoopSpec) -> str:
    names = [f"{name}.{k}" for k in range(len(step.steps))]
    inner = [step_function(n, s) for n, s in zip(names, step.steps, strict=True)]
    return "\n".join([*inner, table_of(f"{name}.steps", names), _rounds(name, step)])


def _rounds(name: str, step: LoopSpec, *, timed: bool = False) -> str:
    """Rounds of a walk over a table of steps, with pointers that advance."""
    before: list[str] = []  # where everything is, found once
    each: list[str] = []  # where this round's inputs and outputs are
    inputs: list[str] = []
    outputs: list[str] = []

    def address(place: tuple[str, int]) -> str:
        lines, pointer = _address(f"{len(before)}", place)
        before.extend(lines)
        return pointer

    def row(rows: RowSpec) -> str:
        base, k = address(rows.place), len(each)
        each.append(f"  %at{k} = mul i64 {'%back' if rows.backward else '%t'}, {rows.nbytes}")
        each.append(f"  %row{k} = getelementptr inbounds i8, ptr {base}, i64 %at{k}")
        return f"%row{k}"

    for first, last, even, odd in step.carried:
        start, end = address(first), address(last)
        evens, odds = address(("workspace", even)), address(("workspace", odd))
        k = len(each)
        each += [
            f"  %kept{k} = select i1 %odd, ptr {evens}, ptr {odds}",
            f"  %free{k} = select i1 %odd, ptr {odds}, ptr {evens}",
            f"  %old{k} = select i1 %first, ptr {start}, ptr %kept{k}",
            f"  %new{k} = select i1 %last, ptr {end}, ptr %free{k}",
        ]
        inputs.append(f"%old{k}")
        outputs.append(f"%new{k}")
    inputs += [row(r) for r in step.scanned]
    inputs += [address(place) for place in step.captured]
    outputs += [row(r) for r in step.gathered]
    slots = [(f"%in{k}", "%own.inputs", k, p) for k, p in enumerate(inputs)]
    slots += [(f"%out{k}", "%own.outputs", k, p) for k, p in enumerate(outputs)]
    for slot, table, k, pointer in slots:
        before.append(f"  {slot} = getelementptr inbounds ptr, ptr {table}, i64 {k}")
        each.append(f"  store ptr {pointer}, ptr {slot}, align 8")
    found, rounds, count = "\n".join(before), "\n".join(each), len(step.steps)
    header = f"@{name}.timed({ARGS}, ptr noundef %ns)" if timed else f"@{name}({ARGS})"
    start, end = ("  %before = call i64 @mlc.now()\n", ADD_TIME) if timed else ("", "")
    return f"""\
define internal void {header} #0 {{
entry:
  %own.inputs = alloca [{len(inputs)} x ptr], align 8
  %own.outputs = alloca [{len(outputs)} x ptr], align 8
  %own.workspace = getelementptr inbounds i8, ptr %workspace, i64 {step.workspace}
{found}
  br label %round
round:
  %t = phi i64 [ 0, %entry ], [ %t.next, %end ]
  %back = sub i64 {step.rounds - 1}, %t
  %first = icmp eq i64 %t, 0
  %last = icmp eq i64 %back, 0
  %odd = trunc i64 %t to i1
{rounds}
  br label %head
head:
  %i = phi i64 [ 0, %round ], [ %next, %body ]
  %more = icmp ult i64 %i, {count}
  br i1 %more, label %body, label %end
body:
  %at = getelementptr inbounds [{count} x ptr], ptr @{name}.steps, i64 0, i64 %i
  %step = load ptr, ptr %at, align 8
{start}\
  call void %step(ptr %own.inputs, ptr %own.outputs, ptr %params, ptr %own.workspace, ptr %pool)
{end}\
  %next = add i64 %i, 1
  br label %head
end:
  %t.next = add i64 %t, 1
  br i1 %last, label %done, label %round
done:
  ret void
}}
"""

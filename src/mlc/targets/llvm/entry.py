"""Entry points of a compiled model: ``mlc_run``, ``mlc_step`` and ``mlc_profile`` over its steps."""

from __future__ import annotations

from collections.abc import Sequence

from mlc.targets.base import CallSpec, JoinSpec, Step

_ARGS = "ptr noundef %inputs, ptr noundef %outputs, ptr noundef %params, ptr noundef %workspace, ptr noundef %pool"
_PASS = "ptr %inputs, ptr %outputs, ptr %params, ptr %workspace, ptr %pool"


def entry_points(steps: Sequence[Step], *, whole: bool = True) -> str:
    """LLVM IR of one function a step, a table of them, and the three entry points, which walk the table.

    What is not ``whole`` has ``mlc_run`` alone: a candidate is run, and each further function costs LLVM half a
    millisecond for its hundred passes.

    ``inputs`` and ``outputs`` are arrays of pointers in the model's order; ``params`` and ``workspace`` are bases to
    which byte offsets are added; ``pool`` may be null.
    """
    # a call written out for every step would be one basic block, and LLVM's time grows with the square of its length
    entries = ", ".join(f"ptr @mlc.step{k}" for k in range(len(steps)))
    table = f"@mlc.steps = internal constant [{len(steps)} x ptr] [{entries}]\n"
    partial = any(isinstance(step, CallSpec) and step.device for step in steps)
    return "\n".join(
        [
            *(_step(k, step) for k, step in enumerate(steps)),
            table,
            _run(len(steps), partial),
            *([_walks(len(steps), partial)] if whole else []),
        ]
    )


def _fetch(count: int) -> str:
    return f"""\
  %at = getelementptr inbounds [{count} x ptr], ptr @mlc.steps, i64 0, i64 %i
  %step = load ptr, ptr %at, align 8"""


def _run(count: int, partial: bool) -> str:
    """``mlc_run``; where it is ``partial``, since some steps are another device's, it does nothing but return 1."""
    walked, code = (0, 1) if partial else (count, 0)
    fetch = _fetch(count)
    return f"""\
declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare i32 @clock_gettime(i32, ptr)

define i32 @mlc_run({_ARGS}) #0 {{
entry:
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %more = icmp ult i64 %i, {walked}
  br i1 %more, label %body, label %done
body:
{fetch}
  call void %step({_PASS})
  %next = add i64 %i, 1
  br label %head
done:
  ret i32 {code}
}}
"""


def _walks(count: int, partial: bool) -> str:
    """``mlc_step``, and ``mlc_profile``, which adds the nanoseconds of step ``i`` to ``ns[i]``.

    Where this is ``partial``, the latter does nothing.
    """
    walked = 0 if partial else count
    fetch = _fetch(count)
    return f"""\
define void @mlc_step({_ARGS}, i64 noundef %i) #0 {{
  %known = icmp ult i64 %i, {count}
  br i1 %known, label %body, label %done
body:
{fetch}
  call void %step({_PASS})
  br label %done
done:
  ret void
}}

define internal i64 @mlc.now() {{
  %t = alloca [2 x i64], align 8
  %r = call i32 @clock_gettime(i32 1, ptr %t)  ; CLOCK_MONOTONIC
  %s = load i64, ptr %t, align 8
  %p = getelementptr inbounds i64, ptr %t, i64 1
  %n = load i64, ptr %p, align 8
  %m = mul i64 %s, 1000000000
  %v = add i64 %m, %n
  ret i64 %v
}}

define void @mlc_profile({_ARGS}, ptr noundef %ns) #0 {{
entry:
  %start = call i64 @mlc.now()
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %before = phi i64 [ %start, %entry ], [ %after, %body ]
  %more = icmp ult i64 %i, {walked}
  br i1 %more, label %body, label %done
body:
{fetch}
  call void %step({_PASS})
  %after = call i64 @mlc.now()
  %took = sub i64 %after, %before
  %slot = getelementptr inbounds i64, ptr %ns, i64 %i
  %old = load i64, ptr %slot, align 8
  %new = add i64 %old, %took
  store i64 %new, ptr %slot, align 8
  %next = add i64 %i, 1
  br label %head
done:
  ret void
}}
"""


def _step(k: int, step: Step) -> str:
    return _call(k, step) if isinstance(step, CallSpec) else _join(k, step)


_SPACES = ("input", "output", "param", "workspace")


def _join(k: int, step: JoinSpec) -> str:
    """A walk over a table of the operands: space, position or offset, bytes of a row."""
    entries = ", ".join(
        f"[3 x i64] [i64 {_SPACES.index(space)}, i64 {at}, i64 {nbytes}]" for (space, at), nbytes in step.parts
    )
    count, total = len(step.parts), sum(nbytes for _, nbytes in step.parts)
    target, (lines, name) = f"@mlc.step{k}.parts", _address("y", step.result)
    result = "\n".join(lines)
    return f"""\
{target} = internal constant [{count} x [3 x i64]] [{entries}]

define internal void @mlc.step{k}({_ARGS}) #0 {{
entry:
{result}
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %tail ]
  %begin = phi i64 [ 0, %entry ], [ %end, %tail ]
  %more = icmp ult i64 %i, {count if step.rows and total else 0}
  br i1 %more, label %part, label %done
part:
  %p0 = getelementptr inbounds [{count} x [3 x i64]], ptr {target}, i64 0, i64 %i, i64 0
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
  %to = getelementptr inbounds i8, ptr {name}, i64 %to.at
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


def _call(k: int, step: CallSpec) -> str:
    lines = [f"define internal void @mlc.step{k}({_ARGS}) #0 {{"]
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

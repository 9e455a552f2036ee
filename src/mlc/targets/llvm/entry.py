"""Entry points of a compiled model: ``mlc_run``, ``mlc_step``, ``mlc_profile`` and ``mlc_parts`` over its steps."""

from __future__ import annotations

from collections.abc import Sequence

from mlc.targets.base import CallSpec, LoopSpec, Step
from mlc.targets.llvm.clock import ADD_TIME, CLOCK
from mlc.targets.llvm.steps import ARGS, PASS, step_function, table_of, timed_loop


def entry_points(steps: Sequence[Step], *, whole: bool = True) -> str:
    """LLVM IR of one function a step, a table of them, and the entry points, which walk the table.

    What is not ``whole`` has ``mlc_run`` alone: a candidate is run, and each further function costs LLVM half a
    millisecond for its hundred passes.

    ``inputs`` and ``outputs`` are arrays of pointers in the model's order; ``params`` and ``workspace`` are bases to
    which byte offsets are added; ``pool`` may be null.
    """
    # a call written out for every step would be one basic block, and LLVM's time grows with the square of its length
    table = table_of("mlc.steps", [f"mlc.step{k}" for k in range(len(steps))])
    partial = any(isinstance(step, CallSpec) and step.device for step in steps)
    return "\n".join(
        [
            *(step_function(f"mlc.step{k}", step) for k, step in enumerate(steps)),
            table,
            _run(len(steps), partial),
            *([_walks(len(steps), partial), *_parts(steps)] if whole else []),
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

define i32 @mlc_run({ARGS}) #0 {{
entry:
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %more = icmp ult i64 %i, {walked}
  br i1 %more, label %body, label %done
body:
{fetch}
  call void %step({PASS})
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
define void @mlc_step({ARGS}, i64 noundef %i) #0 {{
  %known = icmp ult i64 %i, {count}
  br i1 %known, label %body, label %done
body:
{fetch}
  call void %step({PASS})
  br label %done
done:
  ret void
}}

{CLOCK}
define void @mlc_profile({ARGS}, ptr noundef %ns) #0 {{
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
  call void %step({PASS})
{ADD_TIME}  %next = add i64 %i, 1
  br label %head
done:
  ret void
}}
"""


def _parts(steps: Sequence[Step]) -> list[str]:
    """``mlc_parts``, which runs the loop that is step ``i`` and adds the nanoseconds of its step ``k`` to ``ns[k]``.

    A model without loops has none.
    """
    loops = {k: step for k, step in enumerate(steps) if isinstance(step, LoopSpec)}
    if not loops:
        return []
    cases = " ".join(f"i64 {k}, label %loop{k}" for k in loops)
    calls = "".join(f"loop{k}:\n  call void @mlc.step{k}.timed({PASS}, ptr %ns)\n  br label %done\n" for k in loops)
    return [
        *(timed_loop(f"mlc.step{k}", step) for k, step in loops.items()),
        f"""\
define void @mlc_parts({ARGS}, i64 noundef %i, ptr noundef %ns) #0 {{
  switch i64 %i, label %done [ {cases} ]
{calls}done:
  ret void
}}
""",
    ]

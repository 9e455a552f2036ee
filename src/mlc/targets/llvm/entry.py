"""Entry points of a compiled model: ``mlc_run``, ``mlc_step`` and ``mlc_profile`` over its steps."""

from __future__ import annotations

from collections.abc import Sequence

from mlc.targets.base import CallSpec

_ARGS = "ptr noundef %inputs, ptr noundef %outputs, ptr noundef %params, ptr noundef %workspace, ptr noundef %pool"
_PASS = "ptr %inputs, ptr %outputs, ptr %params, ptr %workspace, ptr %pool"


def entry_points(steps: Sequence[CallSpec]) -> str:
    """LLVM IR of one function a step and of the three entry points.

    ``inputs`` and ``outputs`` are arrays of pointers in the model's order; ``params`` and ``workspace`` are bases to
    which byte offsets are added; ``pool`` may be null.
    """
    parts = [_step(k, step) for k, step in enumerate(steps)]
    calls = "\n".join(f"  call void @mlc.step{k}({_PASS})" for k in range(len(steps)))
    parts.append(f"define i32 @mlc_run({_ARGS}) #0 {{\n{calls}\n  ret i32 0\n}}\n")
    cases = "\n".join(f"    i64 {k}, label %s{k}" for k in range(len(steps)))
    bodies = "\n".join(f"s{k}:\n  call void @mlc.step{k}({_PASS})\n  br label %done" for k in range(len(steps)))
    parts.append(
        f"define void @mlc_step({_ARGS}, i64 noundef %i) #0 {{\n  switch i64 %i, label %done [\n{cases}\n  ]\n{bodies}\n"
        "done:\n  ret void\n}\n"
    )
    parts.append(_profile(len(steps)))
    return "\n".join(parts)


def _step(k: int, step: CallSpec) -> str:
    lines = [f"define internal void @mlc.step{k}({_ARGS}) #0 {{"]
    names = []
    for a, (space, where) in enumerate(step.args):
        if space in ("input", "output"):
            lines.append(f"  %q{a} = getelementptr inbounds ptr, ptr %{space}s, i64 {where}")
            lines.append(f"  %a{a} = load ptr, ptr %q{a}, align 8")
        else:
            base = "params" if space == "param" else "workspace"
            lines.append(f"  %a{a} = getelementptr inbounds i8, ptr %{base}, i64 {where}")
        names.append(f"ptr %a{a}")
    if step.kernel:
        lines.append(f"  %scratch = getelementptr inbounds i8, ptr %workspace, i64 {step.scratch}")
        lines.append(f"  call void @{step.kernel}({', '.join([*names, 'ptr %scratch', 'ptr %pool'])})")
    elif step.nbytes:
        lines.append(f"  call void @llvm.memmove.p0.p0.i64({names[1]}, {names[0]}, i64 {step.nbytes}, i1 false)")
    return "\n".join([*lines, "  ret void", "}", ""])


def _profile(count: int) -> str:
    """Times every step with the monotonic clock and adds its nanoseconds to ``ns[i]``."""
    lines = [
        "declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)",
        "declare i32 @clock_gettime(i32, ptr)",
        "define internal i64 @mlc.now() {",
        "  %t = alloca [2 x i64], align 8",
        "  %r = call i32 @clock_gettime(i32 1, ptr %t)  ; CLOCK_MONOTONIC",
        "  %s = load i64, ptr %t, align 8",
        "  %p = getelementptr inbounds i64, ptr %t, i64 1",
        "  %n = load i64, ptr %p, align 8",
        "  %m = mul i64 %s, 1000000000",
        "  %v = add i64 %m, %n",
        "  ret i64 %v",
        "}",
        f"define void @mlc_profile({_ARGS}, ptr noundef %ns) #0 {{",
        "  %t0 = call i64 @mlc.now()",
    ]
    for k in range(count):
        lines += [
            f"  call void @mlc.step{k}({_PASS})",
            f"  %t{k + 1} = call i64 @mlc.now()",
            f"  %d{k} = sub i64 %t{k + 1}, %t{k}",
            f"  %p{k} = getelementptr inbounds i64, ptr %ns, i64 {k}",
            f"  %o{k} = load i64, ptr %p{k}, align 8",
            f"  %s{k} = add i64 %o{k}, %d{k}",
            f"  store i64 %s{k}, ptr %p{k}, align 8",
        ]
    return "\n".join([*lines, "  ret void", "}", ""])

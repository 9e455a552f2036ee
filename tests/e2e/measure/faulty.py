"""A target whose candidates misbehave when their configuration says so."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlc.errors import CodegenError
from mlc.ir.graph import Node
from mlc.ir.loop import Function
from mlc.rewrite.group import config_of, configured
from mlc.targets.base import Artifact
from mlc.targets.llvm.module import Machine, compile_text
from mlc.targets.x86.target import X86Target
from mlc.tuning.measure import Rule
from tests.unit.tuning.measure.tasks import COLUMNS, ROWS

ARGUMENTS = "ptr %inputs, ptr %outputs, ptr %params, ptr %workspace, ptr %pool"
QUICK = Rule(sample_seconds=0.0002, budget=0.01)  # of times that only have to be times

# Bodies of functions `i32 mlc_run`; %true is what the right kernel gave, and %out the result's address.
_OUT = "  %out = load ptr, ptr %outputs\n"
_TRUE = f"  %true = call i32 @true_run({ARGUMENTS})\n" + _OUT
_WRITE = """\
  br label %loop
loop:
  %fd = phi i32 [ 3, %0 ], [ %next, %loop ]
  %w = call i64 @write(i32 %fd, ptr @reply, i64 {n})
  %next = add i32 %fd, 1
  %more = icmp slt i32 %next, 32
  br i1 %more, label %loop, label %done
done:
"""
KERNELS = {
    "null": "  store volatile i32 1, ptr null\n  ret i32 0",
    "illegal": "  call void @llvm.trap()\n  ret i32 0",
    "divide": "  %a = load volatile i32, ptr @zero\n  %b = load volatile i32, ptr @zero\n"
    "  %q = sdiv i32 %a, %b\n  store volatile i32 %q, ptr @zero\n  ret i32 0",
    "stack": "  %r = call i32 @deeper(i32 0)\n  ret i32 %r",
    "forever": "  br label %loop\nloop:\n  %v = load volatile i32, ptr @zero\n  br label %loop",
    "memory": "  br label %loop\nloop:\n  %m = call ptr @malloc(i64 1048576)\n  store volatile i32 1, ptr %m\n"
    "  br label %loop",
    "beyond": _TRUE
    + f"  %p = getelementptr float, ptr %out, i64 {ROWS * COLUMNS}\n  store float 1.0, ptr %p\n  ret i32 0",
    "before": _TRUE + "  %p = getelementptr float, ptr %out, i64 -1\n  store float 1.0, ptr %p\n  ret i32 0",
    "input": _TRUE + "  %in = load ptr, ptr %inputs\n  store float 7.0, ptr %in\n  ret i32 0",
    "nothing": "  ret i32 0",
    "code": _TRUE + "  ret i32 3",
    "one": _TRUE + "  %p = getelementptr float, ptr %out, i64 777\n  %v = load float, ptr %p\n"
    "  %u = fadd float %v, 1.0\n  store float %u, ptr %p\n  ret i32 0",
    "nan": _TRUE + "  %p = getelementptr float, ptr %out, i64 5\n  store float 0x7FF8000000000000, ptr %p\n  ret i32 0",
    "later": _TRUE + "  %n = load volatile i32, ptr @zero\n  %m = add i32 %n, 1\n  store volatile i32 %m, ptr @zero\n"
    "  %late = icmp sgt i32 %m, 4\n  %w = select i1 %late, float 1.0e9, float 0.0\n  %v = load float, ptr %out\n"
    "  %u = fadd float %v, %w\n  store float %u, ptr %out\n  ret i32 0",
    "garbage": _WRITE.format(n=20) + "  br label %wait\nwait:\n  %v = load volatile i32, ptr @zero\n  br label %wait",
    "huge": _WRITE.format(n=16) + "  br label %wait\nwait:\n  %v = load volatile i32, ptr @zero\n  br label %wait",
    "cut": _WRITE.format(n=16) + "  call void @_exit(i32 0)\n  unreachable",
}
_REPLIES = {
    "garbage": b"all is well, believe me"[:20],
    "huge": b"mlcm" + (64).to_bytes(4, "little") + (1 << 30).to_bytes(8, "little"),
    "cut": b"mlcm" + (64).to_bytes(4, "little") + (64).to_bytes(8, "little"),
}


def faulty_text(fault: str, true: str) -> str:
    """LLVM IR of a module whose ``mlc_run`` has a fault; ``true`` is the right one."""
    reply = "".join(f"\\{b:02X}" for b in _REPLIES.get(fault, b"-"))
    return true.replace("@mlc_run(", "@true_run(") + "\n".join(
        [
            "",
            "@zero = internal global i32 0",
            f'@reply = internal constant [{len(_REPLIES.get(fault, b"-"))} x i8] c"{reply}"',
            "declare void @llvm.trap()",
            "declare ptr @malloc(i64)",
            "declare i64 @write(i32, ptr, i64)",
            "declare void @_exit(i32)",
            "define internal i32 @deeper(i32 %k) noinline {",
            "  %room = alloca [4096 x i8]",
            "  store volatile i32 %k, ptr %room",
            "  %n = add i32 %k, 1",
            "  %r = call i32 @deeper(i32 %n)",
            "  %v = load volatile i32, ptr %room",
            "  %s = add i32 %r, %v",
            "  ret i32 %s",
            "}",
            f"define i32 @mlc_run({ARGUMENTS}) {{",
            KERNELS[fault],
            "}",
            "",
        ]
    )


class FaultyTarget(X86Target):
    """Does as it is told by ``fault`` in a configuration; ``folder`` is where those that start others leave a note."""

    folder: Path
    fault = ""

    def kernel(self, node: Node, name: str, watch: Callable[[str, str], None] | None = None) -> Function:
        config = config_of(node)
        self.fault = config.pop("fault", "")  # no knob of the templates
        node = configured(node, config)
        match self.fault:
            case "sleep":
                time.sleep(600)
            case "stubborn":
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                    signal.signal(number, signal.SIG_IGN)
                time.sleep(600)
            case "grandchild":
                child = os.fork()
                if child == 0:
                    time.sleep(600)
                (self.folder / "grandchild").write_text(str(child), encoding="ascii")
                time.sleep(600)
            case "runaway":
                child = os.fork()
                if child == 0:
                    os.setsid()
                    (self.folder / "runaway").write_text(str(os.getpid()), encoding="ascii")
                    time.sleep(600)
                while not (self.folder / "runaway").exists():
                    time.sleep(0.01)
                os._exit(3)
            case "talkative":
                for _ in range(100):
                    with contextlib.suppress(OSError):
                        os.write(2, b"x" * (1 << 20))
                os.abort()
            case "hungry":
                bytearray(32 << 30)
            case "starved":
                os.write(2, b"LLVM ERROR: out of memory\n")
                os.abort()
            case "wrong":
                raise CodegenError("no such instruction")
            case "bug":
                raise KeyError("a bug")
        return super().kernel(node, name, watch)

    def codegen(self, *args: Any, **kwargs: Any) -> Artifact:
        fault, self.fault = self.fault, ""
        artifact = super().codegen(*args, **kwargs)
        if fault not in KERNELS:
            return artifact
        here = self._machine()
        machine = Machine(here.triple, here.cpu, here.features, here.vector_bits)
        return Artifact(compile_text(faulty_text(fault, artifact.sources["model.ll"]), machine), {})

"""Clocks, for code that times itself."""

_NOW = """\
define internal i64 @{NAME}() {
  %t = alloca [2 x i64], align 8
  %r = call i32 @clock_gettime(i32 {CLOCK}, ptr %t)  ; {WORDS}
  %s = load i64, ptr %t, align 8
  %p = getelementptr inbounds i64, ptr %t, i64 1
  %n = load i64, ptr %p, align 8
  %m = mul i64 %s, 1000000000
  %v = add i64 %m, %n
  ret i64 %v
}
"""


def _now(name: str, number: int, words: str) -> str:
    return _NOW.replace("{NAME}", name).replace("{CLOCK}", str(number)).replace("{WORDS}", words)


CLOCK = "declare i32 @clock_gettime(i32, ptr)\n\n" + _now("mlc.now", 1, "CLOCK_MONOTONIC")
"""LLVM IR of ``@mlc.now()``: nanoseconds since some time in the past."""

THREAD_CLOCK = _now("mlc.spent", 3, "CLOCK_THREAD_CPUTIME_ID")
"""LLVM IR of ``@mlc.spent()``, to go after :data:`CLOCK`: nanoseconds for which the calling thread has had a core."""

ADD_TIME = """\
  %after = call i64 @mlc.now()
  %took = sub i64 %after, %before
  %slot = getelementptr inbounds i64, ptr %ns, i64 %i
  %old = load i64, ptr %slot, align 8
  %new = add i64 %old, %took
  store i64 %new, ptr %slot, align 8
"""
"""LLVM IR of the end of a round: adds the nanoseconds since ``%before`` to element ``%i`` of ``%ns``."""

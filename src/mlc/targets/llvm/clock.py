"""The monotonic clock, for code that times itself."""

CLOCK = """\
declare i32 @clock_gettime(i32, ptr)

define internal i64 @mlc.now() {
  %t = alloca [2 x i64], align 8
  %r = call i32 @clock_gettime(i32 1, ptr %t)  ; CLOCK_MONOTONIC
  %s = load i64, ptr %t, align 8
  %p = getelementptr inbounds i64, ptr %t, i64 1
  %n = load i64, ptr %p, align 8
  %m = mul i64 %s, 1000000000
  %v = add i64 %m, %n
  ret i64 %v
}
"""
"""LLVM IR of ``@mlc.now()``: nanoseconds since some time in the past."""

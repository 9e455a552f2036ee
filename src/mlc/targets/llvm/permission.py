"""Linux gives a process AMX's registers only when it asks for them: they make every thread's state 8 KiB longer."""

from __future__ import annotations

ALLOW = "@mlc.matrices.allow"
"""What functions call before they use such registers; a load and a branch where it was called before."""

# arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA), asm/prctl.h. A refusal ends the program at the first instruction,
# as one that the processor lacks would; mlc asks before it runs a module (mlc.runtime.native). It is no part of its
# callers: LLVM would configure the registers before it. The escape in the name says that it is the symbol's own, so
# that the thread pool's text may declare it as well.
PERMISSION = rf"""
declare i64 @"\01syscall"(i64, ...)

@mlc.matrices.asked = internal global i1 false

define internal void {ALLOW}() noinline nounwind {{
  %asked = load i1, ptr @mlc.matrices.asked
  br i1 %asked, label %done, label %ask
ask:
  %code = call i64 (i64, ...) @"\01syscall"(i64 158, i64 4131, i64 18)
  store i1 true, ptr @mlc.matrices.asked
  br label %done
done:
  ret void
}}
"""

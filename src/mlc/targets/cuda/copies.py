"""Asynchronous copies in PTX: from global to shared memory, past registers, in groups that a thread waits for.

Source: PTX ISA, "cp.async", "cp.async.commit_group" and "cp.async.wait_group", all since 8.0; before, the copies are
plain ones, and there is nothing to wait for. Those of 16 bytes go past the first cache. Fewer bytes read than are
written are filled up by zeros.
"""

from __future__ import annotations

from collections.abc import Mapping

from mlc.lower.overlap import COPIED

MOST_GROUPS = 8  # that may be under way when a thread waits
_CACHES = {4: "ca", 8: "ca", 16: "cg"}


def _copy(n: int, *, zero: bool) -> str:
    name = f"mlc_copy_{n}_or_zero" if zero else f"mlc_copy_{n}"
    more, read = (", %2", ', "r"(there ? BYTES : 0)'.replace("BYTES", str(n))) if zero else ("", "")
    asm = (
        f'asm volatile("cp.async.{_CACHES[n]}.shared.global [%0], [%1], {n}{more};" '
        f':: "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from){read} : "memory");'
    )
    words = f"mlc_vector<unsigned, {n // 4}>"
    value = f"*(const {words}*)from"
    return "\n".join(
        [
            f"void {name}(void* to, const void* from{', bool there' if zero else ''}) {{",
            "#if __CUDA_ARCH__ >= 800",
            f"  {asm}",
            "#else",
            f"  *({words}*)to = {f'there ? {value} : {words}()' if zero else value};",
            "#endif",
            "}",
        ]
    )


def _since_80(head: str, asm: str) -> str:
    return f"{head} {{\n#if __CUDA_ARCH__ >= 800\n  {asm}\n#endif\n}}"


COPIES: Mapping[str, str] = {
    **{f"mlc_copy_{n}": _copy(n, zero=False) for n in COPIED},
    **{f"mlc_copy_{n}_or_zero": _copy(n, zero=True) for n in COPIED},
    "mlc_commit": _since_80("void mlc_commit()", 'asm volatile("cp.async.commit_group;" ::: "memory");'),
    **{
        f"mlc_wait_{n}": _since_80(f"void mlc_wait_{n}()", f'asm volatile("cp.async.wait_group {n};" ::: "memory");')
        for n in range(MOST_GROUPS)
    },
}

"""Products of a warp in PTX: what :mod:`mlc.targets.gpu.tensor_cores` declares, as functions of a thread.

Sources: PTX ISA, "Matrix Fragments for mma.m16n8k16", ``.m16n8k32``, ``.m16n8k8`` and ``.m8n8k16``. A word of 4 bytes
holds neighbouring terms. Of ``A`` a thread has words ``l % 4`` and ``l % 4 + 4`` of rows ``l // 4`` and ``l // 4 + 8``,
of ``B`` the same words of column ``l // 4``; so it is for all types. Before 8.0 there are smaller instructions, which
take half of the terms, and of bytes half of the rows.
"""

from __future__ import annotations

from mlc.targets.gpu.dialect import Collective
from mlc.targets.gpu.tensor_cores import MMAS, Mma

_PTX = {"f16": "f16", "bf16": "bf16", "f32": "tf32", "i8": "s8", "u8": "u8"}
_C = {"f16": "unsigned short", "bf16": "unsigned short", "f32": "float", "i8": "signed char", "u8": "unsigned char"}
_SUMS = {"f32": ("float", "f", "f32"), "i32": ("int", "r", "s32")}
# by bytes of an element; since 8.0, and before
_SHAPES = {1: ("m16n8k32", "m8n8k16"), 2: ("m16n8k16", "m16n8k8"), 4: ("m16n8k8", "")}
_SINCE_80 = ("bf16", "f32")  # types that there was nothing for before
_ROUND = "mlc_to_tf32"
_ROUNDED = (
    f"unsigned {_ROUND}(unsigned a) "
    '{ unsigned r; asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(__uint_as_float(a))); return r; }'
)
_A, _B = ("a0", "a1", "a2", "a3"), ("b0", "b1")


def collective(m: Mma) -> Collective:
    """The call, and the functions behind it."""
    c, _, _ = _SUMS[m.sums.name]
    sync, load = f"mlc_mma_sync_{m.left.name}_{m.right.name}", f"mlc_{m.name}"
    words = 4 // m.left.itemsize
    a = ("x[0]", f"x[rows / {words}]", "x[4]", f"x[rows / {words} + 4]", "y[0]", "y[4]")
    registers = ", ".join(f"{_ROUND}({r})" if m.left.name == "f32" else r for r in a)
    body = (
        "int q = threadIdx.x % 4; "
        "const unsigned* x = (const unsigned*)a + q; "
        "const unsigned* y = (const unsigned*)(b + ((int)(threadIdx.x / 4) - 2 * q) * columns) + q; "
        f"{sync}(c[0], c[right], c[down], c[down + right], {registers});"
    )
    params = (
        f"{c}* c, int down, int right, const {_C[m.left.name]}* a, int rows, const {_C[m.right.name]}* b, int columns"
    )
    return Collective(
        f"{load}({{0}}, {{0.0}}, {{0.1}}, {{1}}, {{1.0}}, {{2}}, {{2.0}});",
        {
            sync: _sync(m, sync),
            **({_ROUND: _ROUNDED} if m.left.name == "f32" else {}),
            load: f"void {load}({params}) {{ {body} }}",
        },
    )


def _sync(m: Mma, name: str) -> str:
    c, _, _ = _SUMS[m.sums.name]
    new, old = _SHAPES[m.left.itemsize]
    sums = ("c0", "c1", "c2", "c3")
    lines = [_asm(m, new, sums, _A, _B)]
    if m.left.name not in _SINCE_80:
        if old == "m16n8k8":
            halves = [_asm(m, old, sums, _A[:2], _B[:1]), _asm(m, old, sums, _A[2:], _B[1:])]
        else:
            halves = [
                _asm(m, old, sums[2 * r : 2 * r + 2], (_A[r + 2 * k],), (_B[k],)) for r in range(2) for k in range(2)
            ]
        lines = ["#if __CUDA_ARCH__ >= 800", *lines, "#else", *halves, "#endif"]
    params = ", ".join([*(f"{c}& {x}" for x in sums), *(f"unsigned {x}" for x in (*_A, *_B))])
    return "\n".join([f"void {name}({params}) {{", *lines, "}"])


def _asm(m: Mma, shape: str, c: tuple[str, ...], a: tuple[str, ...], b: tuple[str, ...]) -> str:
    _, kind, sums = _SUMS[m.sums.name]
    places = iter(range(len(c) + len(a) + len(b)))
    d, x, y = ("{" + ", ".join(f"%{next(places)}" for _ in names) + "}" for names in (c, a, b))
    left, right = (_PTX[t.name] for t in (m.left, m.right))
    text = f"mma.sync.aligned.{shape}.row.col.{sums}.{left}.{right}.{sums} {d}, {x}, {y}, {d};"
    outs = ", ".join(f'"+{kind}"({v})' for v in c)
    ins = ", ".join(f'"r"({v})' for v in (*a, *b))
    return f'  asm volatile("{text}" : {outs} : {ins});'


COLLECTIVES = {m.name: collective(m) for m in MMAS.values()}

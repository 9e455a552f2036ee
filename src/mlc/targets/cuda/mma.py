"""Products of a warp in PTX: what :mod:`mlc.targets.gpu.tensor_cores` declares, as functions of a thread.

Sources: PTX ISA, "ldmatrix"; "Matrix Fragments for mma.m16n8k16", ``.m16n8k32``, ``.m16n8k8`` and ``.m8n8k16``. A word
of 4 bytes holds neighbouring terms. Of ``A`` a thread has words ``l % 4`` and ``l % 4 + 4`` of rows ``l // 4`` and
``l // 4 + 8``, of ``B`` the same words of column ``l // 4``; so it is for all types. Where elements are of 2 bytes,
rows of ``A`` or columns of ``B`` may be neighbours instead, and are turned as they are loaded. Before 8.0 there are
smaller instructions, which take half of the terms, and of bytes half of the rows.
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
_DEVICE = "__device__ inline"
_ROUND = "mlc_to_tf32"
_ROUNDED = (
    f"{_DEVICE} unsigned {_ROUND}(unsigned a) "
    '{ unsigned r; asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(__uint_as_float(a))); return r; }'
)
_A, _B = ("a0", "a1", "a2", "a3"), ("b0", "b1")


def _ldmatrix(n: int) -> str:
    """Matrices of 8 rows of 16 bytes; a thread says where a row begins, and gets a word of each matrix, or of what it
    is transposed, elements of 2 bytes."""
    results = [f"r{k}" for k in range(n)]
    params = ", ".join([*(f"unsigned& {r}" for r in results), "const void* row"])
    registers = ", ".join(f"%{k}" for k in range(n))
    outs = ", ".join(f'"=r"({r})' for r in results)
    place = '"r"((unsigned)__cvta_generic_to_shared(row))'
    turned, straight = (
        f'asm volatile("ldmatrix.sync.aligned.m8n8.x{n}{how}.shared.b16 {{{registers}}}, [%{n}];" '
        f': {outs} : {place} : "memory");'
        for how in (".trans", "")
    )
    return (
        f"template <bool Turned> {_DEVICE} void mlc_ldmatrix_{n}({params}) {{\n"
        f"  if (Turned) {turned}\n  else {straight}\n}}"
    )


# Threads 8 * m to 8 * m + 7 say where the rows of matrix m begin. Of a tile of A, these are its upper rows, its lower
# rows, and both again for the second half of the terms; of B, the halves of a tile's columns, and of the next tile's.
# Where it is the terms that are S, or T, apart, and rows or columns that are neighbours, matrices lie transposed.
_TILES = """\
template <int R, int C, int S, int T> {device} void {name}(
    {sum}* c, int high, int down, int wide, int right,
    const {left}* a, int tile, int eight, const {right}* b, int next, int one) {{
  const int l = threadIdx.x, half = 16 / (int)sizeof(*a);
  const {left}* x = a - l / 4 * (eight / 8) + l / 8 % 2 * eight + l / 16 * half * S + l % 8 * (S == 1 ? eight / 8 : S);
  const {right}* y = b - l % 4 * 2 * one + l / 8 % 2 * half * T + l / 16 * next + l % 8 * (T == 1 ? one : T);
  unsigned p[R][4], q[C][2];
  #pragma unroll
  for (int i = 0; i < R; ++i) mlc_ldmatrix_4<S != 1>(p[i][0], p[i][1], p[i][2], p[i][3], x + i * tile);
  #pragma unroll
  for (int j = 0; j < C / 2 * 2; j += 2)
    mlc_ldmatrix_4<T != 1>(q[j][0], q[j][1], q[j + 1][0], q[j + 1][1], y + j * next);
  if (C % 2) mlc_ldmatrix_2<T != 1>(q[C - 1][0], q[C - 1][1], y + (C - 1) * next);
{rounded}  #pragma unroll
  for (int i = 0; i < R; ++i) {{
    #pragma unroll
    for (int j = 0; j < C; ++j) {{
      {sum}* t = c + i * high + j * wide;
      {sync}(t[0], t[right], t[down], t[down + right], p[i][0], p[i][1], p[i][2], p[i][3], q[j][0], q[j][1]);
    }}
  }}
}}"""
_ALL_ROUNDED = "".join(
    f"  #pragma unroll\n  for (int i = 0; i < {n}; ++i) for (int k = 0; k < {words}; ++k) "
    f"{array}[i][k] = {_ROUND}({array}[i][k]);\n"
    for array, n, words in (("p", "R", 4), ("q", "C", 2))
)


def collective(m: Mma) -> Collective:
    """The call, and the functions behind it."""
    c, _, _ = _SUMS[m.sums.name]
    sync, name, rounds = f"mlc_mma_sync_{m.left.name}_{m.right.name}", f"mlc_{m.name}", m.left.name == "f32"
    types = {"sum": c, "left": _C[m.left.name], "right": _C[m.right.name]}
    tiles = _TILES.format(device=_DEVICE, name=name, sync=sync, rounded=_ALL_ROUNDED if rounds else "", **types)
    strides = ["{0}", *(f"{{0.{d}}}" for d in range(4)), "{1}", "{1.0}", "{1.1}", "{2}", "{2.0}", "{2.1}"]
    return Collective(
        f"{name}<{{#0}}, {{#2}}, {{1.2}}, {{2.2}}>({', '.join(strides)});",
        {
            sync: _sync(m, sync),
            **({_ROUND: _ROUNDED} if rounds else {}),
            **{f"mlc_ldmatrix_{n}": _ldmatrix(n) for n in (2, 4)},
            name: tiles,
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
    return "\n".join([f"{_DEVICE} void {name}({params}) {{", *lines, "}"])


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

"""Linking, wherever the system has room for code."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

# A constant, which the code reads relative to where it stands, and a call of something of the process.
CODE = """
@table = internal constant [4 x double] [double 1.0, double 2.0, double 4.0, double 8.0]
declare double @exp2(double)
define double @kernel(i64 %i) {
  %at = getelementptr [4 x double], ptr @table, i64 0, i64 %i
  %x = load double, ptr %at
  %y = call double @exp2(double %x)
  ret double %y
}
"""

# Takes 128 GiB of addresses and every hole above them, then frees some pages 5 GiB apart: sections that are mapped one
# by one come to lie in different holes.
PROGRAM = """
import ctypes, sys
from mlc.runtime.native import link

code = open(sys.argv[1], "rb").read()
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def take(size):
    return libc.mmap(None, size, 0, 0x4022, -1, 0)  # PROT_NONE; private, anonymous, no memory behind it


link(code, ["kernel"])  # whatever else LLVM allocates once
room = take(1 << 37)
while take(4096) > room:
    pass
for hole, pages in enumerate(map(int, sys.argv[2:]), 1):
    libc.munmap(room + (1 << 37) - hole * (5 << 30), pages * 4096)
jit, symbols = link(code, ["kernel"])
kernel = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64)(symbols["kernel"])
print([kernel(i) for i in range(4)])
"""


@pytest.mark.parametrize(
    "holes", [(1, 2, 3, 4), (5, 1, 1, 1), (1, 40, 1, 40)], ids=lambda holes: "-".join(map(str, holes))
)
def test_scattered_addresses_do_not_part_an_object(holes, compile_ir, tmp_path: Path) -> None:
    path = tmp_path / "kernel.o"
    path.write_bytes(compile_ir(CODE))
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(path), *map(str, holes)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout) == (0, "[2.0, 4.0, 16.0, 256.0]\n"), run.stderr

"""Instructions and misses of kernels, counted by Valgrind's cachegrind while a C program runs them once.

Valgrind knows AVX2 and no later instructions, and its first-level cache is the host's in size, without prefetching.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from mlc.ir.graph import Node, Value
from mlc.runtime import open_package
from mlc.targets.bench import Program

EVENTS = {"instructions": "Ir", "reads": "Dr", "read misses": "D1mr", "writes": "Dw", "write misses": "D1mw"}


def counts(path: Path, folder: Path) -> dict[str, dict[str, int]]:
    """The events of each kernel, by its name; of one run, on one thread.

    Args:
        path: of a package for a processor with AVX2.
        folder: to build in.
    Raises:
        SystemExit: there is no C compiler, or no Valgrind.
        subprocess.CalledProcessError: one of them fails.
    """
    require_tools()
    with open_package(path) as opened:
        for name in opened.names():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(opened.read(name))
    program = [folder / "examples/main.c", folder / "lib/model.o", "-o", folder / "main", "-lm", "-lpthread"]
    subprocess.run(["cc", "-O1", f"-I{folder / 'include'}", *program], check=True, capture_output=True)
    return by_function(_counted(folder, folder / "params.safetensors", "-t", "1"))


def counts_of_candidate(program: Program, node: Node, folder: Path) -> dict[str, int]:
    """The events of one run of a candidate, on one thread, over operands of zeros.

    Args:
        program: an object that exports ``mlc_run``, for a processor with AVX2.
        node: whose operands it takes, with their layouts.
        folder: to build in.
    Raises:
        SystemExit: there is no C compiler, or no Valgrind.
        subprocess.CalledProcessError: one of them fails.
    """
    require_tools()

    def rooms(values: Sequence[Value]) -> str:
        return ", ".join(f"room({v.type.nbytes})" for v in values)

    main = _MAIN.format(inputs=rooms(node.inputs), outputs=rooms(node.outputs), scratch=program.scratch)
    (folder / "main.c").write_text(main)
    (folder / "kernel.o").write_bytes(program.data)
    subprocess.run(
        ["cc", "-O1", folder / "main.c", folder / "kernel.o", "-o", folder / "main", "-lm"],
        check=True, capture_output=True,
    )  # fmt: skip
    return by_function(_counted(folder), r"(kernel|mlc)")["kernel"]


_MAIN = """\
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
int32_t mlc_run(void *const *inputs, void *const *outputs, void *params, void *workspace, void *pool);
void mlc_parallel(void *pool, void (*fn)(void *, int64_t, int64_t), void *ctx, int64_t n) {{ fn(ctx, 0, n); }}
static void *room(size_t bytes) {{
  size_t whole = (bytes + 127) / 64 * 64;
  void *place = aligned_alloc(64, whole);
  return memset(place, 0, whole);
}}
int main(void) {{
  void *inputs[] = {{{inputs}}}, *outputs[] = {{{outputs}}}, *scratch = room({scratch});
  return mlc_run(inputs, outputs, scratch, scratch, NULL);
}}
"""


def require_tools() -> None:
    """Ends the program where something that counting takes is missing; to be called before hours of searching, too.

    Raises:
        SystemExit: there is no C compiler, or no Valgrind.
    """
    for tool in ("cc", "valgrind"):
        if shutil.which(tool) is None:
            raise SystemExit(f"counting takes {tool}, which is not installed")


def _counted(folder: Path, *arguments: Path | str) -> str:
    """What cachegrind writes of a run of a folder's ``main``."""
    out = folder / "cachegrind.out"
    tool = ["valgrind", "--tool=cachegrind", "--cache-sim=yes", f"--cachegrind-out-file={out}"]
    subprocess.run([*tool, folder / "main", *arguments], check=True, capture_output=True, cwd=folder)
    return out.read_text()


def by_function(text: str, names: str = r"k\d+_[a-z0-9_]+") -> dict[str, dict[str, int]]:
    """The events of each kernel in a cachegrind file; those of parts of a kernel are added to it.

    Args:
        text: of the file.
        names: a pattern of what the names of functions begin with; what has a group is added up under ``kernel``.

    >>> by_function("events: Ir I1mr Dr D1mr\\nfn=k0_conv\\n0 10 1 4 2\\nfn=k0_conv.outlined\\n0 5 0 1 0\\n")
    {'k0_conv': {'instructions': 15, 'reads': 5, 'read misses': 2}}
    """
    found: dict[str, dict[str, int]] = {}
    columns: list[str] = []
    kernel = ""
    for line in text.splitlines():
        if line.startswith("events:"):
            columns = line.split()[1:]
        elif line.startswith("fn="):
            match = re.match(names, line[3:])
            kernel = "" if match is None else "kernel" if match.groups() else match.group()
        elif kernel and line[:1].isdigit():
            values: Mapping[str, int] = dict(zip(columns, map(int, line.split()[1:]), strict=False))
            events = found.setdefault(kernel, {})
            for name, event in EVENTS.items():
                if event in values:
                    events[name] = events.get(name, 0) + values[event]
    return found

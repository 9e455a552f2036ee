"""Instructions and misses of a package's kernels, counted by Valgrind's cachegrind while a C program runs it once.

Valgrind knows AVX2 and no later instructions, and its first-level cache is the host's in size, without prefetching.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from mlc.runtime import open_package

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
    for tool in ("cc", "valgrind"):
        if shutil.which(tool) is None:
            raise SystemExit(f"counting takes {tool}, which is not installed")
    with open_package(path) as opened:
        for name in opened.names():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(opened.read(name))
    program = [folder / "examples/main.c", folder / "lib/model.o", "-o", folder / "main", "-lm", "-lpthread"]
    subprocess.run(["cc", "-O1", f"-I{folder / 'include'}", *program], check=True, capture_output=True)
    out = folder / "cachegrind.out"
    subprocess.run(
        ["valgrind", "--tool=cachegrind", "--cache-sim=yes", f"--cachegrind-out-file={out}", folder / "main",
         folder / "params.safetensors", "-t", "1"],
        check=True, capture_output=True, cwd=folder,
    )  # fmt: skip
    return by_function(out.read_text())


def by_function(text: str) -> dict[str, dict[str, int]]:
    """The events of each kernel in a cachegrind file; those of parts of a kernel are added to it.

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
            match = re.match(r"k\d+_[a-z0-9_]+", line[3:])
            kernel = match.group() if match else ""
        elif kernel and line[:1].isdigit():
            values: Mapping[str, int] = dict(zip(columns, map(int, line.split()[1:]), strict=False))
            events = found.setdefault(kernel, {})
            for name, event in EVENTS.items():
                if event in values:
                    events[name] = events.get(name, 0) + values[event]
    return found

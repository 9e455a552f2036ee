"""The innermost loops of a kernel's assembly, and how many cycles LLVM's machine code analyser grants them."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from mlc.runtime.toolchain import machine_of, run_tool

_ITERATIONS = 100
_LABEL = re.compile(r"^(\.L\w+):")
_BRANCH = re.compile(r"^\s+(?:j\w+|b\.?\w*|cbn?z\s+\w+,|tbn?z\s+\w+, *#\d+,)\s+(\.L\w+)\s*(?:[#/@].*)?$")
_MULTIPLY_ADDS = (
    "fmla", "vfmadd", "vpdpbusd", "vdpbf16ps", "vpmaddwd", "sdot", "smmla", "smull", "bfdot", "bfmmla", "mulps",
    "smlal", "vpopcnt", "vpshufb", "cnt",
)  # fmt: skip


@dataclass(frozen=True)
class InnerLoop:
    """A loop without loops in it.

    Args:
        text: its instructions, a line each.
        multiply_adds: instructions among them that multiply vectors, or count bits.
        cycles: of an iteration, as ``llvm-mca`` has it; ``None`` where there is none, or it does not know the
            processor.
        least: cycles that its busiest unit is needed for, if nothing ever waits; likewise.
    """

    text: tuple[str, ...]
    multiply_adds: int
    cycles: float | None = None
    least: float | None = None


def inner_loops(assembly: str) -> Iterator[InnerLoop]:
    """The innermost loops of a function, in its order."""
    label = ""
    lines: list[str] = []
    for line in assembly.splitlines():
        found = _LABEL.match(line)
        if found is not None:
            label, lines = found[1], []
            continue
        text = line.strip()
        if not text or text.startswith((".", "#", "//", ";")):
            continue
        lines.append(text)
        branch = _BRANCH.match(line)
        if branch is not None and branch[1] == label and label:
            yield InnerLoop(tuple(lines), sum(t.split()[0].startswith(_MULTIPLY_ADDS) for t in lines))
            label = ""


def heaviest_loop(assembly: str) -> InnerLoop | None:
    """The innermost loop with the most products; nothing where none has any."""
    found = max(inner_loops(assembly), key=lambda each: each.multiply_adds, default=None)
    return None if found is None or not found.multiply_adds else found


def analysed(found: InnerLoop, triple: str, cpu: str) -> InnerLoop:
    """The loop with its cycles, where ``llvm-mca`` is installed and knows the processor."""
    tool = shutil.which("llvm-mca")
    if tool is None:
        return found
    with tempfile.TemporaryDirectory(prefix="mlc-mca-") as folder:
        source, result = Path(folder) / "loop.s", Path(folder) / "out"
        # the jump back is predicted, and its target is not there
        source.write_text("\n".join(found.text[:-1]) + "\n")
        options = (f"-mtriple={machine_of(triple)}", f"-mcpu={cpu}", f"-iterations={_ITERATIONS}", "-o", str(result))
        try:
            status, said = run_tool((tool, *options, str(source)), seconds=60)
        except (OSError, subprocess.TimeoutExpired):
            return found
        report = result.read_text() if status == 0 else ""
    total = re.search(r"^Total Cycles:\s+(\d+)", report, re.MULTILINE)
    least = re.search(r"^Block RThroughput:\s+([\d.]+)", report, re.MULTILINE)
    if total is None or least is None or "is not a recognized processor" in said:
        return found
    return replace(found, cycles=int(total[1]) / _ITERATIONS, least=float(least[1]))

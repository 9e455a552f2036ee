"""Whether untuned models compile as fast as they did: ``python -m benchmarks.compile_times REVISION [MODEL ...]``.

Compiles models of the zoo without records, here and with the compiler that a revision of this repository has, in turns,
and compares the least processor time of the whole process. Exit code 1 where the geometric mean grew by more than 5 %.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import onnx
from rich.console import Console

from benchmarks.identical import checked_out
from benchmarks.report import table
from benchmarks.stats import geometric_mean

MOST = 1.05  # times as long as before
USUAL = ("resnet18", "mobilenet_v2", "bert_tiny")
_HERE = Path(__file__).parents[1]


def seconds_of(model: Path, target: str, sources: Path, package: Path) -> float:
    """Processor time of a compilation by some sources of the compiler, that of its processes included.

    Raises:
        SystemExit: they cannot compile it.
    """
    command = [sys.executable, "-m", "mlc", "-q", "compile", str(model), "--target", target, "--no-records"]
    # a revision has no compiled files of its own before its first run
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [*command, "-o", str(package)], env={**inherited, "PYTHONPATH": str(sources / "src")}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"python -m benchmarks.compile_times: {sources}: {model.stem}: {done.stderr.strip()}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; ``arguments`` default to those of the process. Returns 1 where compilation became slower."""
    from benchmarks.zoo import MODELS, build

    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile_times", description=__doc__)
    parser.add_argument("revision", help="what to compare with, such as HEAD~3 or a tag")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of the zoo (default: {', '.join(USUAL)})")
    parser.add_argument("--target", default="x86 -mcpu=znver4", help="what to compile for (default: %(default)s)")
    parser.add_argument("--small", action="store_true", help="small versions of the models")
    parser.add_argument("--runs", type=int, default=3, help="of each, in turns (default: %(default)s)")
    given = parser.parse_args(arguments)
    names = given.models or list(USUAL)
    if unknown := [name for name in names if name not in MODELS]:
        parser.error(f"no such model in the zoo: {', '.join(unknown)}")
    rows, ratios = [], []
    with checked_out(given.revision) as before, tempfile.TemporaryDirectory() as folder:
        for name in names:
            path = Path(folder) / f"{name}.onnx"
            onnx.save(build(name, small=given.small), path)
            least = {before: float("inf"), _HERE: float("inf")}
            for _ in range(given.runs):
                for sources in least:
                    took = seconds_of(path, given.target, sources, Path(folder) / "m.tar")
                    least[sources] = min(least[sources], took)
            ratios.append(least[_HERE] / least[before])
            rows.append((name, f"{least[before]:.2f}", f"{least[_HERE]:.2f}", f"{ratios[-1]:.3f}"))
    heads = ("model", f"{given.revision} s", "here s", "ratio")
    Console(width=200).print("\n".join(table(heads, rows)), highlight=False, markup=False)
    mean = geometric_mean(ratios)
    print(f"geometric mean: {mean:.3f} times as long as before")
    return int(mean > MOST)


if __name__ == "__main__":
    sys.exit(main())

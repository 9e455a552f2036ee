"""Whether untuned kernels are what they were: ``python -m benchmarks.identical REVISION [MODEL ...]``.

Compiles models of the zoo without records, here and with the compiler that a revision of this repository has, and
compares the texts of all kernels (``src/kernels.txt`` of the packages). Nothing is run on the target. Exit code 1 where
any text differs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
from rich.console import Console

from benchmarks.report import table

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHOWN = 3  # names of kernels that differ, of a model
_HERE = Path(__file__).parents[1]


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """The files of a revision, in a folder that is removed afterwards.

    Raises:
        SystemExit: there is no such revision.
    """
    with tempfile.TemporaryDirectory(prefix="mlc-") as folder:
        archive = Path(folder) / "revision.tar"
        done = subprocess.run(
            ["git", "archive", "-o", str(archive), revision, "src"], cwd=_HERE, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"python -m benchmarks.identical: {done.stderr.strip()}")
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
        yield Path(folder)


def kernels_of(model: Path, target: str, sources: Path, package: Path) -> list[str]:
    """Texts of the kernels that some sources of the compiler make of a model.

    Raises:
        SystemExit: they cannot compile it.
    """
    command = [sys.executable, "-m", "mlc", "-q", "compile", str(model), "--target", target, "--no-records"]
    done = subprocess.run(
        [*command, "-o", str(package)], env={**os.environ, "PYTHONPATH": str(sources / "src")}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"python -m benchmarks.identical: {sources}: {model.stem}: {done.stderr.strip()}")
    with tarfile.open(package) as tar:
        member = tar.extractfile("src/kernels.txt")
        assert member is not None, "a file"
        return [text for text in f"\n{member.read().decode()}".split("\n### ") if text.strip()]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; ``arguments`` default to those of the process. Returns 1 where kernels differ."""
    from benchmarks.zoo import MODELS, build

    parser = argparse.ArgumentParser(prog="python -m benchmarks.identical", description=__doc__)
    parser.add_argument("revision", help="what to compare with, such as HEAD~3 or a tag")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="of the zoo (default: all)")
    parser.add_argument("--target", default="x86 -mcpu=znver4", help="what to compile for (default: %(default)s)")
    parser.add_argument("--small", action="store_true", help="the reduced variants of networks")
    options = parser.parse_args(arguments)
    rows, different = [], 0
    with checked_out(options.revision) as before, tempfile.TemporaryDirectory(prefix="mlc-") as folder:
        for name in options.models or MODELS:
            model, package = Path(folder) / f"{name}.onnx", Path(folder) / f"{name}.tar"
            onnx.save(build(name, small=options.small), model)
            old, new = (Counter(kernels_of(model, options.target, s, package)) for s in (before, _HERE))
            changed = list((new - old).elements())
            names = [text.split("\n", 1)[0] for text in changed]
            shown = ", ".join(names[:_SHOWN]) + (" …" if len(names) > _SHOWN else "")
            rows.append((name, str(old.total()), str(new.total()), str((new & old).total()), shown))
            different += len(changed) + (old - new).total()
            model.unlink()
            package.unlink()
    columns = ("model", "kernels before", "now", "the same", "not the same")
    Console(width=200).print("\n".join(table(columns, rows, left=1)), highlight=False, markup=False)
    return 1 if different else 0


if __name__ == "__main__":
    raise SystemExit(main())

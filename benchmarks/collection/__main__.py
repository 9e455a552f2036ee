"""Writes the collection as ONNX files: ``python -m benchmarks.collection DIR``. What is there already stays."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.collection import ENTRIES
from benchmarks.collection.entry import export


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns 1 if a network could not be exported."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.collection", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/collection"), help="where files go")
    parser.add_argument("--models", metavar="A,B", help="names; all by default")
    parser.add_argument("--list", action="store_true", help="print the names and leave")
    options = parser.parse_args(arguments)
    names = options.models.split(",") if options.models else list(ENTRIES)
    unknown = [name for name in names if name not in ENTRIES]
    if unknown:
        parser.error(f"not in the collection: {', '.join(unknown)}; --list prints what is")
    if options.list:
        print("\n".join(names))
        return 0
    options.folder.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in names:
        file = options.folder / f"{name}.onnx"
        if file.exists():
            continue
        try:
            export(ENTRIES[name], file)
        except Exception as error:  # what a foreign library raises while it builds or traces a network
            failed.append(name)
            print(
                f"{name}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}", file=sys.stderr
            )
        else:
            print(f"{name}: {file.stat().st_size / 2**20:.1f} MiB", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

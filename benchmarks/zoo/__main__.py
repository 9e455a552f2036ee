"""Writes models of the zoo to ONNX files: ``python -m benchmarks.zoo resnet18 -o resnet18.onnx``."""

from __future__ import annotations

import argparse
from pathlib import Path

import onnx

from benchmarks.zoo import MODELS, build, is_model, original_of, parameter_count


def _save(name: str, file: Path, batch: int, small: bool) -> None:
    model = build(name, batch, small)
    file.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, file)
    count = parameter_count(model)
    size = f"{count / 1e6:.2f} million" if count >= 1e5 else f"{count:,}"
    original = original_of(name)
    what = MODELS[name].description if original is None else f"{MODELS[original].description}, in 8 bits"
    print(f"{file}: {what}; {size} parameters, batch {batch}")


def main(arguments: list[str] | None = None) -> None:
    """The command line; ``arguments`` default to those of the process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=__doc__)
    parser.add_argument("name", nargs="?", metavar="NAME", help="a model (see --list); NAME.int8: a network in 8 bits")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="PATH", help="the file, or with --all the folder, to write"
    )
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="the fixed batch size (default 1)")
    parser.add_argument("--small", action="store_true", help="the reduced variant for tests")
    parser.add_argument("--all", action="store_true", help="write every model into the folder given by -o")
    parser.add_argument("--list", action="store_true", help="list the models")
    options = parser.parse_args(arguments)

    if options.list:
        for spec in MODELS.values():
            print(f"{spec.name:14} {spec.kind:9} {spec.description}")
        return
    if options.all == bool(options.name):
        parser.error("give one of NAME, --all and --list")
    if options.name and not is_model(options.name):
        parser.error(f"no model is called {options.name!r}; see --list")
    if options.batch < 1:
        parser.error("--batch must be at least 1")
    if options.all:
        if options.output is None:
            parser.error("--all needs a folder: -o DIR")
        for name in MODELS:
            _save(name, options.output / f"{name}.onnx", options.batch, options.small)
        return
    _save(options.name, options.output or Path(f"{options.name}.onnx"), options.batch, options.small)


if __name__ == "__main__":
    main()

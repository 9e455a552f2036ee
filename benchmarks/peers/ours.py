"""This compiler: compiled ahead of time into a ``module.tar``, run by its own runtime.

Options are those of ``mlc.compile`` by their Python names, for example ``mlc[opt_level=1]``,
``mlc[disabled_passes=fuse+algebra]`` or ``mlc[target=x86 -mcpu=haswell]``. Kernels are untuned unless ``records=FILE``
says otherwise. ``source=DIR`` takes the compiler and runtime from another checkout's ``src``, to compare two states of
the code.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks.peers import KernelTime, Options, Session, aligned
from benchmarks.stats import Arrays

WORDS = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}


def keywords(options: Options) -> dict[str, Any]:
    """Options as arguments of ``mlc.compile``: words for switches, whole numbers, and names separated by ``+``."""
    found: dict[str, Any] = {}
    for key, text in options.items():
        if key == "source":
            continue
        if key in ("disabled_passes", "records"):
            found[key] = tuple(text.split("+"))
        elif text.lower() in WORDS:
            found[key] = WORDS[text.lower()]
        else:
            found[key] = int(text) if text.isascii() and text.isdigit() else text
    return found


def _use_source(options: Options) -> None:
    """Makes ``import mlc`` find another checkout; nothing has imported it yet in this process."""
    if "source" not in options:
        return
    folder = Path(options["source"])
    if not (folder / "mlc" / "__init__.py").is_file():
        raise FileNotFoundError(f"there is no package mlc in {folder}")
    assert "mlc" not in sys.modules
    sys.path.insert(0, str(folder))


def compile(model: Path, folder: Path, options: Options) -> Path:
    """Compiles an ``.onnx`` file for this machine's processor."""
    _use_source(options)
    import mlc

    package = folder / "module.tar"
    # peers are not tuned for this machine either: no records but those that are asked for
    mlc.compile(mlc.load(model), **{"records": (), **keywords(options)}).save(package)
    return package


def load(file: Path, threads: int, inputs: Arrays, options: Options) -> Session:
    """Maps the package, and binds inputs and outputs."""
    _use_source(options)
    from mlc.runtime import load_module

    module = load_module(file, threads=threads)
    outputs = {name: aligned(array) for name, array in module.run(inputs).items()}

    def profile() -> list[KernelTime]:
        times = module.profile(inputs)
        return [KernelTime(t.step.kernel, t.median_ns / 1e6, t.step.flops, t.step.bytes) for t in times]

    return Session(lambda: module.run(inputs, outputs), lambda: outputs, profile)

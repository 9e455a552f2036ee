"""The networks of ``keras.applications``, read as Keras saves them and as ONNX, both compiled by us and timed in turns.

``python -m benchmarks.applications DIR`` writes ``NAME.keras`` and ``NAME.onnx`` (Keras with torch exports), and the
module of each; what is there already stays. With ``--time OUT`` it only times the modules that are there, on one
thread, and writes ``OUT/bench.json`` and ``OUT/bench.md``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.report import table
from benchmarks.stats import Spread, geometric_mean, largest_error, paired_ratio

APPLICATIONS = (
    "MobileNet", "MobileNetV2", "MobileNetV3Small", "ResNet50", "ResNet50V2", "DenseNet121", "EfficientNetB0",
    "EfficientNetV2B0", "InceptionV3", "Xception", "NASNetMobile", "ConvNeXtTiny",
)  # fmt: skip
SUFFIXES = (".keras", ".onnx")
SEED = 0
OPSET = 17
ROUNDS, BLOCK_SECONDS = 10, 0.2
# What batch normalisations hold, drawn as training leaves it: not all alike, so that nothing folds away.
_DRAWN = {"gamma": (0.6, 1.4), "beta": (-0.1, 0.1), "moving_mean": (-0.1, 0.1), "moving_variance": (0.6, 1.4)}


def build(name: str) -> Any:
    """A network with random weights, as a ``keras.Model``."""
    import keras

    keras.utils.set_random_seed(SEED)
    if name == "NASNetMobile":  # which Keras does not offer with torch, for a padding that is right by now
        from keras.src.applications.nasnet import NASNet

        model = NASNet((224, 224, 3), 1056, 4, 32, skip_reduction=False, weights=None, default_size=224)
    else:
        shape = {"input_shape": (224, 224, 3)} if name == "MobileNetV3Small" else {}  # which leaves it open otherwise
        model = getattr(keras.applications, name)(weights=None, **shape)
    rng = np.random.default_rng(SEED)
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.set_weights([rng.uniform(*_DRAWN[v.name], v.shape).astype(np.float32) for v in layer.weights])
    return model


def export(name: str, folder: Path) -> None:
    """Writes ``NAME.keras`` and ``NAME.onnx``, the latter for one image.

    Raises:
        OSError: a file cannot be written.
    """
    import torch

    model = build(name).eval()
    (entry,) = model.inputs
    images = (torch.zeros(1, *entry.shape[1:]),)
    aside = folder / f"{name}.partial"
    names = {"input_names": [entry.name], "output_names": [model.layers[-1].name]}
    with torch.no_grad(), warnings.catch_warnings():
        # Of what the exporter thinks of itself, and of constants that tracing makes of sizes.
        warnings.simplefilter("ignore")
        model.save(folder / f"{name}.keras")
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # where a refusal prints the whole graph
                torch.onnx.export(model, images, str(aside), opset_version=OPSET, dynamo=False, **names)
        except torch.onnx.errors.SymbolicValueError:
            # Where Keras works a padding out of sizes, these have to become numbers first.
            fixed = torch.export.export(model, images).module()
            graph = torch.fx.GraphModule(fixed, fixed.graph)
            torch.onnx.export(graph, images, str(aside), opset_version=OPSET, dynamo=False, **names)
    aside.rename(folder / f"{name}.onnx")


def compile_pair(name: str, folder: Path) -> None:
    """Writes ``NAME.keras.tar`` and ``NAME.onnx.tar``: both files compiled for this processor, without records."""
    import mlc

    for suffix in SUFFIXES:
        package = folder / f"{name}{suffix}.tar"
        if not package.exists():
            mlc.compile(mlc.load(folder / f"{name}{suffix}"), records=()).save(package)


def time_pair(name: str, folder: Path) -> dict[str, Any]:
    """Both modules on one thread, in blocks that take turns, and how far their results differ."""
    from mlc.runtime import load_module

    modules = {suffix: load_module(folder / f"{name}{suffix}.tar", threads=1) for suffix in SUFFIXES}
    shape = modules[".onnx"].inputs[0].shape
    image = np.random.default_rng(SEED).uniform(0, 255, shape).astype(np.float32)
    feeds = {suffix: {module.inputs[0].name: image} for suffix, module in modules.items()}
    results = {suffix: module.run(feeds[suffix]) for suffix, module in modules.items()}
    blocks: dict[str, list[list[float]]] = {suffix: [] for suffix in SUFFIXES}
    for k in range(ROUNDS):
        for suffix in SUFFIXES if k % 2 else SUFFIXES[::-1]:
            blocks[suffix].append(_block(lambda m=modules[suffix], f=feeds[suffix], r=results[suffix]: m.run(f, r)))
    for module in modules.values():
        module.close()
    ratio = paired_ratio(blocks[".onnx"], blocks[".keras"])
    assert ratio is not None
    plain = [{"output": next(iter(results[suffix].values()))} for suffix in SUFFIXES]
    found = {suffix: Spread.of([t * 1e3 for block in blocks[suffix] for t in block]) for suffix in SUFFIXES}
    return {"name": name, "keras": found[".keras"], "onnx": found[".onnx"], "ratio": ratio,
            "error": largest_error(*plain)}  # fmt: skip


def _block(run: Any) -> list[float]:
    """Seconds of runs that fill a block, behind one that does not count."""
    run()
    times: list[float] = []
    while sum(times) < BLOCK_SECONDS or len(times) < 2:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times


def write(rows: Sequence[dict[str, Any]], out: Path) -> str:
    """The report for programs and for people; gives the table."""
    out.mkdir(parents=True, exist_ok=True)
    plain = [{k: _plain(v) for k, v in row.items()} for row in rows]
    document = {"machine": machine.describe(), "networks": plain}
    (out / "bench.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    lines = [
        (
            row["name"],
            *(f"{row[kind].median:.2f} ± {row[kind].mad:.2f}" for kind in ("keras", "onnx")),
            f"{row['ratio'].median:.3f} ± {row['ratio'].mad:.3f}",
            f"{row['error']:.0e}",
        )
        for row in rows
    ]
    columns = ("network", "from .keras, ms", "from .onnx, ms", "ONNX / Keras", "difference")
    mean = geometric_mean(r["ratio"].median for r in rows)
    about = (
        f"One thread, blocks of {BLOCK_SECONDS} s in turns, {ROUNDS} rounds; medians ± median absolute deviation. "
        f"Above 1: faster from Keras's file; geometric mean {mean:.3f}. Differences are over the largest magnitude."
    )
    facts = [f"- {key}: {value}" for key, value in machine.describe().items()]
    head = ["# keras.applications, read from Keras and from ONNX", "", *facts, "", about, ""]
    text = "\n".join([*head, *table(columns, lines, left=1), ""])
    (out / "bench.md").write_text(text, encoding="utf-8")
    return text


def _plain(value: Any) -> Any:
    """A spread as a document; anything else as it is."""
    return {"median": value.median, "mad": value.mad, "count": value.count} if isinstance(value, Spread) else value


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; ``arguments`` default to those of the process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.applications", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/applications"), help="where files are")
    parser.add_argument("--models", metavar="A,B", help="names; all by default")
    parser.add_argument("--time", type=Path, metavar="OUT", help="time what is there, and write the report here")
    options = parser.parse_args(arguments)
    names = options.models.split(",") if options.models else list(APPLICATIONS)
    unknown = [name for name in names if name not in APPLICATIONS]
    if unknown:
        parser.error(f"not among them: {', '.join(unknown)}; there are {', '.join(APPLICATIONS)}")
    if options.time:
        there = [n for n in names if all((options.folder / f"{n}{suffix}.tar").exists() for suffix in SUFFIXES)]
        print(write([time_pair(name, options.folder) for name in there], options.time))
        return 0
    os.environ["KERAS_BACKEND"] = "torch"
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        if not (options.folder / f"{name}.onnx").exists():
            export(name, options.folder)
        compile_pair(name, options.folder)
        print(name, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""``mlc import``: read a model, say what is in it, and save it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlc.cli.console import Console, file_bytes, one_line, require_distinct, require_writable, status, write_json
from mlc.cli.group import Command
from mlc.cli.options import LoadOptions, json_option, load_options
from mlc.cli.progress import CompileProgress
from mlc.cli.quantize import QuantizeOptions, quantize_options, show_quantization
from mlc.errors import UsageError

if TYPE_CHECKING:
    from mlc.api import Model


@click.command(
    cls=Command,
    examples="""
    mlc import resnet18.onnx --check
    mlc import resnet18.onnx -o resnet18.mlc
    mlc import bert.onnx --dim batch=1 --dim sequence=128 -o bert.mlc
    mlc import resnet18.onnx --quantize int8 --calibrate images.npz -o resnet18-int8.mlc
    mlc import detector.onnx --shape image=1,3,640,640 --const iou_threshold=0.5 -o detector.mlc
    """,
)
@click.argument("model")
@click.option("-o", "--output", metavar="FILE.mlc", help="Save the imported model; every command can read it.")
@click.option("--check", is_flag=True, help="Only check that the model can be imported.")
@load_options
@quantize_options
@click.option(
    "--quantize-for", metavar="TARGET", default="x86", show_default=True,
    help="What --quantize chooses scales for.",
)  # fmt: skip
@json_option
@click.pass_obj
def command(
    console: Console,
    model: str,
    output: str | None,
    check: bool,
    load_options: LoadOptions,
    quantize: QuantizeOptions | None,
    quantize_for: str,
    json_file: str | None,
) -> None:
    """Import MODEL, show what is in it, and save it with -o; with --quantize, as a model of 8-bit integers."""
    if check and output:
        raise UsageError("--check writes nothing, so it cannot stand with -o", hint="leave one of them out")
    require_distinct([model], [output, json_file])
    require_writable(output, json_file)
    with status(console, f"importing {model}"):
        loaded = load_options.load(model)
    quantized = None
    if quantize is not None:
        with CompileProgress(console) as progress:
            quantized = quantize.quantize(loaded, quantize_for, progress)
        loaded = quantized.model
    if output:
        loaded.save(output)
    show_model(console, model, loaded)
    if quantized is not None:
        console.say(show_quantization(console, quantized))
    if check:
        console.say("every operator can be imported")
    if output:
        console.say(f"saved as {output}, {file_bytes(Path(output).stat().st_size)}")
    document = {**model_json(loaded), "output": output}
    if quantized is not None:
        document["quantization"] = quantized.to_json()
    write_json(console, json_file, "import", document)


def show_model(console: Console, path: str, model: Model) -> None:
    """The summary of an imported model."""
    info = model.info
    kind = info.format if model.format == info.format else f"saved model, first imported from {info.format}"
    versions = ", ".join(f"{domain} {version}" for domain, version in info.opsets.items())
    facts = [kind, f"opset {versions}" if versions else "", f"from {info.producer}" if info.producer else ""]
    console.say(one_line(f"{path}: {'; '.join(filter(None, facts))}"))
    rows = [
        (role, tensor.name, f"{tensor.dtype}[{','.join(map(str, tensor.shape))}]")
        for role, tensors in (("input", model.inputs), ("output", model.outputs))
        for tensor in tensors
    ]
    console.say(console.table(("", "name", "type"), rows))
    counts = operator_counts(model)
    console.say(f"{sum(counts.values())} core operators: {', '.join(f'{name} {n}' for name, n in counts.items())}")
    elements, size = parameter_size(model)
    console.say(f"{elements:,} parameters, {file_bytes(size)}")


def operator_counts(model: Model) -> dict[str, int]:
    """How often each core operator occurs, most frequent first."""
    counts = Counter(node.op.name for node in model.graph.nodes)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def parameter_size(model: Model) -> tuple[int, int]:
    """Elements and bytes of all constants."""
    arrays = model.graph.constants.values()
    return sum(a.size for a in arrays), sum(a.nbytes for a in arrays)


def model_json(model: Model) -> dict[str, Any]:
    """An imported model as it stands in JSON documents."""
    info = model.info
    elements, size = parameter_size(model)
    return {
        "format": model.format,
        "model": {
            "name": info.name,
            "path": info.path,
            "sha256": info.sha256,
            "format": info.format,
            "producer": info.producer,
            "opsets": dict(info.opsets),
            "constants": [c.name for c in info.constants],
        },
        "inputs": [{"name": t.name, "dtype": t.dtype, "shape": list(t.shape)} for t in model.inputs],
        "outputs": [{"name": t.name, "dtype": t.dtype, "shape": list(t.shape)} for t in model.outputs],
        "operators": operator_counts(model),
        "parameters": {"elements": elements, "bytes": size},
    }

"""``mlc compile``: from a model to a ``module.tar``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlc.cli import values
from mlc.cli.compile_views import show_layouts, show_offloads
from mlc.cli.console import Console, file_bytes, require_distinct, require_folder, require_writable, status, write_json
from mlc.cli.group import Command, did_you_mean
from mlc.cli.options import LoadOptions, json_option, load_options
from mlc.cli.precision import (
    bf16_option,
    emulation_option,
    fp16_option,
    keep_option,
    layers_option,
    measured,
    report_option,
    require_reason,
    show_accuracy,
    tf32_option,
    weights_option,
    with_tf32,
)
from mlc.cli.progress import CompileProgress
from mlc.cli.quantize import QuantizeOptions, quantize_options, show_quantization
from mlc.errors import UsageError
from mlc.settings import MAX_KERNELS, MAX_OPT_LEVEL

if TYPE_CHECKING:
    from mlc.api import Package, Quantization, Report
    from mlc.runtime import Manifest


@click.command(
    cls=Command,
    examples="""
    mlc compile resnet18.onnx -o resnet18.tar
    mlc compile resnet18.onnx --target x86 -mcpu=haswell -o resnet18.tar
    mlc compile model.onnx --target help
    mlc compile bert.onnx --dim batch=1 --dim sequence=128 -o bert.tar
    mlc compile resnet18.onnx -O1 --time-passes --dump-ir ir --dry-run
    mlc compile resnet18.onnx --quantize int8 --calibrate images.npz -o resnet18.tar
    mlc compile lstm.onnx --weights int8 --accuracy-on typical.npz -o lstm.tar
    mlc compile bert.onnx --dim batch=1 --dim sequence=128 --bf16 -o bert.tar
    mlc compile resnet18.onnx --target cuda --fp16 --keep-f32 add -o resnet18.tar
    mlc compile resnet18.onnx --quantize int8 --calibrate images.npz --calibration mse --quantize-report --dry-run
    mlc compile resnet18.onnx --target vdla --quantize int8 --calibrate images.npz --dump-offloads
    """,
)
@click.argument("model")
@click.option(
    "--target", default="x86", show_default=True, metavar="TARGET",
    help="What to compile for, as arm or arm -mcpu=cortex-a72; 'help' lists the targets.",
)  # fmt: skip
@click.option("-o", "--output", default="module.tar", show_default=True, metavar="FILE", help="The package to write.")
@click.option(
    "-O", "opt_level", type=values.Whole(0, MAX_OPT_LEVEL), default=MAX_OPT_LEVEL, show_default=True, metavar="0..3",
    help="How much to optimise.",
)  # fmt: skip
@load_options
@click.option("--name", metavar="NAME", help="Name of the model; the C symbols of its package begin with it.")
@click.option("--disable-pass", "--disabled-pass", multiple=True, metavar="A,B", help="Leave out passes.")
@click.option("--no-winograd", is_flag=True, help="Convolve directly, in the order of the model's own sums.")
@click.option(
    "--fast-math", type=click.Choice(["on", "off"]), default="on", show_default=True,
    help="off: no Winograd, and no a*b + c rounded once.",
)  # fmt: skip
@click.option("--dump-ir", type=click.Path(path_type=Path), metavar="DIR", help="Write the program after every pass.")
@click.option("--print-ir-after", multiple=True, metavar="PASS", help="Print the program after a pass.")
@click.option("--verify-passes", is_flag=True, help="Check the program after every pass.")
@click.option("--check-regions", is_flag=True, help="Run the accelerator's programs against the interpreter.")
@click.option("--time-passes", "--print-pass-times", is_flag=True, help="Show what every pass took.")
@click.option(
    "--records", "--tuning-records", "records", multiple=True, metavar="FILE",
    help="Tuning records (files or folders) to take configurations from; may be repeated.  "
    "[default: those of this program, and of mlc tune]",
)  # fmt: skip
@click.option("--no-records", is_flag=True, help="Take no configurations from records.")
@click.option("--require-tuned", is_flag=True, help="Fail if the records lack a kernel.")
@quantize_options
@weights_option
@bf16_option
@fp16_option
@keep_option
@tf32_option
@emulation_option
@report_option
@layers_option
@click.option("--dump-offloads", is_flag=True, help="Show what runs on the accelerator, and why the rest does not.")
@click.option(
    "--dump-layouts",
    is_flag=True,
    help="Show how every tensor lies in memory, who asked for it, and where data are converted.",
)
@click.option(
    "--threads", type=values.Whole(1, 1024), metavar="N",
    help="Threads that will run the model: records of as many are preferred, and more than eight run no batches in"
    " slices.  [default: all cores]",
)  # fmt: skip
@click.option("--max-memory", metavar="SIZE", help="Refuse a model that needs more to run, e.g. 512M.")
@click.option(
    "--max-kernels", type=values.Whole(1, 1_000_000), default=MAX_KERNELS, show_default=True, metavar="N",
    help="Refuse a model that takes more distinct kernels.",
)  # fmt: skip
@click.option(
    "--functions", metavar="DIR",
    help="Kernels that were compiled into this folder before, for this machine, are used again; others are left there.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Compile, but write no package.")
@json_option
@click.pass_obj
def command(
    console: Console,
    model: str,
    target: str,
    output: str,
    opt_level: int,
    load_options: LoadOptions,
    name: str | None,
    disable_pass: tuple[str, ...],
    no_winograd: bool,
    fast_math: str,
    dump_ir: Path | None,
    print_ir_after: tuple[str, ...],
    verify_passes: bool,
    check_regions: bool,
    time_passes: bool,
    records: tuple[str, ...],
    no_records: bool,
    require_tuned: bool,
    quantize: QuantizeOptions | None,
    weights: str | None,
    bf16: bool,
    fp16: bool,
    keep_f32: tuple[str, ...],
    tf32: bool,
    allow_emulation: bool,
    accuracy_on: str | None,
    accuracy_report: bool,
    dump_offloads: bool,
    dump_layouts: bool,
    threads: int | None,
    max_memory: str | None,
    max_kernels: int,
    functions: str | None,
    dry_run: bool,
    json_file: str | None,
) -> None:
    """Compile MODEL (.onnx, .tflite, .keras, .h5, .mlc) into a package that mlc run, or a program of yours, can run."""
    if target.strip() == "help":
        from mlc.cli.targets import show_targets

        show_targets(console)
        return
    from mlc.api import compile as compile_model
    from mlc.api.options import require_products
    from mlc.targets.base import get_target

    # What can be refused at once is refused before the model is read.
    target = with_tf32(target, tf32=tf32)
    machine = get_target(target)
    if dump_offloads and machine.accelerator is None:
        raise UsageError(f"--dump-offloads: the target {target!r} has no accelerator", hint="for example --target vdla")
    if check_regions and machine.accelerator is None:
        raise UsageError(f"--check-regions: the target {target!r} has no accelerator", hint="for example --target vdla")
    if no_records and (records or require_tuned):
        raise UsageError("--no-records contradicts --records and --require-tuned", hint="leave one of them out")
    kept, lossy = values.comma_separated(keep_f32), weights is not None or bf16 or fp16 or tf32
    require_products(machine, target, weights, bf16=bf16, fp16=fp16, keep_f32=kept, allow_emulation=allow_emulation)
    require_reason(accuracy_on, by_layer=accuracy_report, lossy=lossy)
    memory = None if max_memory is None else values.size(max_memory, "--max-memory")
    after = values.comma_separated(print_ir_after)
    dump_ir = dump_ir or console.settings.dump
    if not dry_run:
        require_writable(output)
    require_distinct([model, *records], [None if dry_run else output, json_file])
    require_writable(json_file)
    require_folder(dump_ir)
    with status(console, f"importing {model}"):
        loaded = load_options.load(model)
    with CompileProgress(console, after) as progress:
        quantized = None if quantize is None else quantize.quantize(loaded, target, progress)
        package = compile_model(
            loaded if quantized is None else quantized.model,
            target,
            opt_level=opt_level,
            disabled_passes=(*values.comma_separated(disable_pass), *(("winograd",) if no_winograd else ())),
            fast_math=fast_math == "on",
            verify_passes=verify_passes or console.settings.verify,
            check_regions=check_regions,
            list_layouts=dump_layouts,
            dump_dir=dump_ir,
            max_memory=memory,
            max_kernels=max_kernels,
            functions=functions,
            records=() if no_records else records or None,
            require_tuned=require_tuned,
            threads=threads,
            name=name,
            weights=weights,
            bf16=bf16,
            fp16=fp16,
            keep_f32=kept,
            allow_emulation=allow_emulation,
            observer=progress,
        )
        _require_seen(after, progress.passes)
        if not dry_run:
            progress.stage("write")
            package.save(output)
        accuracy = None
        if lossy:
            progress.stage("compare with the model in full precision")
            again = partial(
                compile_model, target=target, weights=weights, bf16=bf16, fp16=fp16, keep_f32=kept,
                allow_emulation=allow_emulation, records=(),
            )  # fmt: skip
            accuracy = measured(console, loaded, package, accuracy_on, again if accuracy_report else None)
    if time_passes:
        console.say(_times(console, package.report, 0.0 if quantized is None else quantized.seconds))
    for notice in package.notices:
        console.note(f"note: {notice}")
    for finding in package.findings:
        if finding.reason:
            console.note(f"warning: {finding.name} is compiled untuned, its record no longer fits: {finding.reason}")
    if records:
        console.say(_found(console, package))
    if quantized is not None:
        console.say(show_quantization(console, quantized))
    if accuracy is not None:
        console.say(show_accuracy(console, accuracy, accuracy_on))
    if dump_offloads:
        console.say(show_offloads(console, package))
    if dump_layouts:
        console.say(show_layouts(console, package))
    console.say(_summary(package, None if dry_run else output, quantized, checked=check_regions))
    document = _document(package, None if dry_run else output)
    if accuracy is not None:
        document["accuracy"] = [a.to_json() for a in accuracy.outputs]
        if accuracy_report:
            document["layers"] = [layer.to_json() for layer in accuracy.layers]
    if quantized is not None:
        document["quantization"] = quantized.to_json()
    if package.placements is not None:
        document["layouts"] = package.placements.to_json()
    write_json(console, json_file, "compile", document)


def _require_seen(wanted: tuple[str, ...], seen: list[str]) -> None:
    """Complains of passes to print after which never ran."""
    for name in wanted:
        if name not in seen:
            raise UsageError(f"--print-ir-after: no pass {name!r} ran", hint=did_you_mean(name, seen))


def _times(console: Console, report: Report, quantising: float) -> str:
    whole = report.seconds + quantising
    passes = [*([("quantise", quantising)] if quantising else []), *report.passes]
    rows = [(name, f"{seconds * 1e3:.1f}", f"{100 * seconds / (whole or 1.0):.1f}") for name, seconds in passes]
    rows.append(("all", f"{whole * 1e3:.1f}", "100.0"))
    return console.table(("pass", "ms", "%"), rows, numbers=("ms", "%"))


def _found(console: Console, package: Package) -> str:
    """What the tuning records had for each kernel."""
    rows = []
    for f in package.findings:
        best = f.record.result.seconds if f.record is not None else None
        threads = "" if f.record is None else f.record.threads
        rows.append((f.name, len(f.sources), f.found, "" if best is None else f"{best * 1e3:.3f}", threads))
    numbers = ("calls", "measured ms", "threads")
    return console.table(("kernel", "calls", "records", "measured ms", "threads"), rows, numbers=numbers)


def _summary(package: Package, output: str | None, quantized: Quantization | None, *, checked: bool) -> str:
    manifest = package.manifest
    seconds = package.report.seconds + (0.0 if quantized is None else quantized.seconds)
    facts = {
        "target": manifest.target.string,
        "kernels": f"{kernel_count(manifest)}, called in {len(manifest.calls)} steps{_tuned(package)}",
        "parameters": file_bytes(manifest.memory.params_bytes),
        "workspace": file_bytes(manifest.memory.workspace_bytes),
        "compiled in": f"{seconds:.2f} s, {file_bytes(package.report.peak_bytes)} at most",
    }
    if package.functions:
        facts["functions"] = f"{package.functions['found']} from the folder, {package.functions['made']} compiled"
    if package.offloads:
        facts["accelerator"] = _taken_over(package)
    if checked and package.programs:
        facts["checked"] = "every program against the interpreter, on random data"
    head = "nothing is written" if output is None else f"{output}: {file_bytes(Path(output).stat().st_size)}"
    width = max(map(len, facts))
    return "\n".join([head, *(f"  {key:{width}}  {text}" for key, text in facts.items())])


def _tuned(package: Package) -> str:
    hits = sum(f.found == "hit" for f in package.findings)
    return f"; {hits} tuned" if hits else ""


def _taken_over(package: Package) -> str:
    """How much of the model runs on the accelerator."""
    taken = [d for d in package.offloads if d.region]
    if not taken:
        return "takes over nothing; --dump-offloads says why"
    programs = len(package.programs)
    return f"takes over {len(taken)} operations, in {programs} program{'s'[: programs > 1]}"


def _document(package: Package, output: str | None) -> dict[str, Any]:
    manifest = package.manifest
    return {
        "output": output,
        "bytes": Path(output).stat().st_size if output else None,
        "model": manifest.model.to_json(),
        "target": manifest.target.to_json(),
        "inputs": [spec.to_json() for spec in manifest.inputs],
        "outputs": [spec.to_json() for spec in manifest.outputs],
        "kernels": kernel_count(manifest),
        "steps": len(manifest.calls),
        "notices": list(package.notices),
        "memory": manifest.memory.to_json(),
        "functions": dict(package.functions),
        "offloads": [d.to_json() for d in package.offloads],
        "programs": {name: dict(facts) for name, facts in package.programs.items()},
        "tuned": [
            {
                "workload": f.workload,
                "name": f.name,
                "sources": list(f.sources),
                "found": f.found,
                "threads": None if f.record is None else f.record.threads,
                "reason": f.reason,
            }
            for f in package.findings
        ],
        **package.report.to_json(),
    }


def kernel_count(manifest: Manifest) -> int:
    """How many different kernels the steps call."""
    return len({step.kernel for step, _ in manifest.calls})

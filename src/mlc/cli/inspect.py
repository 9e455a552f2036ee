"""``mlc inspect``: what is in a model, a module or a file of tuning records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import click

from mlc.cli.console import Console, file_bytes, one_line, status, write_json
from mlc.cli.group import Command, did_you_mean
from mlc.cli.inspect_estimates import show_estimates
from mlc.cli.inspect_records import is_records, show_records
from mlc.cli.options import LoadOptions, is_package, json_flag, load_options
from mlc.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from mlc.runtime import Manifest, Package
    from mlc.targets.gpu.listing import KernelReport

_SOURCES_SHOWN = 4


@click.command(
    cls=Command,
    examples="""
    mlc inspect resnet18.onnx
    mlc inspect resnet18.tar
    mlc inspect resnet18.tar --json
    mlc inspect resnet18.tar --asm k3_conv_add_relu
    mlc inspect resnet18.tar --sass k3_conv_add_relu --arch sm_90
    mlc inspect resnet18.onnx --graph --dim batch=1
    mlc inspect resnet18.onnx --gradient --dim batch=16
    mlc inspect board.tar --estimate
    mlc inspect resnet18.jsonl
    """,
)
@click.argument("file")
@click.option("--graph", is_flag=True, help="Print the graph: of a model as imported, of a module as compiled.")
@click.option("--asm", metavar="KERNEL", help="Print the assembly of a kernel.")
@click.option(
    "--src", metavar="KERNEL",
    help="Print how a kernel came about: expression, schedule, loops; of a GPU's kernel, the text.",
)  # fmt: skip
@click.option("--ptx", metavar="KERNEL", help="Print the assembly of an NVIDIA GPU's kernel.")
@click.option("--sass", metavar="KERNEL", help="Print the machine code of an NVIDIA GPU's kernel.")
@click.option("--arch", metavar="SM_XX", help="For --ptx and --sass: of which GPU.  [default: the newest]")
@click.option("--gradient", is_flag=True, help="Print the gradient of each distinct operator of a model, as derived.")
@click.option(
    "--estimate", is_flag=True, help="Print the cycles that kernels are expected to take, and what bounds them."
)
@load_options
@json_flag
@click.pass_obj
def command(
    console: Console,
    file: str,
    graph: bool,
    asm: str | None,
    src: str | None,
    ptx: str | None,
    sass: str | None,
    arch: str | None,
    gradient: bool,
    estimate: bool,
    load_options: LoadOptions,
    json_file: str | None,
) -> None:
    """Show what is in FILE: a model (.onnx, .tflite, .keras, .h5, .mlc), a module.tar, or tuning records (.jsonl)."""
    code = {"asm": asm, "src": src, "ptx": ptx, "sass": sass}
    asked = [(kind, kernel) for kind, kernel in code.items() if kernel is not None]
    if len(asked) > 1:
        raise UsageError(f"--{asked[0][0]} contradicts --{asked[1][0]}", hint="leave one of them out")
    if arch is not None and ptx is None and sass is None:
        raise UsageError("--arch is only for --ptx and --sass", hint="add one of these, or leave it out")
    if is_records(file):
        if load_options.given or graph or asked or estimate or gradient:
            raise UsageError(f"{file}: holds tuning records; of these --json is the only option", hint="leave it out")
        show_records(console, file, json_file)
        return
    if is_package(file):
        from mlc.runtime import open_package

        if load_options.given:
            raise UsageError(
                "--shape, --dim, --const, --input-layout and --model-format are for models", hint="leave them out"
            )
        if gradient:
            raise UsageError(f"{file}: is compiled; gradients are derived from a model", hint="give the model")
        with open_package(file) as package:
            if graph:
                console.text(package.read("graph.txt").decode("utf-8", "replace"))
            elif asked:
                console.text(_listing(package, *asked[0], arch))
            elif estimate:
                show_estimates(console, file, package, json_file)
            else:
                _show_package(console, file, package, json_file)
        return
    if asked or estimate:
        raise UsageError(f"{file}: is a model; only a module.tar has kernels", hint="compile it first: mlc compile")
    if graph:
        console.text(repr(load_options.load(file).graph))
        return
    if gradient:
        from mlc.training.listing import gradient_text

        console.text(gradient_text(load_options.load(file).graph))
        return
    _show_model(console, file, load_options, json_file)


def _listing(package: Package, kind: str, kernel: str, arch: str | None) -> str:
    """The code of one kernel."""
    from mlc.api import device_kernels, device_listing
    from mlc.harness import listing

    if kind in ("ptx", "sass"):
        return device_listing(package, kernel, kind, arch)
    texts = {name: package.read(name).decode("utf-8", "replace") for name in package.names() if name.startswith("src/")}
    known = list(dict.fromkeys([*(step.kernel for step, _ in package.manifest.calls), *listing.kernels(texts)]))
    on_device = [name for k in device_kernels(package) for name in (k.kernel.rpartition("_")[0], k.kernel)]
    if kind == "src" and kernel in on_device:
        return device_listing(package, kernel, kind)
    if kernel not in known:
        known += on_device
        raise UsageError(f"{package.path}: there is no kernel {kernel!r}", hint=did_you_mean(kernel, known))
    if kind == "asm":
        from mlc.api import assembly

        texts["src/model.s"] = assembly(package)
    found = listing.assembly(texts, kernel) if kind == "asm" else listing.source(texts, kernel)
    if not found:
        raise UsageError(
            f"{package.path}: holds no {'assembly' if kind == 'asm' else 'source'} of {kernel}",
            hint=f"it has: {', '.join(texts) or 'no sources'}",
        )
    return found


def _show_package(console: Console, path: str, package: Package, json_file: str | None) -> None:
    from mlc.api import device_kernels

    manifest = package.manifest
    model, target, memory = manifest.model, manifest.target, manifest.memory
    kernels = kernel_facts(manifest)
    on_device = device_kernels(package)
    document = {"kind": "module", **manifest.to_json(), "kernels": kernels}
    document["device_kernels"] = [k.to_json() for k in on_device]
    write_json(console, json_file, "inspect", document)
    if json_file is not None:
        return
    console.data(one_line(f"{path}: module {model.name!r}, made by mlc {manifest.mlc_version}"))
    facts = {
        "compiled from": f"{model.source or 'unknown'} (sha256 {model.sha256[:16]}…)",
        "target": target.string,
        "needs": ", ".join(target.features) or "nothing special",
        "parameters": file_bytes(memory.params_bytes),
        "workspace": file_bytes(memory.workspace_bytes),
        "members": ", ".join(f"{name} {file_bytes(m.size)}" for name, m in manifest.members.items()),
    }
    if manifest.device is not None:
        facts["device"] = f"{manifest.device.name}, {file_bytes(manifest.device.memory_bytes)} of its memory"
    console.data("\n".join(f"  {key:13}  {one_line(text)}" for key, text in facts.items()))
    ports = [("seed" if t.name == manifest.seed else "input", t.name, t) for t in manifest.inputs]
    ports += [("output", t.name, t) for t in manifest.outputs]
    console.data("\n" + console.table(("", "name", "type"), ports))
    heads = ("steps", "MFLOP", "MB")
    rows = [
        (
            k["kernel"],
            k["steps"],
            f"{k['flops'] / 1e6:.2f}",
            f"{k['bytes'] / 1e6:.2f}",
            _shortened(k["sources"]),
        )
        for k in kernels
    ]
    console.data("\n" + console.table(("kernel", *heads, "nodes of the model"), rows, heads))
    if on_device:
        console.data("\n" + _device_table(console, on_device))


def _device_table(console: Console, kernels: Sequence[KernelReport]) -> str:
    """What each kernel takes of the device, a row for each architecture."""
    heads = ("launches", "blocks", "threads", "MFLOP", "MB", "registers", "spilled B", "shared B", "occupancy %")
    rows: list[tuple[object, ...]] = []
    for k in kernels:
        common = (k.steps, prod(k.grid), prod(k.block), f"{k.flops / 1e6:.2f}", f"{k.bytes / 1e6:.2f}")
        if not k.resources:
            rows.append((k.kernel, "", *common, "", "", k.shared, f"{100 * k.occupancy['']:.0f}", k.bound))
        for arch, r in k.resources.items():
            taken = (r.registers, r.spill_stores + r.spill_loads, r.shared, f"{100 * k.occupancy.get(arch, 0):.0f}")
            rows.append((k.kernel, arch, *common, *taken, k.bound))
    return console.table(("device kernel", "arch", *heads, "bound by"), rows, heads)


def kernel_facts(manifest: Manifest) -> list[dict[str, Any]]:
    """Each kernel with its steps, operations and bytes of all of them, in the order of their first step.

    A step of a loop counts once, with what it does in all rounds.
    """
    found: dict[str, dict[str, Any]] = {}
    for step, _ in manifest.calls:
        facts = found.setdefault(
            step.kernel, {"kernel": step.kernel, "steps": 0, "flops": 0, "bytes": 0, "sources": []}
        )
        facts["steps"] += 1
        facts["flops"] += step.flops
        facts["bytes"] += step.bytes
        facts["sources"] += step.sources
    return list(found.values())


def _show_model(console: Console, path: str, load_options: LoadOptions, json_file: str | None) -> None:
    from mlc.api import survey

    found = survey(path, limits=load_options.limits, frontend=load_options.frontend)
    with status(console, f"importing {path}"):
        problems, hint = _problems(path, load_options)
    document = {
        "kind": "model",
        "format": found.format,
        "name": found.name,
        "producer": found.producer,
        "versions": dict(found.versions),
        "inputs": [{"name": name, "type": kind} for name, kind in found.inputs],
        "outputs": [{"name": name, "type": kind} for name, kind in found.outputs],
        "operators": dict(found.operators),
        "parameters": {"elements": found.parameters, "bytes": found.parameter_bytes},
        "importable": not problems,
        "problems": problems,
    }
    write_json(console, json_file, "inspect", document)
    if json_file is not None:
        return
    console.data(
        one_line(f"{path}: {found.format} model {found.name!r}, from {found.producer or 'an unknown program'}")
    )
    console.data(one_line(f"  operator sets  {_pairs(found.versions)}"))
    console.data(f"  parameters     {found.parameters:,} ({file_bytes(found.parameter_bytes)})")
    ports = [(role, *port) for role, ts in (("input", found.inputs), ("output", found.outputs)) for port in ts]
    console.data("\n" + console.table(("", "name", "type"), ports))
    numbers = ("count",)
    console.data("\n" + console.table(("operator", "count"), list(found.operators.items()), numbers))
    console.data("")
    if not problems:
        console.data("it can be imported")
        return
    console.data("it cannot be imported as it stands:")
    console.data("\n".join(f"  {one_line(problem)}" for problem in problems))
    if hint:
        console.text(f"hint: {hint}")


def _problems(path: str, load_options: LoadOptions) -> tuple[list[str], str]:
    """Why a model cannot be imported, all reasons, and what to do; empty when it can."""
    try:
        load_options.load(path)
    except (UnsupportedError, UsageError) as error:
        # A list of reasons comes as one line each.
        return [line.strip() for line in error.message.splitlines() if line.strip()], error.hint
    return [], ""


def _pairs(mapping: Mapping[str, object]) -> str:
    return ", ".join(f"{key} {value}" for key, value in mapping.items())


def _shortened(names: list[str]) -> str:
    more = f" and {len(names) - _SOURCES_SHOWN} more" if len(names) > _SOURCES_SHOWN else ""
    return ", ".join(names[:_SOURCES_SHOWN]) + more

"""``mlc vdla sim``: a program on the simulated accelerator: what it computes, and what that costs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlc.cli import values
from mlc.cli.console import Console, require_writable, status, write_json
from mlc.cli.group import Command, did_you_mean
from mlc.cli.options import json_option_named
from mlc.cli.vdla import read_program, region_option, write_file
from mlc.errors import CheckFailedError, UsageError
from mlc.settings import MAX_SEED

if TYPE_CHECKING:
    import numpy as np

    from mlc.vdla.program import Program
    from mlc.vdla.sim import Report


@click.command(
    cls=Command,
    examples="""
    mlc vdla sim conv.vdla
    mlc vdla sim conv.vdla --inputs x.npz --outputs y.npz
    mlc vdla sim resnet18.tar --no-exec --trace trace.json --roofline roofline.svg
    mlc vdla sim conv.vdla --vdla dram_latency=100 --vdla dma_outstanding=1
    """,
)
@click.argument("program", metavar="PROGRAM")
@region_option
@click.option("--inputs", "-i", metavar="FILE.npz", help="Inputs by name; those not given are random.")
@click.option("--outputs", "-o", metavar="FILE.npz", help="Save the outputs by name, as flat arrays.")
@click.option("--seed", type=values.Whole(0, MAX_SEED), default=0, show_default=True, help="Seed of random inputs.")
@click.option("--no-exec", is_flag=True, help="Simulate time alone, and compute nothing.")
@click.option("--no-check", is_flag=True, help="Simulate a stream that is not valid; see mlc vdla check.")
@click.option("--vdla", "fields", multiple=True, metavar="FIELD=VALUE", help="Other times than the program's; repeat.")
@click.option("--trace", metavar="FILE.json", help="Write when each unit did what, for ui.perfetto.dev.")
@click.option("--roofline", metavar="FILE.svg", help="Draw the layers under the roofline; also .png, .pdf.")
@json_option_named("--json", "--report")
@click.pass_obj
def command(
    console: Console,
    program: str,
    region: str | None,
    inputs: str | None,
    outputs: str | None,
    seed: int,
    no_exec: bool,
    no_check: bool,
    fields: tuple[str, ...],
    trace: str | None,
    roofline: str | None,
    json_file: str | None,
) -> None:
    """Run PROGRAM (.vdla, assembly text or a module.tar) on the simulator.

    Shows cycles, utilisation (util: cycles in which the array multiplied; eta: the roofline's cycles over those it
    took), and for every layer what its units waited for and what moved.
    """
    from mlc.harness.arrays import write_npz
    from mlc.vdla import reports
    from mlc.vdla.config import overridden
    from mlc.vdla.sim import Device
    from mlc.vdla.sim.trace import trace as trace_of

    require_writable(outputs, trace, roofline, json_file)
    suffix = "" if roofline is None else Path(roofline).suffix
    if roofline is not None and suffix not in reports.PICTURES:
        raise UsageError(f"--roofline {roofline}: expected one of {', '.join(reports.PICTURES)}")
    if no_exec and (inputs or outputs):
        raise UsageError("--no-exec computes nothing: --inputs and --outputs have no use", hint="leave one of them out")
    loaded = read_program(program, region=region)
    device = Device(overridden(loaded.config, fields))
    device.check(loaded)
    if not no_check:
        _require_valid(console, program, loaded)
    results = {} if no_exec else _bind(device.bind, loaded, inputs, seed)
    with status(console, f"simulating {len(loaded.instructions)} instructions"):
        report = device.run(loaded, exec=not no_exec)
    if outputs is not None:
        write_npz(outputs, results)
    if trace is not None:
        write_file(trace, json.dumps(trace_of(report), separators=(",", ":")).encode())
    if roofline is not None:
        picture = reports.roofline({"": reports.points(report)}, report.config, suffix, Path(program).name)
        write_file(roofline, picture)
    write_json(console, json_file, "vdla sim", {"executed": not no_exec, **report.to_dict()})
    _show(console, report)


def _require_valid(console: Console, path: str, program: Program) -> None:
    """A stream that is not valid computes one thing or another: refused, with the first fault."""
    from mlc.vdla.check import check, describe

    with status(console, f"checking {len(program.instructions)} instructions"):
        found = check(program, limit=1)
    if found:
        raise CheckFailedError(
            f"{path}: the stream is not valid: {describe(program, found[0])}",
            hint="mlc vdla check shows all; --no-check simulates it anyway",
        )


def _bind(
    bind: Callable[[str, np.ndarray], None], program: Program, inputs: str | None, seed: int
) -> dict[str, np.ndarray]:
    """Binds inputs, given or random, and new arrays for the outputs, which are returned by name.

    Raises:
        UsageError: an input that the program does not have, or of another size.
    """
    import numpy as np

    from mlc.harness.arrays import read_npz

    wanted = {spec.name: spec for spec in program.buffers if spec.kind == "in"}
    given = {} if inputs is None else {k: np.ascontiguousarray(v) for k, v in read_npz(inputs).items()}
    for name, array in given.items():
        if name not in wanted:
            raise UsageError(f"{inputs}: the program has no input {name!r}", hint=did_you_mean(name, wanted))
        if array.nbytes != wanted[name].nbytes:
            raise UsageError(f"{inputs}: {name!r} has {array.nbytes} bytes; expected {wanted[name].nbytes}")
    rng = np.random.default_rng(seed)
    for name, spec in wanted.items():
        bind(name, given[name] if name in given else rng.integers(0, 256, spec.nbytes, np.uint8))
    results = {}
    for number, spec in enumerate(program.buffers):
        if spec.kind == "out":
            results[spec.name] = np.zeros(spec.nbytes, np.uint8).view(_element(program, number))
            bind(spec.name, results[spec.name])
    return results


def _element(program: Program, number: int) -> str:
    """The type of an output's elements, which follows from the stores that write it."""
    from mlc.vdla.isa import Mem, Store

    stores = (program.instructions[at] for at, buffer in program.relocations.items() if buffer == number)
    kinds = {x.mem for x in stores if isinstance(x, Store)}
    return {frozenset([Mem.OUT]): "int8", frozenset([Mem.ACC]): "int32"}.get(frozenset(kinds), "uint8")


def _show(console: Console, report: Report) -> None:
    """Tables for people."""
    from mlc.vdla import reports
    from mlc.vdla.sim.report import assumptions, milliseconds, profile_name

    if console.json_on_stdout:
        return
    config = report.config
    time = milliseconds(report.cycles, config)
    console.data(
        f"{len(report.instructions)} instructions, {report.cycles} cycles = {time:.3f} ms ({profile_name(config)})"
    )
    for title, table in (
        ("", reports.layer_table(report)),
        ("cycles of each unit", reports.stall_table(report)),
        ("bytes moved", reports.byte_table(report)),
    ):
        console.say(f"\n{title}" if title else "")
        console.say(console.table(table.columns, table.rows, table.numbers))
    console.say("\nassumptions")
    for line in assumptions(config):
        console.say(f"  {line}")
